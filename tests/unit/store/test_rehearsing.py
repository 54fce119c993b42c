"""Work that is undone: it sees what it writes, and nobody else ever does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

sys.path.insert(0, str(Path(__file__).parent))

from store_files import opened

from interlock.domain.errors import Conflict, Unavailable
from interlock.domain.run import Event
from interlock.ports.store import Tx, Undone
from interlock.store.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path, create=True)) as made:
        yield made


def writing(tx: Tx) -> str | None:
    tx.set_meta("k", "v" * 100_000)
    tx.hint()
    return tx.meta("k")


def files(store: SqliteStore) -> dict[str, bytes]:
    found = store.path.parent.glob("interlock.db*")
    return {path.name: path.read_bytes() for path in found if not path.name.endswith("-shm")}


async def test_it_sees_what_it_writes_and_nothing_is_kept(store: SqliteStore) -> None:
    await store.write(lambda tx: tx.set_meta("before", "x"))
    before = files(store)
    assert len(await store.rehearse(writing) or "") == 100_000
    assert files(store) == before
    assert store.peek(lambda tx: (tx.meta("k"), tx.meta("before"))) == (None, "x")


async def test_more_than_the_cache_holds_goes_nowhere(store: SqliteStore) -> None:
    before = files(store)

    def much(tx: Tx) -> None:
        for number in range(500):
            tx.set_meta(f"k{number}", "v" * 100_000)

    await store.rehearse(much)
    assert files(store) == before


async def test_nobody_hears_of_it(store: SqliteStore) -> None:
    async with store.changes() as changes:
        await store.rehearse(writing)
        with trio.move_on_after(0.1) as scope:
            await changes.wait()
        assert scope.cancelled_caught


async def test_it_sees_what_was_committed_before_and_keeps_nobody_out_afterwards(store: SqliteStore) -> None:
    for number in range(3):
        await store.write(lambda tx, number=number: tx.set_meta("n", str(number)))  # type: ignore[misc]
        assert await store.rehearse(lambda tx: tx.meta("n")) == str(number)


def failing(tx: Tx) -> None:
    tx.set_meta("k", "v")
    raise Conflict("no")


async def test_what_it_raises_is_raised(store: SqliteStore) -> None:
    with pytest.raises(Conflict):
        await store.rehearse(failing)
    assert store.peek(lambda tx: tx.meta("k")) is None


async def test_a_part_of_it_may_be_undone_alone(store: SqliteStore) -> None:
    def work(tx: Tx) -> list[Any]:
        tx.set_meta("a", "1")
        with pytest.raises(Undone), tx.apart():
            failing(tx)
        return [tx.meta("a"), tx.meta("k")]

    assert await store.rehearse(work) == ["1", None]


async def test_a_database_that_refuses_is_told_as_such(store: SqliteStore) -> None:
    def stray(tx: Tx) -> None:
        tx.add_event(Event(seq=0, run=99, event="submit", from_state=None, to_state=None, at_ms=1, by="x"))

    with pytest.raises(Exception, match="FOREIGN KEY"):
        await store.rehearse(stray)
    store._busy_ms = 10
    with opened(store.path) as raw:
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="busy"):
            await store.rehearse(writing)
        raw.execute("ROLLBACK")
    store.read_only = True
    with pytest.raises(Unavailable, match="read-only"):
        await store.rehearse(writing)
    store.close()
    with pytest.raises(Unavailable, match="closed"):
        await store.rehearse(writing)
