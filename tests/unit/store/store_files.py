"""Database files as another program finds them: the plain sqlite3 module, foreign keys off."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from interlock.domain.states import ATTEMPT_ENDS, HELD_BY_AGENT, TERMINAL, AttemptState, RunState
from interlock.store.sqlite import DATABASE

ENDED = {"reason": "done", "message": "it is over", "ended_ms": 9}

WAY: dict[RunState, list[RunState]] = {
    RunState.QUEUED: [],
    RunState.DISPATCHED: [RunState.DISPATCHED],
    RunState.CLAIMED: [RunState.DISPATCHED, RunState.CLAIMED],
    RunState.RUNNING: [RunState.DISPATCHED, RunState.CLAIMED, RunState.RUNNING],
    RunState.BLOCKED: [RunState.DISPATCHED, RunState.CLAIMED, RunState.BLOCKED],
    RunState.COMPLETED: [RunState.COMPLETED],
    RunState.FAILED: [RunState.FAILED],
    RunState.TIMED_OUT: [RunState.DISPATCHED, RunState.TIMED_OUT],
    RunState.CANCELLED: [RunState.CANCELLED],
}
"""A legal way from queued to every state."""

ATTEMPT_WAY: dict[AttemptState, list[AttemptState]] = {
    AttemptState.PREPARING: [],
    AttemptState.PROMPTING: [AttemptState.PROMPTING],
    AttemptState.LAUNCHING: [AttemptState.PROMPTING, AttemptState.LAUNCHING],
    AttemptState.WORKING: [AttemptState.WORKING],
    AttemptState.ASKING: [AttemptState.WORKING, AttemptState.ASKING],
    AttemptState.FINISHING: [AttemptState.FINISHING],
    **{end: [end] for end in ATTEMPT_ENDS},
}


@contextmanager
def opened(path: Path, *, foreign_keys: bool = False) -> Iterator[sqlite3.Connection]:
    """The file, opened by a program that knows nothing of Interlock."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")
        yield connection


def values(name: str, **changes: Any) -> dict[str, Any]:
    """The columns of a queued run called ``name``."""
    return {
        "id": name,
        "state": "queued",
        "task": '{"title":"t","type":"bug"}',
        "content_hash": "x",
        "base_priority": 0,
        "priority": 0,
        "score": 1.0,
        "lane": 1,
        "ready": 0,
        "held": 0,
        "needs_left": 0,
        "pull": 0,
        "fence": 0,
        "remote": 0,
        "owner_epoch": 0,
        "spent_ms": 0,
        "dispatch_count": 0,
        "failures": 0,
        "losts": 0,
        "defers": 0,
        "offers": 0,
        "releases": 0,
        "created_ms": 1,
        "updated_ms": 1,
    } | changes


def insert(
    connection: sqlite3.Connection, table: str, row: dict[str, Any], verb: str = "INSERT", tail: str = ""
) -> int:
    """One row, as given; returns its rowid."""
    sql = f"{verb} INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))}) {tail}"
    return connection.execute(sql, list(row.values())).lastrowid or 0


def add_run(connection: sqlite3.Connection, name: str, state: RunState = RunState.QUEUED, **changes: Any) -> int:
    """A run that has come to ``state`` in a legal way."""
    number = insert(connection, "runs", values(name, **changes))
    for target in WAY[state]:
        move_run(connection, number, target)
    return number


def move_run(connection: sqlite3.Connection, number: int, target: RunState) -> None:
    """Bring a run to ``target`` with all that belongs to that state, so that only the move itself can be refused."""
    (source,) = connection.execute("SELECT state FROM runs WHERE number = ?", (number,)).fetchone()
    changes: dict[str, Any] = {"state": target, "holder": "h" if target in HELD_BY_AGENT else None}
    changes |= ENDED if target in TERMINAL else {"ended_ms": None}
    sql = f"UPDATE runs SET {', '.join(f'{name} = ?' for name in changes)}"
    if source == RunState.DISPATCHED and target == RunState.CLAIMED:
        sql += ", fence = fence + 1"
    connection.execute(f"{sql} WHERE number = ?", (*changes.values(), number))


def add_attempt(
    connection: sqlite3.Connection,
    run: int,
    fence: int = 1,
    state: AttemptState = AttemptState.PREPARING,
    **changes: Any,
) -> None:
    """An attempt of a claimed run, brought to ``state`` in a legal way."""
    row = {"run": run, "fence": fence, "state": "preparing", "holder": "h", "remote": 0, "claimed_ms": 1} | changes
    insert(connection, "attempts", row)
    for target in ATTEMPT_WAY[state]:
        move_attempt(connection, run, fence, target)


def move_attempt(connection: sqlite3.Connection, run: int, fence: int, target: AttemptState) -> None:
    """Bring an attempt to ``target`` with all that belongs to that state."""
    changes: dict[str, Any] = {"state": target} | (ENDED if target in ATTEMPT_ENDS else {"ended_ms": None})
    assignments = ", ".join(f"{name} = ?" for name in changes)
    connection.execute(
        f"UPDATE attempts SET {assignments} WHERE run = ? AND fence = ?", (*changes.values(), run, fence)
    )


def add_event(connection: sqlite3.Connection, run: int, **changes: Any) -> int:
    """One line of the log; returns its seq."""
    return insert(connection, "run_events", {"run": run, "event": "note", "at_ms": 1, "by": "test"} | changes)


def add_slots(connection: sqlite3.Connection, run: int, *keys: str) -> None:
    """Slots of an active run."""
    for key in keys:
        insert(connection, "slots", {"run": run, "key": key})


def contents(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, and the schema."""
    with opened(path) as connection:
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        ]
        found = {name: connection.execute(f'SELECT * FROM "{name}"').fetchall() for name in names}
        found["sqlite_master"] = connection.execute(
            "SELECT type, name, sql FROM sqlite_master ORDER BY name"
        ).fetchall()
        return found


def python(code: str, *arguments: object, crash_at: str | None = None) -> subprocess.Popen[str]:
    """Another process that runs ``code`` with ``arguments`` as strings in sys.argv."""
    environment = dict(os.environ) | ({"INTERLOCK_CRASH_AT": crash_at} if crash_at else {})
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def database(folder: Path) -> Path:
    """Where a data folder keeps it."""
    return folder / DATABASE
