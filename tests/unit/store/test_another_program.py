"""What the file itself refuses, whichever program writes to it: the plain sqlite3 module, foreign keys off."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store_files import (
    ATTEMPT_WAY,
    ENDED,
    WAY,
    add_attempt,
    add_event,
    add_run,
    add_slots,
    database,
    insert,
    move_attempt,
    move_run,
    opened,
    values,
)

from interlock.domain.states import ACTIVE, ATTEMPT_ENDS, TERMINAL, AttemptState, RunState
from interlock.machines.attempt import AttemptMachine
from interlock.machines.run import RunMachine
from interlock.machines.table import ATTEMPT, RUN, Table
from interlock.store.sqlite import SqliteStore
from interlock.store.sqlite.triggers import trigger_statements

Q, D, C, R, B = RunState.QUEUED, RunState.DISPATCHED, RunState.CLAIMED, RunState.RUNNING, RunState.BLOCKED


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A fresh database that no Interlock has open."""
    SqliteStore(tmp_path, create=True, inline=True).close()
    return database(tmp_path)


@pytest.fixture
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program on it, with a lane."""
    with opened(path) as connection:
        connection.execute("INSERT INTO lanes (id, key) VALUES (1, 'one'), (2, 'two')")
        yield connection


def refused(
    connection: sqlite3.Connection, sql: str, *parameters: Any, match: str = "illegal_transition|conflict"
) -> None:
    """The statement is refused by a trigger and nothing has changed."""
    before = list(connection.iterdump())
    with pytest.raises(sqlite3.IntegrityError, match=match) as caught:
        connection.execute(sql, parameters)
    assert caught.value.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_TRIGGER
    assert list(connection.iterdump()) == before


def tried(connection: sqlite3.Connection, move: Callable[[], None]) -> str | None:
    """What a move is refused with, or None; undone either way."""
    connection.execute("SAVEPOINT tried")
    try:
        move()
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_TRIGGER:
            raise
        return str(error)
    finally:
        connection.execute("ROLLBACK TO tried")
        connection.execute("RELEASE tried")
    return None


# pairs of states


def test_of_all_pairs_of_run_states_the_file_takes_what_the_machine_has(raw: sqlite3.Connection) -> None:
    runs = {state: add_run(raw, state, state) for state in RunState}
    said = {(s, t): tried(raw, lambda s=s, t=t: move_run(raw, runs[s], t)) for s, t in product(RunState, RunState)}  # type: ignore[misc]
    taken = {pair for pair, why in said.items() if why is None}
    assert {(s, t) for s, t in taken if s != t} == RUN.pairs
    assert {(s, t) for s, t in taken if s == t} == {(s, s) for s in set(RunState) - TERMINAL}
    for (source, _), why in said.items():
        if why is not None and source in TERMINAL:
            assert why.startswith("illegal_transition: "), why
    assert said[Q, R] == "illegal_transition: the machine has no such move"


def test_of_all_pairs_of_attempt_states_the_file_takes_what_the_machine_has(raw: sqlite3.Connection) -> None:
    runs = {}
    for state in AttemptState:
        runs[state] = add_run(raw, state, C)
        add_attempt(raw, runs[state], state=state)
    said = {
        (s, t): tried(raw, lambda s=s, t=t: move_attempt(raw, runs[s], 1, t))  # type: ignore[misc]
        for s, t in product(AttemptState, AttemptState)
    }
    taken = {pair for pair, why in said.items() if why is None}
    assert {(s, t) for s, t in taken if s != t} == ATTEMPT.pairs
    assert {(s, t) for s, t in taken if s == t} == {(s, s) for s in set(AttemptState) - ATTEMPT_ENDS}


@pytest.mark.parametrize(("table", "machine"), [(RUN, RunMachine), (ATTEMPT, AttemptMachine)], ids=["run", "attempt"])
def test_class_table_and_triggers_speak_of_the_same_pairs(table: Table[Any], machine: Any) -> None:
    drawn = {(s.value, t.target.value) for s in machine.states for t in s.transitions if s.value != t.target.value}
    assert {(str(s), str(t)) for s, t in table.pairs} == drawn
    (guard,) = [sql for sql in trigger_statements() if f"interlock_{table.noun}s_changed " in sql]
    (legal,) = re.findall(r"^WHEN NEW.state IS NOT OLD.state AND NOT (.*) THEN", guard, re.MULTILINE)
    question = legal.replace("OLD.state", ":source").replace("NEW.state", ":target")
    with closing(sqlite3.connect(":memory:")) as asked:
        for source, target in product(table.states, table.states):
            (answer,) = asked.execute(f"SELECT {question}", {"source": source, "target": target}).fetchone()
            assert bool(answer) == ((source, target) in table.pairs)


def test_the_ways_used_here_are_complete() -> None:
    assert set(WAY) == set(RunState)
    assert set(ATTEMPT_WAY) == set(AttemptState)


def test_a_state_that_nobody_knows(raw: sqlite3.Connection) -> None:
    add_run(raw, "a")
    refused(raw, "UPDATE runs SET state = 'paused'", match="no such state|no such move")
    refused(raw, "UPDATE runs SET state = 'QUEUED'", match="no such state|no such move")
    run = add_run(raw, "b", C)
    add_attempt(raw, run)
    refused(raw, "UPDATE attempts SET state = 'dreaming'", match="no such move")


# terminal


@pytest.mark.parametrize("state", sorted(TERMINAL))
@pytest.mark.parametrize(
    "change",
    [
        "state = 'queued', ended_ms = NULL",
        "ended_ms = NULL",
        "ended_ms = 10",
        "message = 'other'",
        "result = '1'",
        "task = '{}'",
        "fence = fence + 1",
        "updated_ms = 2",
        "number = 77",
        "rowid = 77",
        "ready = 1",
        "owner = 'me'",
    ],
)
@pytest.mark.parametrize(
    "verb", ["UPDATE", "UPDATE OR REPLACE", "UPDATE OR IGNORE", "UPDATE OR FAIL", "UPDATE OR ROLLBACK"]
)
def test_a_terminal_row_stays_as_it_is(raw: sqlite3.Connection, state: RunState, change: str, verb: str) -> None:
    number = add_run(raw, "a", state)
    refused(raw, f"{verb} runs SET {change} WHERE number = ?", number, match="illegal_transition")


def test_an_ended_attempt_stays_as_it_is(raw: sqlite3.Connection) -> None:
    run = add_run(raw, "a", C)
    add_attempt(raw, run, state=AttemptState.FAILED)
    for change in (
        "state = 'working', ended_ms = NULL",
        "ended_ms = NULL",
        "message = 'x'",
        "exit_status = 0",
        "usage = '{}'",
    ):
        for verb in ("UPDATE", "UPDATE OR REPLACE"):
            refused(raw, f"{verb} attempts SET {change}", match="illegal_transition")


def test_an_attempt_ends_with_its_state_and_not_otherwise(raw: sqlite3.Connection) -> None:
    run = add_run(raw, "a", C)
    add_attempt(raw, run)
    refused(
        raw,
        "UPDATE attempts SET ended_ms = 9, reason = 'done', message = 'm'",
        match="has an end when its state says so",
    )
    refused(raw, "UPDATE attempts SET state = 'failed'", match="has an end when its state says so")
    raw.execute("UPDATE attempts SET state = 'failed', ended_ms = 9, reason = 'done', message = 'm'")


@pytest.mark.parametrize(
    "change", ["reason = NULL", "message = NULL", "message = ''", "ended_ms = NULL", "holder = 'h'"]
)
def test_an_end_has_reason_message_and_time_and_no_holder(raw: sqlite3.Connection, change: str) -> None:
    add_run(raw, "a", R)
    end = "state = 'failed', reason = 'done', message = 'm', ended_ms = 9, holder = NULL"
    column = change.partition(" = ")[0]
    others = [part for part in end.split(", ") if not part.startswith(column)]
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        raw.execute(f"UPDATE runs SET {', '.join([*others, change])}")
    raw.execute(f"UPDATE runs SET {end}")


# the ways around


@pytest.mark.parametrize("victim", [Q, R, B, RunState.COMPLETED])
@pytest.mark.parametrize(
    "verb", ["INSERT", "REPLACE", "INSERT OR REPLACE", "INSERT OR ROLLBACK", "INSERT OR FAIL", "INSERT OR IGNORE"]
)
@pytest.mark.parametrize("key", ["id", "number", "rowid", "unique_key"])
def test_no_run_takes_the_place_of_another(raw: sqlite3.Connection, victim: RunState, verb: str, key: str) -> None:
    number = add_run(raw, "a", victim, unique_key="u")
    row = values("b", unique_key="v")
    row[key] = {"id": "a", "number": number, "rowid": number, "unique_key": "u"}[key]
    sql = f"{verb} INTO runs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
    if key == "unique_key" and victim == RunState.COMPLETED:
        raw.execute(sql, list(row.values()))  # a finished run gives its key free
        assert raw.execute("SELECT count(*) FROM runs").fetchone() == (2,)
    else:
        refused(raw, sql, *row.values(), match="a run starts queued, once")


@pytest.mark.parametrize("target", ["id", "number", ""])
def test_an_upsert_is_no_way_round(raw: sqlite3.Connection, target: str) -> None:
    number = add_run(raw, "a", R)
    row = values("a", number=number)
    conflict = f"ON CONFLICT {f'({target})' if target else ''} DO UPDATE SET state = 'completed'"
    if not target:
        conflict = "ON CONFLICT DO NOTHING"
    sql = f"INSERT INTO runs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))}) {conflict}"
    refused(raw, sql, *row.values(), match="a run starts queued, once")


@pytest.mark.parametrize(
    "change",
    [
        {"state": "dispatched"},
        {"state": "claimed", "holder": "h", "fence": 1},
        {"state": "completed", **ENDED},
        {"state": "paused"},
        {"fence": 1},
        {"number": 0},
        {"number": -1},
        {"number": -7},
    ],
    ids=str,
)
def test_a_run_starts_queued_with_a_number_of_its_own(raw: sqlite3.Connection, change: dict[str, Any]) -> None:
    add_run(raw, "a")
    row = values("b", **change)
    sql = f"INSERT INTO runs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
    refused(raw, sql, *row.values(), match="illegal_transition: (a run starts queued|numbers of runs start)")


@pytest.mark.parametrize(
    "change",
    [
        "number = 99",
        "number = 2",
        "rowid = 99",
        "rowid = 2",
        "_rowid_ = 2",
        "oid = 2",
        "id = 'other'",
        "id = 'b'",
        "unique_key = NULL",
        "unique_key = 'v'",
        "unique_key = 'new'",
        "created_ms = 2",
        "rowid = 2, state = 'dispatched'",
    ],
)
@pytest.mark.parametrize("verb", ["UPDATE", "UPDATE OR REPLACE", "UPDATE OR IGNORE"])
def test_the_identity_of_a_run_never_changes(raw: sqlite3.Connection, change: str, verb: str) -> None:
    add_run(raw, "a", unique_key="u")
    add_run(raw, "b", unique_key="v")
    refused(raw, f"{verb} runs SET {change} WHERE number = 1", match="the identity of a run never changes")


@pytest.mark.parametrize("fence", [0, 1, 3, 4, 99])
@pytest.mark.parametrize("state", [Q, D, C, R, B])
def test_the_fence_of_a_run_moves_with_a_claim_and_only_then(
    raw: sqlite3.Connection, state: RunState, fence: int
) -> None:
    number = add_run(raw, "a", C)
    move_run(raw, number, D)
    move_run(raw, number, C)
    if state is not C:
        for step in {Q: [Q], D: [D], R: [R], B: [B]}[state]:
            move_run(raw, number, step)
    assert raw.execute("SELECT fence FROM runs").fetchone() == (2,)
    refused(raw, "UPDATE runs SET fence = ?", fence, match="the fence grows by one with a claim, and only then")


def test_a_claim_needs_the_next_fence(raw: sqlite3.Connection) -> None:
    add_run(raw, "a", D)
    for fence in ("fence", "fence + 2", "fence - 1", "0"):
        refused(
            raw, f"UPDATE runs SET state = 'claimed', holder = 'h', fence = {fence}", match="the fence grows by one"
        )
    raw.execute("UPDATE runs SET state = 'claimed', holder = 'h', fence = fence + 1")
    refused(raw, "UPDATE runs SET state = 'running', fence = fence + 1", match="the fence grows by one")
    raw.execute("UPDATE runs SET state = 'running'")


@pytest.mark.parametrize("state", [Q, D, C, R, B])
def test_a_run_that_goes_on_cannot_be_deleted(raw: sqlite3.Connection, state: RunState) -> None:
    add_run(raw, "a", state)
    add_run(raw, "b", RunState.COMPLETED)
    refused(raw, "DELETE FROM runs", match="only a terminal run may be deleted")
    raw.execute("DELETE FROM runs WHERE id = 'b'")


# attempts


def test_an_attempt_starts_with_a_claim_once(raw: sqlite3.Connection) -> None:
    run = add_run(raw, "a", C)
    row = {"run": run, "fence": 1, "state": "preparing", "holder": "h", "remote": 0, "claimed_ms": 1, "request_id": "q"}

    def refuse(verb: str = "INSERT", tail: str = "", **changes: Any) -> None:
        cells = row | changes
        sql = f"{verb} INTO attempts ({', '.join(cells)}) VALUES ({', '.join('?' * len(cells))}) {tail}"
        refused(raw, sql, *cells.values(), match="an attempt starts with a claim, once")

    refuse(fence=2)
    refuse(run=run + 1)
    refuse(state="working")
    refuse(state="failed", **ENDED)
    insert(raw, "attempts", row)
    for verb in ("INSERT", "REPLACE", "INSERT OR REPLACE", "INSERT OR IGNORE"):
        refuse(verb)
    refuse(tail="ON CONFLICT (run, fence) DO UPDATE SET state = 'succeeded'")
    refuse(tail="ON CONFLICT DO NOTHING")

    move_run(raw, run, D)
    refuse(fence=1)
    move_run(raw, run, C)
    refuse("REPLACE", fence=2, request_id="new")  # the first is still live
    move_attempt(raw, run, 1, AttemptState.LAPSED)
    refuse("REPLACE", fence=2)  # its request was answered
    insert(raw, "attempts", row | {"fence": 2, "request_id": "new"})
    move_run(raw, run, R)
    assert raw.execute("SELECT fence, state FROM attempts ORDER BY fence").fetchall() == [
        (1, "lapsed"),
        (2, "preparing"),
    ]


@pytest.mark.parametrize(
    "change", ["run = 2", "fence = 2", "fence = fence + 1", "request_id = 'other'", "request_id = NULL"]
)
@pytest.mark.parametrize("verb", ["UPDATE", "UPDATE OR REPLACE", "UPDATE OR IGNORE"])
def test_the_identity_of_an_attempt_never_changes(raw: sqlite3.Connection, change: str, verb: str) -> None:
    for name in "ab":
        add_attempt(raw, add_run(raw, name, C), request_id=name)
    refused(raw, f"{verb} attempts SET {change} WHERE run = 1", match="the identity of an attempt never changes")


def test_an_attempt_stays_as_long_as_its_run(raw: sqlite3.Connection) -> None:
    run = add_run(raw, "a", C)
    add_attempt(raw, run, state=AttemptState.SUCCEEDED)
    refused(raw, "DELETE FROM attempts", match="an attempt stays as long as its run")
    move_run(raw, run, RunState.COMPLETED)
    refused(raw, "DELETE FROM attempts", match="an attempt stays as long as its run")


# events


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE run_events SET message = 'other'",
        "UPDATE run_events SET seq = 99 WHERE seq = 1",
        "UPDATE run_events SET rowid = 99 WHERE seq = 1",
        "UPDATE OR REPLACE run_events SET seq = 2 WHERE seq = 1",
        "UPDATE OR REPLACE run_events SET rowid = 2 WHERE seq = 1",
        "UPDATE run_events SET run = 2",
        "DELETE FROM run_events",
        "DELETE FROM run_events WHERE seq = 1",
        "INSERT INTO run_events (seq, run, event, at_ms, by) VALUES (1, 1, 'note', 1, 'x')",
        "REPLACE INTO run_events (seq, run, event, at_ms, by) VALUES (1, 1, 'note', 1, 'x')",
        "INSERT OR REPLACE INTO run_events (rowid, run, event, at_ms, by) VALUES (1, 1, 'note', 1, 'x')",
        "INSERT OR IGNORE INTO run_events (seq, run, event, at_ms, by) VALUES (1, 1, 'note', 1, 'x')",
        "INSERT INTO run_events (seq, run, event, at_ms, by) VALUES (1, 1, 'n', 1, 'x') ON CONFLICT DO UPDATE SET run = 2",
        "INSERT INTO run_events (seq, run, event, at_ms, by) VALUES (0, 1, 'note', 1, 'x')",
        "INSERT INTO run_events (seq, run, event, at_ms, by) VALUES (-1, 1, 'note', 1, 'x')",
        "INSERT INTO run_events (seq, run, event, at_ms, by) VALUES (-5, 1, 'note', 1, 'x')",
    ],
)
def test_an_event_is_written_once_and_stays(raw: sqlite3.Connection, sql: str) -> None:
    run = add_run(raw, "a")
    add_event(raw, run)
    add_event(raw, run)
    refused(raw, sql, match="conflict: an event")


def test_an_event_goes_to_the_end_of_the_log(raw: sqlite3.Connection) -> None:
    run = add_run(raw, "a")
    assert [add_event(raw, run), add_event(raw, run, seq=7), add_event(raw, run)] == [1, 7, 8]
    sql = "INSERT INTO run_events (seq, run, event, at_ms, by) VALUES (?, 1, 'note', 1, 'x')"
    refused(raw, sql, 5, match="end of the log")
    assert add_event(raw, run) == 9


def test_a_negative_event_does_not_get_in_first(raw: sqlite3.Connection) -> None:
    run = add_run(raw, "a")
    refused(
        raw, "INSERT INTO run_events (seq, run, event, at_ms, by) VALUES (-1, 1, 'n', 1, 'x')", match="end of the log"
    )
    assert add_event(raw, run) == 1


# slots


def books(connection: sqlite3.Connection) -> dict[str, int]:
    counts = dict(connection.execute("SELECT key, used FROM slot_counts WHERE used <> 0").fetchall())
    assert counts == dict(connection.execute("SELECT key, count(*) FROM slots GROUP BY key").fetchall())
    return counts


@pytest.mark.parametrize("state", sorted(set(RunState) - ACTIVE))
def test_only_an_active_run_takes_slots(raw: sqlite3.Connection, state: RunState) -> None:
    number = add_run(raw, "a", state)
    for verb in ("INSERT", "REPLACE", "INSERT OR IGNORE"):
        refused(raw, f"{verb} INTO slots VALUES (?, 'global')", number, match="by an active run")
    refused(raw, "INSERT INTO slots VALUES (99, 'global')", match="by an active run")


def test_a_slot_is_taken_once_and_never_changed(raw: sqlite3.Connection) -> None:
    number = add_run(raw, "a", D)
    add_run(raw, "b", D)
    add_slots(raw, number, "global", "tag:gpu")
    for verb in ("INSERT", "REPLACE", "INSERT OR REPLACE", "INSERT OR IGNORE"):
        refused(raw, f"{verb} INTO slots VALUES (?, 'global')", number, match="a slot is taken once")
    refused(
        raw, "INSERT INTO slots VALUES (?, 'global') ON CONFLICT DO UPDATE SET key = 'x'", number, match="taken once"
    )
    refused(raw, "UPDATE slots SET run = 2", match="never changed")
    refused(raw, "UPDATE OR REPLACE slots SET key = 'global' WHERE key = 'tag:gpu'", match="never changed")
    assert books(raw) == {"global": 1, "tag:gpu": 1}


@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_an_active_run_keeps_its_slots(raw: sqlite3.Connection, state: RunState) -> None:
    number = add_run(raw, "a", state)
    add_slots(raw, number, "global", "agent:claude", "project:agent:")
    refused(raw, "DELETE FROM slots", match="keeps its slots")
    refused(raw, "DELETE FROM slots WHERE key = 'project:agent:'", match="keeps its slots")
    raw.execute("DELETE FROM slots WHERE key = 'agent:claude'")
    assert books(raw) == {"global": 1, "project:agent:": 1}


@pytest.mark.parametrize(("source", "target"), sorted((s, t) for s, t in RUN.pairs if s in ACTIVE))
def test_slots_are_freed_by_the_move_that_ends_the_right_to_them(
    raw: sqlite3.Connection, source: RunState, target: RunState
) -> None:
    number, other = add_run(raw, "a", source), add_run(raw, "b", D)
    add_slots(raw, number, "global", "tag:gpu")
    add_slots(raw, other, "global")
    move_run(raw, number, target)
    assert books(raw) == ({"global": 2, "tag:gpu": 1} if target in ACTIVE else {"global": 1})


def test_the_books_do_not_go_below_zero(raw: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        raw.execute("INSERT INTO slot_counts VALUES ('global', -1)")


# lane heads


def heads(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT id, head_number, head_priority, head_score FROM lanes ORDER BY id").fetchall()


def heads_by_looking(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    found = []
    for (lane,) in connection.execute("SELECT id FROM lanes ORDER BY id").fetchall():
        head = connection.execute(
            "SELECT number, priority, score FROM runs WHERE lane = ? AND ready = 1"
            " ORDER BY priority DESC, score DESC, number LIMIT 1",
            (lane,),
        ).fetchone()
        found.append((lane, *(head or (None, None, None))))
    return found


def test_heads_are_right_after_a_run_is_added(raw: sqlite3.Connection) -> None:
    for index, (lane, ready, priority, score) in enumerate(product((1, 2), (0, 1), (1, 0, 2), (0.5, 1.0, 0.25))):
        add_run(raw, f"r{index}", lane=lane, ready=ready, priority=priority, score=score)
        assert heads(raw) == heads_by_looking(raw)


SETS = [
    f"{column} = {value}"
    for column, options in {
        "ready": (0, 1, "1 - ready"),
        "priority": (0, 5, -5, "-priority"),
        "score": (0.0, 0.75, 2.0, "1 - score"),
        "lane": (1, 2, "3 - lane"),
        "ready = 1 - ready, lane": ("3 - lane",),
        "ready = 0, priority = 99, lane": (2,),
        "priority = 3 - priority, score": ("-score",),
        "state = 'dispatched', ready": (0,),
    }.items()
    for value in options
]


@pytest.mark.parametrize("sets", SETS)
@pytest.mark.parametrize(
    "chosen", ["1", "number = 1", "number = 4", "number % 2", "lane = 1", "ready = 1", "ready = 0"]
)
def test_heads_are_right_after_any_update(raw: sqlite3.Connection, sets: str, chosen: str) -> None:
    cells = [
        (1, 1, 1, 1.0),
        (1, 1, 1, 0.5),
        (1, 0, 9, 1.0),
        (2, 1, 0, 0.3),
        (2, 1, 0, 0.3),
        (2, 0, 0, 9.0),
        (1, 1, 1, 1.0),
    ]
    for index, (lane, ready, priority, score) in enumerate(cells):
        add_run(raw, f"r{index}", lane=lane, ready=ready, priority=priority, score=score)
    assert heads(raw) == heads_by_looking(raw) == [(1, 1, 1, 1.0), (2, 4, 0, 0.3)]
    raw.execute(f"UPDATE runs SET {sets} WHERE {chosen}")
    assert heads(raw) == heads_by_looking(raw)


def test_a_ready_run_is_queued(raw: sqlite3.Connection) -> None:
    add_run(raw, "a", ready=1)
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        raw.execute("UPDATE runs SET state = 'dispatched'")
    assert heads(raw) == heads_by_looking(raw)


# retention


@pytest.mark.parametrize("foreign_keys", [True, False])
def test_a_terminal_run_is_deleted_with_all_that_belongs_to_it(path: Path, foreign_keys: bool) -> None:
    with opened(path, foreign_keys=foreign_keys) as raw:
        gone, stays = add_run(raw, "a", C), add_run(raw, "b")
        add_attempt(raw, gone, state=AttemptState.SUCCEEDED)
        for run in (gone, stays, gone):
            add_event(raw, run)
        raw.execute("INSERT INTO needs (run, need) VALUES (?, ?)", (stays, gone))
        move_run(raw, gone, RunState.COMPLETED)
        raw.execute("DELETE FROM runs WHERE number = ?", (gone,))
        if not foreign_keys:
            for table in ("attempts", "run_events", "needs"):
                column = "need" if table == "needs" else "run"
                raw.execute(f"DELETE FROM {table} WHERE {column} = ?", (gone,))
        assert raw.execute("SELECT number FROM runs").fetchall() == [(stays,)]
        assert raw.execute("SELECT count(*) FROM attempts").fetchone() == (0,)
        assert raw.execute("SELECT seq, run FROM run_events").fetchall() == [(2, stays)]
        assert raw.execute("SELECT count(*) FROM needs").fetchone() == (0,)
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
        assert add_run(raw, "c") == 3  # a number is never given twice
        assert add_event(raw, stays) == 4


def test_an_event_of_a_deleted_run_does_not_change_either(raw: sqlite3.Connection) -> None:
    run = add_run(raw, "a", RunState.CANCELLED)
    add_event(raw, run)
    raw.execute("DELETE FROM runs")
    refused(raw, "UPDATE run_events SET message = 'x'", match="an event never changes")
    raw.execute("DELETE FROM run_events")
