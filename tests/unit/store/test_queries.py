"""Every query is used and compiles, and the hot ones cost the same however many runs there are."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store_files import add_run, database, opened, values

from interlock.domain.run import Run
from interlock.domain.states import RunState
from interlock.store.sqlite import SqliteStore, transaction
from interlock.store.sqlite.queries import SQL, columns
from interlock.store.sqlite.transaction import SqliteTx

RUNS = 2000

HOT = [
    "run",
    "run_by_id",
    "run_by_unique_key",
    "batch_latest",
    "live_runs",
    "claimed_by",
    "stopping",
    "lane_of",
    "lanes_from",
    "lanes_after",
    "offers_push",
    "next_due",
    "due",
    "events_of",
    "events_after",
    "dependants",
    "prunable",
    "queued_after",
]

SORTED = {"live_runs"}
"""These sort the runs that are active, of three states or two: no more than the limits let in."""


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """A database with many runs, of which no statistics were ever made."""
    folder = tmp_path_factory.mktemp("full")
    SqliteStore(folder, create=True, inline=True).close()
    with opened(database(folder)) as raw:
        raw.execute("BEGIN")
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {})"
        raw.execute(f"INSERT INTO lanes (id, key) {numbers.format(20)} SELECT i, i FROM n")
        row = {name: f":{name}" for name in values("")}
        row |= {
            "id": "'r' || i",
            "lane": "i % 20 + 1",
            "ready": "i % 2",
            "batch": "'batch' || (i % 3)",
            "task_key": "'task' || i",
            "unique_key": "'key' || i",
            "due_ms": "CASE WHEN i % 2 THEN NULL ELSE i END",
            "priority": "i % 5",
        }
        raw.execute(
            f"{numbers.format(RUNS)} INSERT INTO runs ({', '.join(row)}) SELECT {', '.join(row.values())} FROM n",
            values(""),
        )
        raw.execute(
            "UPDATE runs SET ready = 0, state = 'completed', reason = 'done', message = 'm', ended_ms = number"
            " WHERE number % 5 = 0"
        )
        for state in (RunState.DISPATCHED, RunState.CLAIMED, RunState.RUNNING):
            for index in range(5):
                add_run(raw, f"{state}{index}", state, owner="me", stop='{"kind":"cancel"}' if index == 0 else None)
        raw.execute(
            "INSERT INTO run_events (run, event, at_ms, by) SELECT number, 'note', 1, 'x' FROM runs ORDER BY number % 7"
        )
        raw.execute("INSERT INTO needs (run, need) SELECT number, number - 1 FROM runs WHERE number > 1")
        raw.execute("COMMIT")
        assert raw.execute("SELECT count(*) FROM sqlite_master WHERE name GLOB 'sqlite_stat*'").fetchone() == (0,)
        yield raw


def plan(connection: sqlite3.Connection, name: str) -> list[str]:
    """The steps by which a query is answered."""
    numbered = [int(found) for found in re.findall(r"\?(\d+)", SQL[name])]
    values = [1] * (max(numbered) if numbered else SQL[name].count("?"))
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", values)]


@pytest.mark.parametrize("name", HOT)
def test_a_hot_query_goes_by_an_index(full: sqlite3.Connection, name: str) -> None:
    steps = plan(full, name)
    assert steps
    for step in steps:
        if name == "lanes_from":
            assert step == "SCAN lanes USING INDEX lanes_by_head"  # from its beginning, as far as LIMIT goes
            continue
        if name in SORTED and step == "USE TEMP B-TREE FOR ORDER BY":
            continue
        if step.startswith("CORRELATED SCALAR SUBQUERY"):
            continue  # its own steps follow
        assert step.startswith("SEARCH "), steps
        assert "USING" in step, steps


def test_the_sorting_ones_touch_active_runs_only(full: sqlite3.Connection) -> None:
    for name in SORTED:
        assert plan(full, name)[0] == "SEARCH runs USING INDEX runs_unfinished (state=?)"


STEPS = 40


@pytest.mark.parametrize(
    ("name", "parameters", "rows"),
    [
        ("run", (1000,), 1),
        ("run_by_id", ("r1000",), 1),
        ("run_by_unique_key", ("key1001",), 1),
        ("run_by_unique_key", ("key1000",), 0),
        ("batch_latest", ("batch1", "task1000"), 1),
        ("live_runs", (), 15),
        ("claimed_by", ("me",), 10),
        ("stopping", ("me",), 3),
        ("lane_of", (2,), 1),
        ("lanes_from", (3,), 3),
        ("lanes_after", (4, 1.0, 999, 3), 3),
        ("offers_push", (3,), 3),
        ("next_due", (), 1),
        ("due", (1_000_000, 3), 3),
        ("events_of", (1000, 0, 10), 1),
        ("events_after", (1500, 3), 3),
        ("dependants", (1000, 0, 10), 1),
        ("prunable", (10_000, 3), 3),
        ("queued_after", (1500, 3), 3),
    ],
)
def test_a_hot_query_does_not_look_at_many_rows(
    full: sqlite3.Connection, name: str, parameters: tuple[object, ...], rows: int
) -> None:
    """SQLite counts what its virtual machine does: passing over 2000 runs takes thousands of steps."""
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return 0

    full.set_progress_handler(count, STEPS)
    try:
        found = full.execute(SQL[name], parameters).fetchall()
    finally:
        full.set_progress_handler(None, 0)
    assert len(found) == rows
    assert calls * STEPS < RUNS + 500, f"{calls * STEPS} steps"


@pytest.mark.parametrize("name", sorted(SQL))
def test_a_query_compiles(full: sqlite3.Connection, name: str) -> None:
    assert "{" not in SQL[name]
    plan(full, name)


def test_every_query_is_used() -> None:
    source = Path(transaction.__file__).read_text("utf-8")
    assert [name for name in SQL if f'"{name}"' not in source] == []
    asked = set(re.findall(r'(?:_all|_one|_do|_runs|_a_run)\(\s*"(\w+)"|SQL\["(\w+)"\]', source))
    assert {a or b for a, b in asked} <= set(SQL)


def test_columns_are_the_fields_of_the_value() -> None:
    assert columns(Run) == Run.__struct_fields__
    assert SQL["run"] == f"SELECT {', '.join(Run.__struct_fields__)} FROM runs WHERE number = ?"


# what the queries say


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A small database."""
    SqliteStore(tmp_path, create=True, inline=True).close()
    with opened(database(tmp_path)) as connection:
        connection.execute("INSERT INTO lanes (id, key) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'empty')")
        yield connection


def test_lanes_come_in_the_order_of_their_heads_and_go_on_behind_any(raw: sqlite3.Connection) -> None:
    for lane, priority, score in [(1, 0, 1.0), (2, 5, 0.5), (3, 5, 0.9), (1, 5, 0.5), (2, -1, 9.0)]:
        add_run(raw, f"r{lane}{priority}", lane=lane, priority=priority, score=score, ready=1)
    tx = SqliteTx(raw)
    order = tx.lanes(10)
    assert [(lane.id, lane.head_number) for lane in order] == [(3, 3), (2, 2), (1, 4)]
    walked = []
    after = None
    while more := tx.lanes(1, after):
        walked += more
        after = more[-1]
    assert walked == order
    assert [tx.lane_rank(run, 10) for run in [tx.run(4), tx.run(1)] if run] == [0, 1]
    assert [tx.lane_of(lane.id) for lane in order] == order
    assert tx.lane_of(4) is None


def test_ids_by_prefix(raw: sqlite3.Connection) -> None:
    for name in ("ab", "abc", "abd", "abe", "b", "a%", "a_", "\U0010ffff"):
        add_run(raw, name)
    tx = SqliteTx(raw)

    def named(prefix: str) -> list[str]:
        return [run.id for run in tx.runs_by_prefix(prefix)]

    assert named("abc") == ["abc"]
    assert named("ab") == ["ab", "abc", "abd"]
    assert named("a%") == ["a%"]
    assert named("a_") == ["a_"]
    assert named("x") == []


def test_a_row_that_is_not_there_cannot_be_saved(raw: sqlite3.Connection) -> None:
    from msgspec.structs import replace

    number = add_run(raw, "a")
    tx = SqliteTx(raw)
    run = tx.run(number)
    assert run is not None
    tx.save_run(run, run)
    tx.save_run(run, replace(run, held=True))
    for other in (replace(run, number=99), replace(run, state=RunState.RUNNING), replace(run, fence=1)):
        with pytest.raises(sqlite3.IntegrityError, match="not there to be changed"):
            tx.save_run(other, replace(other, held=True))
    changed = tx.run(number)
    assert changed is not None
    assert changed.held
