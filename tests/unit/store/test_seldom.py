"""What a store meets seldom: others that went away in the middle, files that are not what they were, ends of the world."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

sys.path.insert(0, str(Path(__file__).parent))

from store_files import opened

from interlock.domain.errors import Unavailable
from interlock.domain.states import Reason, StopKind
from interlock.ports.store import EVERYTHING, Tx
from interlock.store.sqlite import SqliteStore
from interlock.store.sqlite.glance import stored_routes
from interlock.store.sqlite.listening import Listening
from interlock.store.sqlite.upkeep import Checkpointer, backup


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """A store with its threads."""
    with closing(SqliteStore(tmp_path, create=True)) as made:
        yield made


def put(key: str) -> Callable[[Tx], str]:
    def work(tx: Tx) -> str:
        tx.set_meta(key, "x")
        return key

    return work


def the_end(error: BaseException) -> Callable[..., Any]:
    def work(*_: object) -> Any:
        raise error

    return work


async def test_a_bulk_that_ends_the_world_does_not_end_the_thread(store: SqliteStore) -> None:
    with pytest.raises(SystemExit):
        await store.write(the_end(SystemExit(3)), bulk=True)
    assert await store.write(put("later"), bulk=True) == "later"


async def test_a_commit_that_ends_the_world_does_not_end_the_thread(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(store._writer, "finish", the_end(MemoryError()))
        with pytest.raises(MemoryError):
            await store.write(put("lost"))
    store._writer.undo()
    assert await store.write(put("later")) == "later"
    with opened(store.path) as raw:
        assert raw.execute("SELECT count(*) FROM meta WHERE key IN ('lost', 'later')").fetchone() == (1,)


async def test_whoever_comes_while_it_is_closed_is_told(tmp_path: Path) -> None:
    """Another thread closes it between the look and the post."""
    store = SqliteStore(tmp_path, create=True)
    assert store._commits is not None
    store._commits.close()
    with pytest.raises(Unavailable, match="closed"):
        await store.write(put("late"))
    store.close()


async def test_who_listened_on_a_loop_that_ended_is_forgotten(store: SqliteStore) -> None:
    tokens: list[trio.lowlevel.TrioToken] = []

    async def other() -> None:
        tokens.append(trio.lowlevel.current_trio_token())

    await trio.to_thread.run_sync(trio.run, other)
    gone = Listening(tokens[0])
    store._listeners._all.add(gone)
    async with store.changes() as changes:
        store._listeners.tell(EVERYTHING)
        with trio.fail_after(20):
            await changes.wait()
        assert gone not in store._listeners._all


async def test_where_no_bell_can_be_heard_the_own_commits_are(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._listeners._bell, "listen", lambda: None)
    async with store.changes() as changes:
        await store.write(lambda tx: tx.hint())
        with trio.fail_after(20):
            await changes.wait()


def test_a_checkpoint_that_cannot_be_made_is_somebody_else_s_trouble(tmp_path: Path) -> None:
    looks = []

    def refuse() -> sqlite3.Connection:
        looks.append(1)
        raise sqlite3.OperationalError("unable to open database file")

    keeper = Checkpointer(tmp_path / "x.db", refuse)
    keeper.there_was_a_commit()
    keeper.close()
    assert looks == [1]
    assert not keeper._thread.is_alive()


def test_a_log_that_is_not_there_needs_no_checkpoint(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path / "x.db", lambda: sqlite3.connect(":memory:"))
    with closing(sqlite3.connect(":memory:")) as connection:
        asked: list[str] = []
        connection.set_trace_callback(asked.append)
        keeper._checkpoint(connection)
        assert asked == []
    keeper.close()


def test_a_backup_that_fails_by_our_fault_says_so(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.ProgrammingError):
        backup(the_end(sqlite3.ProgrammingError("a bug")), tmp_path / "copy.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"no database at all, whatever its name says" * 99, b""])
def test_routes_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    assert stored_routes(tmp_path) == []
    (tmp_path / "interlock.db").write_bytes(content)
    with pytest.raises(Unavailable, match="cannot be read") as caught:
        stored_routes(tmp_path)
    assert caught.value.hint


def test_a_stop_that_cannot_be_read_is_a_stop(yard: Any) -> None:
    from interlock.service import supervising

    claim = yard.running()
    yard.do(
        lambda tx, ctx: supervising.request_stop(
            tx, ctx, tx.run(claim.run), StopKind.CANCEL, reason=Reason.OPERATOR, message="enough", by="operator"
        )
    )
    with closing(yard.raw()) as raw:
        raw.execute("UPDATE runs SET stop = json_set(stop, '$.kind', 'whim') WHERE number = ?", (claim.run,))
        assert json.loads(raw.execute("SELECT stop FROM runs").fetchone()[0])["kind"] == "whim"
    stop = yard.read(lambda tx: tx.run(claim.run)).stop
    assert (stop.kind, stop.reason) == (StopKind.INTERRUPT, Reason.INTERRUPTED)
    assert "cannot be read" in stop.message


def test_books_that_are_wrong_are_made_right(yard: Any) -> None:
    claim = yard.running()
    with closing(yard.raw()) as raw:
        for (trigger,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            raw.execute(f'DROP TRIGGER "{trigger}"')
        raw.execute("UPDATE slot_counts SET used = used + 2")
        raw.execute("INSERT INTO slots (run, key) VALUES (?, 'stray') ON CONFLICT DO NOTHING", (yard.submit().number,))
    faults = yard.read(lambda tx: tx.slot_faults())
    assert any("3 in the books, 1 by a recount" in fault for fault in faults), faults
    yard.do(lambda tx, _: tx.repair_slots())
    assert yard.read(lambda tx: tx.slot_faults()) == []
    assert yard.read(lambda tx: tx.run(claim.run)).state == "running"
