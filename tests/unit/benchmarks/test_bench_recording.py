"""The floor is the service's own SQL: all of it, and it does the same again."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest
import trio
from benchmarks import recording
from benchmarks.filling import add_finished
from benchmarks.lifecycles import AT_ONCE, drive, record
from benchmarks.recording import STEERING, commits_stamped, recorded, replay

from interlock.domain.places import DATABASE

TABLES = ("runs", "attempts", "run_events", "slots", "slot_counts", "lanes")


def content(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(folder / DATABASE)) as connection:
        return {table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in TABLES}


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A database with some runs in it."""
    add_finished(tmp_path / "before", 10)
    return tmp_path / "before"


def test_a_replay_leaves_what_the_service_left(before: Path, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    shutil.copytree(before, ours)
    shutil.copytree(before, theirs)
    statements = record(ours, 1)
    assert content(theirs) != content(ours)
    replay(theirs / DATABASE, statements, transactions=3)
    assert content(theirs) == content(ours)
    assert len(content(ours)["runs"]) == 10 + AT_ONCE


def skeleton(sql: str) -> str:
    """A statement without its values: the trace shows them in their places."""
    return re.sub(r"'(?:[^']|'')*'|\b[\d.]+(?:e[+-]?\d+)?\b|\?|\bNULL\b", "#", sql).strip()


def test_nothing_passes_the_recording_by(tmp_path: Path) -> None:
    """Whatever SQLite itself traces was noted."""
    traced: set[str] = set()
    made = recording._Connection.__init__

    def traced_too(self: sqlite3.Connection, *arguments: object, **named: object) -> None:
        made(self, *arguments, **named)  # type: ignore[arg-type]
        self.set_trace_callback(lambda sql: traced.add(skeleton(sql)))

    with mock.patch.object(recording._Connection, "__init__", traced_too), recorded() as noted:
        trio.run(lambda: drive(tmp_path, 1, warm=0))
    assert len(traced) > 30
    assert traced <= {skeleton(each.sql) for connection in noted.connections for each in connection.noted}
    kept = {statement.first_word for statement in noted.written()}
    assert kept >= {"INSERT", "UPDATE", "SELECT"}
    assert not kept & set(STEERING)


def test_what_was_rolled_back_is_no_floor(tmp_path: Path) -> None:
    with recorded() as noted, closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("ROLLBACK")
    with pytest.raises(ValueError, match="rolled back"):
        noted.written()


def test_reads_of_other_connections_are_not_counted(tmp_path: Path) -> None:
    with recorded() as noted, closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.execute("BEGIN")
        connection.execute("SELECT a FROM t")
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO t VALUES (?)", ((value,) for value in (1, 2)))
        connection.execute("COMMIT")
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (2,)
    (statement,) = noted.written()
    assert statement.values == [(1,), (2,)]


def test_a_commit_is_stamped_when_it_is_done(tmp_path: Path) -> None:
    with commits_stamped() as stamps, closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE t (a)")
        assert stamps == []
        connection.execute("COMMIT")
        assert len(stamps) == 1
    assert sqlite3.connect is sqlite3.dbapi2.connect
