"""Choose-next: one decision of the dispatcher with N queued runs, free and saturated, against 1,000 queued."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from random import Random

from interlock.domain.settings import Agent, Limits, Settings
from interlock.domain.task import Task
from interlock.service import dispatching, submitting
from interlock.service.context import Context
from interlock.store.sqlite import SqliteStore

NOW_MS = 1_700_000_000_000
DECISIONS = 200


class _Undo(Exception):
    """Takes a decision back, so that the next one finds the same queue."""


def _fill(store: SqliteStore, ctx: Context, queued: int, project: str | None, priority: int) -> None:
    """``queued`` runs of one lane, made by SQL: submitting a million one by one is not what is measured."""

    def fill(tx: dispatching.Tx) -> None:
        task = Task(title="x", project=project, priority=priority)
        run = submitting.submit(tx, ctx, [submitting.Item(task=task)])[0].run
        columns = [row[1] for row in tx.connection.execute("PRAGMA table_info(runs)")]  # type: ignore[attr-defined]
        copied = [name for name in columns if name not in ("number", "id")]
        tx.connection.execute(  # type: ignore[attr-defined]
            "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            f" INSERT INTO runs (id, {', '.join(copied)})"
            f" SELECT 'r{project}' || i, {', '.join('r.' + name for name in copied)} FROM n, runs r WHERE r.number = ?",
            (queued, run.number),
        )

    store.write_now(fill)


def decide_us(queued: int, *, saturated: bool) -> float:
    """Median microseconds of one dispatching decision (choose, check all limits, move, slots, two events, attempt)."""
    settings = Settings(
        agents={"a": Agent(name="a", command="true")},
        default_agent="a",
        limits=Limits(total=1000, per_project={"full": 0}),
    )
    ctx = Context(now_ms=NOW_MS, rng=Random(1), settings=settings)
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder), create=True, inline=True)
        if saturated:
            _fill(store, ctx, queued - max(1, queued // 1000), "full", 9)
            _fill(store, ctx, max(2, queued // 1000), "free", 0)
        else:
            _fill(store, ctx, queued, "free", 0)
        took = []

        def decide(tx: dispatching.Tx) -> None:
            began = time.perf_counter()
            done = dispatching.dispatch(tx, ctx, owner="me", scope=None, bound=1)
            took.append((time.perf_counter() - began) * 1e6)
            assert len(done.claimed) == 1
            raise _Undo

        for _ in range(DECISIONS):
            try:
                store.write_now(decide)
            except _Undo:
                continue
        store.close()
    return statistics.median(took)


def rows(sizes: tuple[int, ...] = (1_000, 100_000, 1_000_000)) -> list[tuple[str, str, str]]:
    """Table rows: what, figure, against 1,000 queued."""
    found: list[tuple[str, str, str]] = []
    for saturated in (False, True):
        name = "99.9 % in a full lane" if saturated else "free"
        base = None
        for size in sizes:
            us = decide_us(size, saturated=saturated)
            base = base or us
            found.append(
                (f"choose-next, {size:,} queued, {name}", f"{us:.0f} us", f"{us / base:.2f} x of 1,000 queued")
            )
    return found
