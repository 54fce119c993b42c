"""Databases with many runs in them, made in SQL from a few that the service made.

A run that is queued, or one that has ended, goes through the service; its rows (run, attempts, events) are then copied with
numbers, ids and times of their own. Queued copies are made with all triggers in force. An ended run cannot be born, which is what
the triggers are for: they are dropped for the time of the copying and made anew, as a migration does.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import trio

from interlock.domain.attempt_files import attempt_folder
from interlock.domain.places import DATABASE
from interlock.domain.settings import Agent, Limits, Settings
from interlock.domain.task import Task
from interlock.service import Service
from interlock.service.claims import claim_of
from interlock.store.clock import SystemClock
from interlock.store.sqlite import SqliteStore
from interlock.store.sqlite.schema import renew_triggers

SETTINGS = Settings(agents={"a": Agent(name="a", command="true")}, default_agent="a", limits=Limits(total=10_000))
APART_MS = 100
"""Time between the ends of two finished runs."""


def submit(folder: Path, tasks: Iterable[Task], settings: Settings = SETTINGS) -> list[int]:
    """Queue ``tasks`` through the service; their numbers. The database is made if there is none."""

    async def main() -> list[int]:
        with closing(SqliteStore(folder, create=True)) as store:
            done = await Service(store, SystemClock(), settings).submit_all(tasks)
        return [each.run.number for each in done]

    return trio.run(main)


def copy_queued(folder: Path, numbers: Sequence[int], copies: int) -> None:
    """``copies`` more of each of the queued runs ``numbers`` (which follow one another), with their events."""
    first, last = min(numbers), max(numbers)
    with closing(_connect(folder)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        behind = connection.execute("SELECT max(number) FROM runs").fetchone()[0]
        _copy_runs(connection, first, last, copies, behind)
        connection.execute("COMMIT")


def add_finished(folder: Path, count: int) -> None:
    """``count`` completed runs more, each with attempt and events, the last one ended now. The database is not in use."""
    number = trio.run(_one_finished, folder)
    if count <= 1:
        return
    with closing(_connect(folder)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f'DROP TRIGGER "{name}"')
        _copy_runs(connection, number, number, count - 1, number)
        connection.create_function("attempt_folder", 3, attempt_folder, deterministic=True)
        generation = connection.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()[0]
        connection.execute(
            "UPDATE attempts SET folder = attempt_folder(run, fence, ?) WHERE run > ? AND folder IS NOT NULL",
            (generation, number),
        )
        renew_triggers(connection)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def _one_finished(folder: Path) -> int:
    with closing(SqliteStore(folder, create=True)) as store:
        service = Service(store, SystemClock(), SETTINGS)
        await service.submit(Task(title="done long ago"))
        (claimed,) = (await service.dispatch(owner="me", bound=1)).claimed
        claim = claim_of(claimed[0])
        await service.start(claim)
        return (await service.complete(claim, result={"ok": True})).number


def _connect(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / DATABASE, isolation_level=None)
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -262144")
    # Nothing is lost that could not be made again; what is measured afterwards opens it with FULL.
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _copy_runs(connection: sqlite3.Connection, first: int, last: int, copies: int, behind: int) -> None:
    """Rows of runs ``first`` to ``last``, ``copies`` times, with numbers from behind ``behind`` on; older ones ended earlier."""
    width, total = last - first + 1, (last - first + 1) * copies
    series = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :copies)"
    number = ":behind + 1 + n.i * :width + (r.number - :first)"
    earlier = f"({APART_MS} * (:total - n.i * :width - (r.number - :first)))"
    values = {"copies": copies, "width": width, "first": first, "last": last, "behind": behind, "total": total}
    for table, key in (("runs", "number"), ("attempts", "run"), ("run_events", "run")):
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        own = {key: number.replace("r.number", f"r.{key}")}
        if table == "runs":
            own["id"] = f"printf('r%012d', {number})"
        copied = [name for name in columns if name != "seq"]
        shift = earlier.replace("r.number", f"r.{key}")
        for name in copied:
            if name.endswith("_ms") and name != "spent_ms" and name not in own:
                own[name] = f"r.{name} - {shift}"
        connection.execute(
            f"{series} INSERT INTO {table} ({', '.join(copied)})"
            f" SELECT {', '.join(own.get(name, f'r.{name}') for name in copied)}"
            f" FROM n, {table} r WHERE r.{key} BETWEEN :first AND :last",
            values,
        )
