"""The engine in good weather: group commit, snapshots, who hears of a commit, what cancelling and closing do."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

sys.path.insert(0, str(Path(__file__).parent))

from store_files import database, opened, python

from interlock.domain.errors import Conflict, IllegalTransition, Unavailable
from interlock.ports.store import Tx
from interlock.store.sqlite import SqliteStore
from interlock.store.sqlite.commits import GROUP_LIMIT, Piece


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """A store with its threads."""
    with closing(SqliteStore(tmp_path, create=True)) as made:
        yield made


@pytest.fixture
def inline(tmp_path: Path) -> Iterator[SqliteStore]:
    """A store without threads."""
    with closing(SqliteStore(tmp_path, create=True, inline=True)) as made:
        yield made


def put(key: str, value: str | None = "x") -> Callable[[Tx], str]:
    """Work that writes ``key`` and says so."""

    def work(tx: Tx) -> str:
        tx.set_meta(key, value)
        return key

    return work


def there(store: SqliteStore, *keys: str) -> list[str]:
    """Those of ``keys`` that another program finds in the file."""
    with opened(store.path) as raw:
        return [key for key in keys if raw.execute("SELECT 1 FROM meta WHERE key = ?", (key,)).fetchone()]


class Gate:
    """Work that keeps the writer until it is told to go on."""

    def __init__(self) -> None:
        self.reached, self._go = threading.Event(), threading.Event()

    def __call__(self, tx: Tx) -> None:
        self.reached.set()
        assert self._go.wait(60)

    def open(self) -> None:
        """Let the writer go on."""
        self._go.set()


async def together(store: SqliteStore, *works: Callable[[Any], Any]) -> tuple[list[Any], list[str]]:
    """Let ``works`` meet in one group. Their results or errors, and the transaction statements that were run for them."""
    results: list[Any] = [None] * len(works)
    said: list[str] = []
    gate = Gate()

    async def one(index: int, work: Callable[[Any], Any]) -> None:
        try:
            results[index] = await store.write(work)
        except Exception as error:  # noqa: BLE001 - it is what the test looks at
            results[index] = error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(store.write, gate, bulk=True))
        await trio.to_thread.run_sync(gate.reached.wait)
        for index, work in enumerate(works):
            nursery.start_soon(one, index, work)
            await wait_all_tasks_blocked()
        store._writer.connection.set_trace_callback(
            lambda sql: said.append(sql) if sql in {"BEGIN IMMEDIATE", "COMMIT", "ROLLBACK"} else None
        )
        gate.open()
    store._writer.connection.set_trace_callback(None)
    return results, said


class Mishap(Exception):
    """A fault in somebody's work."""


def failing(key: str, error: BaseException) -> Callable[[Tx], None]:
    """Work that writes ``key`` and then raises."""

    def work(tx: Tx) -> None:
        tx.set_meta(key, "x")
        raise error

    return work


def point_nowhere(tx: Any) -> None:
    """Work that lets the commit fail."""
    tx.connection.execute("PRAGMA defer_foreign_keys = ON")
    tx.connection.execute("INSERT INTO run_events (run, event, at_ms, by) VALUES (99, 'note', 1, 'x')")


# groups


async def test_what_waits_is_committed_together(store: SqliteStore) -> None:
    results, said = await together(store, put("a"), put("b"), put("c"))
    assert results == ["a", "b", "c"]
    assert said == ["COMMIT", "BEGIN IMMEDIATE", "COMMIT"]  # the first ends the gate's own
    assert there(store, "a", "b", "c") == ["a", "b", "c"]


async def test_a_piece_that_raises_is_undone_alone(store: SqliteStore) -> None:
    mishap = Mishap("no")
    results, said = await together(store, put("a"), failing("b", mishap), put("c"))
    assert results == ["a", mishap, "c"]
    assert said.count("COMMIT") == 2
    assert there(store, "a", "b", "c") == ["a", "c"]


async def test_a_piece_that_the_file_refuses_is_undone_alone(store: SqliteStore) -> None:
    def wrong(tx: Any) -> None:
        tx.set_meta("b", "x")
        tx.connection.execute("INSERT INTO slots VALUES (1, 'global')")

    def moved(tx: Any) -> None:
        tx.connection.execute(
            "INSERT INTO attempts (run, fence, state, holder, remote, claimed_ms) VALUES (1, 1, 'x', 'h', 0, 1)"
        )

    results, _ = await together(store, put("a"), wrong, moved, put("c"))
    assert [results[0], results[3]] == ["a", "c"]
    assert isinstance(results[1], Conflict)
    assert str(results[1]) == "a slot is taken once, by an active run"
    assert isinstance(results[2], IllegalTransition)
    assert str(results[2]) == "an attempt starts with a claim, once"
    assert there(store, "a", "b", "c") == ["a", "c"]


async def test_a_fault_of_ours_comes_through_as_it_is(store: SqliteStore) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await store.write(lambda tx: tx.connection.execute("SELECT * FROM nowhere"))
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await store.read(lambda tx: tx.connection.execute("SELECT * FROM nowhere"))
    assert await store.write(put("a")) == "a"


async def test_a_commit_that_fails_fails_all_of_its_group_and_the_store_goes_on(store: SqliteStore) -> None:
    results, said = await together(store, put("a"), point_nowhere, put("c"))
    for result in results:
        assert isinstance(result, Unavailable)
        assert "FOREIGN KEY" in str(result)
    assert said[-1] == "ROLLBACK"
    assert there(store, "a", "c") == []
    assert await store.write(put("d")) == "d"
    assert there(store, "d") == ["d"]


async def test_a_group_has_a_bound(store: SqliteStore) -> None:
    works = [put(f"k{index}") for index in range(GROUP_LIMIT + 3)]
    results, said = await together(store, *works)
    assert results == [f"k{index}" for index in range(GROUP_LIMIT + 3)]
    assert said.count("COMMIT") == 3


class Downfall(BaseException):
    """What no piece of work should raise."""


async def test_a_work_that_ends_the_world_does_not_end_the_writer(store: SqliteStore) -> None:
    with pytest.raises(Downfall):
        await store.write(failing("a", Downfall()))
    assert await store.write(put("b")) == "b"
    assert there(store, "a", "b") == ["b"]


def test_ctrl_c_in_an_inline_write_keeps_nothing_of_it(inline: SqliteStore) -> None:
    with pytest.raises(KeyboardInterrupt):
        inline.write_now(failing("a", KeyboardInterrupt()))
    assert inline.write_now(put("b")) == "b"
    assert there(inline, "a", "b") == ["b"]


async def test_two_loops_share_a_writer(store: SqliteStore) -> None:
    answers: list[str] = []

    def other_loop() -> None:
        async def some() -> None:
            answers.extend([await store.write(put(f"o{index}")) for index in range(20)])

        trio.run(some)

    thread = threading.Thread(target=other_loop)
    thread.start()
    for index in range(20):
        assert await store.write(put(f"k{index}")) == f"k{index}"
    await trio.to_thread.run_sync(thread.join)
    assert answers == [f"o{index}" for index in range(20)]


async def test_a_loop_that_ended_before_its_answer_stops_nobody(store: SqliteStore) -> None:
    tokens: list[Any] = []

    async def leave() -> None:
        tokens.extend([trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()])

    await trio.to_thread.run_sync(trio.run, leave)
    assert store._commits is not None
    store._commits.post(Piece(put("a"), *tokens))
    assert await store.write(put("b")) == "b"
    assert there(store, "a", "b") == ["a", "b"]


COUNT = """
import sys
from pathlib import Path
from interlock.store.sqlite import SqliteStore

def one_more(tx):
    tx.set_meta("count", str(int(tx.meta("count") or 0) + 1))

store = SqliteStore(Path(sys.argv[1]), create=True, inline=True)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(100):
    store.write_now(one_more)
store.close()
"""


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    both = [python(COUNT, tmp_path) for _ in range(2)]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate(timeout=60) for process in both] == [("", ""), ("", "")]
    assert [process.returncode for process in both] == [0, 0]
    with closing(SqliteStore(tmp_path, inline=True)) as store:
        assert store.read_now(lambda tx: tx.meta("count")) == "200"


# cancellation


async def test_a_write_is_not_torn_from_its_answer_by_cancellation(store: SqliteStore) -> None:
    gate, answers = Gate(), []

    async def write() -> None:
        answers.append(await store.write(put("a")))
        await trio.lowlevel.checkpoint()
        answers.append("went on though cancelled")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(store.write, gate, bulk=True))
        await trio.to_thread.run_sync(gate.reached.wait)
        nursery.start_soon(write)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        gate.open()
    assert answers == ["a"]
    assert there(store, "a") == ["a"]


async def test_a_write_that_is_cancelled_before_it_begins_does_not_happen(store: SqliteStore) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.write(put("a"))
    assert scope.cancelled_caught
    await store.write(put("b"))
    assert there(store, "a", "b") == ["b"]


# reading


def test_a_reading_that_raises_costs_no_connection(inline: SqliteStore) -> None:
    def fail(tx: Tx) -> None:
        raise Mishap

    for _ in range(5):
        with pytest.raises(Mishap):
            inline.read_now(fail)
    assert len(inline._readers) == 1
    assert not inline._readers[0].in_transaction


def test_a_reading_inside_a_reading_gets_a_connection_of_its_own(inline: SqliteStore) -> None:
    assert inline.read_now(lambda _: inline.read_now(lambda tx: tx.meta("generation"))) is not None
    assert len(inline._readers) == 2


# who hears of a commit


async def test_a_commit_with_something_to_tell_is_heard(store: SqliteStore) -> None:
    async with store.changes() as changes, store.changes() as others:
        await store.write(lambda tx: tx.hint())
        with trio.fail_after(60):
            await changes.wait()
            await others.wait()
        await store.write(put("a"))
        with trio.move_on_after(0.01) as scope:
            await changes.wait()
        assert scope.cancelled_caught


async def test_hints_while_nobody_waits_are_joined(inline: SqliteStore) -> None:
    async with inline.changes() as changes:
        for _ in range(3):
            await inline.write(lambda tx: tx.hint())
        await changes.wait()
        with trio.move_on_after(0.01) as scope:
            await changes.wait()
        assert scope.cancelled_caught


async def test_an_undone_commit_is_not_heard(inline: SqliteStore) -> None:
    def hint_and_break(tx: Any) -> None:
        tx.hint()
        point_nowhere(tx)

    async with inline.changes() as changes:
        with pytest.raises(Unavailable):
            await inline.write(hint_and_break)
        with trio.move_on_after(0.01) as scope:
            await changes.wait()
        assert scope.cancelled_caught


HINT = """
import sys
from pathlib import Path
from interlock.store.sqlite import SqliteStore
store = SqliteStore(Path(sys.argv[1]), inline=True)
store.write_now(lambda tx: tx.hint())
store.close()
"""


async def test_another_process_is_heard(store: SqliteStore) -> None:
    async with store.changes() as changes:
        process = python(HINT, store.folder)
        with trio.fail_after(60):
            await changes.wait()
        assert await trio.to_thread.run_sync(process.communicate) == ("", "")


async def test_what_is_raised_while_listening_comes_through_as_it_is(store: SqliteStore) -> None:
    mishap = Mishap("no")
    with pytest.raises(Mishap) as caught:
        async with store.changes():
            raise mishap
    assert caught.value is mishap
    assert not store._listeners._all


async def test_what_is_raised_while_listening_is_not_lost_to_a_cancellation(store: SqliteStore) -> None:
    with pytest.raises(Mishap), trio.CancelScope() as scope:  # noqa: PT012 - the scope is what is looked at
        async with store.changes():
            scope.cancel()
            raise Mishap
    assert not store._listeners._all


async def test_listening_can_be_cancelled(store: SqliteStore) -> None:
    with trio.move_on_after(0.01) as scope:
        async with store.changes() as changes:
            await changes.wait()
    assert scope.cancelled_caught
    assert list((store.folder / "bells").iterdir()) == []


# closing


async def test_closing_finishes_what_is_queued(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, create=True)
    gate, answers = Gate(), []

    async def write(key: str) -> None:
        answers.append(await store.write(put(key)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(store.write, gate, bulk=True))
        await trio.to_thread.run_sync(gate.reached.wait)
        for key in "abc":
            nursery.start_soon(write, key)
            await wait_all_tasks_blocked()
        nursery.start_soon(partial(trio.to_thread.run_sync, store.close))
        gate.open()
    assert sorted(answers) == ["a", "b", "c"]
    assert there(store, "a", "b", "c") == ["a", "b", "c"]


@pytest.mark.parametrize("mode", ["threads", "inline"])
async def test_a_closed_store_says_so(tmp_path: Path, mode: str) -> None:
    store = SqliteStore(tmp_path, create=True, inline=mode == "inline")
    await store.read(lambda tx: tx.meta("generation"))
    store.close()
    store.close()
    with pytest.raises(Unavailable, match="the store is closed"):
        await store.write(put("a"))
    with pytest.raises(Unavailable, match="the store is closed"):
        await store.read(lambda tx: tx.meta("a"))
    for ask in (
        lambda: store.write_now(put("a")),
        lambda: store.peek(lambda tx: tx.meta("a")),
        store.integrity_faults,
        lambda: store.backup(tmp_path / "copy.db"),
    ):
        with pytest.raises(Unavailable, match="the store is closed"):
            ask()
    assert there(store, "a") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["interlock.db", "interlock.db.migrate"]


# backup


def test_a_backup_is_equal_but_for_its_generation(inline: SqliteStore, tmp_path: Path) -> None:
    inline.write_now(put("a", "ä\0☃"))
    target = tmp_path / "elsewhere" / "interlock.db"
    target.parent.mkdir()
    inline.backup(target)
    with opened(inline.path) as ours, opened(target) as copy:
        mine, its = list(ours.iterdump()), list(copy.iterdump())
        assert copy.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert ours.execute("PRAGMA user_version").fetchone() == copy.execute("PRAGMA user_version").fetchone()
    differing = [(one, other) for one, other in zip(mine, its, strict=True) if one != other]
    assert len(differing) == 1
    assert all("'generation'" in line for line in differing[0])
    assert [path.name for path in target.parent.iterdir()] == ["interlock.db"]
    with closing(SqliteStore(target.parent, inline=True)) as again:
        assert again.read_now(lambda tx: tx.meta("a")) == "ä\0☃"


async def test_a_backup_is_taken_while_others_write(store: SqliteStore, tmp_path: Path) -> None:
    """Two values that are always written together are equal in every backup."""
    copies = [tmp_path / f"copy{index}.db" for index in range(3)]

    def both(tx: Tx) -> None:
        value = str(int(tx.meta("a") or 0) + 1)
        tx.set_meta("a", value)
        tx.set_meta("b", value)
        tx.set_meta("ballast", value * 20_000)

    async def write_on() -> None:
        while True:
            await store.write(both)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write_on)
        for copy in copies:
            await trio.to_thread.run_sync(store.backup, copy)
        nursery.cancel_scope.cancel()
    for copy in copies:
        with opened(copy) as raw:
            found = dict(raw.execute("SELECT key, value FROM meta").fetchall())
            assert found.get("a") == found.get("b")
            assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_backup_does_not_go_over_a_file(inline: SqliteStore, tmp_path: Path) -> None:
    target = tmp_path / "mine.txt"
    target.write_text("precious")
    with pytest.raises(Conflict, match="is there already"):
        inline.backup(target)
    with pytest.raises(Conflict, match="is there already"):
        inline.backup(inline.path)
    assert target.read_text() == "precious"


def test_a_backup_that_was_cut_off_is_not_in_the_way(inline: SqliteStore, tmp_path: Path) -> None:
    (tmp_path / "copy.db.part").write_bytes(b"half of something" * 100)
    inline.backup(tmp_path / "copy.db")
    with opened(tmp_path / "copy.db") as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("target", ["nowhere/copy.db", "file/copy.db", "/proc/copy.db"])
def test_a_backup_to_where_nothing_can_be_written(inline: SqliteStore, tmp_path: Path, target: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable):
        inline.backup(tmp_path / target)
    assert inline.write_now(put("a")) == "a"


# upkeep


def test_pages_are_moved_out_of_the_log_in_the_background(store: SqliteStore) -> None:
    wal = database(store.folder).with_name("interlock.db-wal")

    async def grow() -> None:
        for index in range(6):
            await store.write(put(f"k{index}", "x" * 1_000_000))
        size = database(store.folder).stat().st_size
        with trio.fail_after(60):
            while database(store.folder).stat().st_size == size:
                await store.write(lambda tx: tx.hint())
                await store.write(put("more"))
        assert wal.exists()

    trio.run(grow)
