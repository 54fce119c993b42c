"""Databases that were filled in SQL are such as the service would have made, and it works on them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio
from benchmarks.filling import add_finished, copy_queued, submit
from benchmarks.lifecycles import AT_ONCE, drive

from interlock.domain.places import DATABASE
from interlock.domain.task import Task
from interlock.store.sqlite import SqliteStore
from interlock.store.sqlite.schema import current_triggers
from interlock.store.sqlite.triggers import trigger_statements


def rows(folder: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(folder / DATABASE)) as connection:
        return connection.execute(sql).fetchall()


def sound(folder: Path) -> dict[str, int]:
    """Asserts that nothing is wrong with the database; how many runs are in which state."""
    with closing(SqliteStore(folder, inline=True)) as store:
        assert store.integrity_faults() == []
        assert store.read_now(lambda tx: tx.slot_faults()) == []
        return store.read_now(lambda tx: tx.count_states())


def test_finished_runs_are_whole(tmp_path: Path) -> None:
    add_finished(tmp_path, 100)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        # Looked at first: the store would make them anew.
        assert current_triggers(connection) == set(trigger_statements())
        with pytest.raises(sqlite3.IntegrityError, match="terminal"):
            connection.execute("UPDATE runs SET state = 'queued', ended_ms = NULL WHERE number = 50")
    assert sound(tmp_path) == {"completed": 100}
    assert rows(tmp_path, "SELECT count(*), count(DISTINCT folder) FROM attempts") == [(100, 100)]
    assert rows(tmp_path, "SELECT run FROM run_events GROUP BY run HAVING count(*) <> 5") == []
    # The oldest ended first, and all of them lie in the past of the next one.
    assert rows(tmp_path, "SELECT number FROM runs WHERE number > 1 ORDER BY ended_ms, number DESC") == [
        (n,) for n in range(2, 101)
    ]


def test_the_service_goes_on_behind_finished_runs(tmp_path: Path) -> None:
    add_finished(tmp_path, 50)
    trio.run(lambda: drive(tmp_path, 1, warm=0))
    assert sound(tmp_path) == {"completed": 50 + AT_ONCE}


def test_queued_copies_are_dispatched_like_others(tmp_path: Path) -> None:
    numbers = submit(tmp_path, [Task(title="first", role="a", priority=1), Task(title="second", role="b")])
    copy_queued(tmp_path, numbers, 30)
    assert sound(tmp_path) == {"queued": 62}
    assert rows(tmp_path, "SELECT title, count(*) FROM runs GROUP BY 1") == [("first", 31), ("second", 31)]
    assert rows(tmp_path, "SELECT count(*) FROM run_events WHERE event = 'submit'") == [(62,)]
    # What the service submits itself is dispatched last: the queue is in order, and comes to its end.
    trio.run(lambda: drive(tmp_path, 1, warm=0))
    states = sound(tmp_path)
    assert states == {"queued": 62, "completed": AT_ONCE}
    assert rows(tmp_path, "SELECT DISTINCT title FROM runs WHERE ended_ms IS NOT NULL AND number <= 62") == [
        ("first",),
        ("second",),
    ]
