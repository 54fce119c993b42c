"""Full lifecycles through the service (submit, dispatch and claim, start, complete), without processes, 64 at once.

The floor is what SQLite alone takes for the same: see :mod:`benchmarks.recording`. It is recorded on, and replayed on, a copy of
the database that the service is measured on.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import trio

from benchmarks.filling import SETTINGS, add_finished
from benchmarks.probe import Plan, in_turn, say
from benchmarks.recording import Statement, recorded, replay
from benchmarks.table import Bound, Row
from interlock.domain.task import Task
from interlock.service import Service
from interlock.service.claims import claim_of
from interlock.store.clock import SystemClock
from interlock.store.sqlite import SqliteStore

AT_ONCE = 64
STEPS = 4
"""Calls of the service in a lifecycle; dispatch and claim are one."""
STEPS_PER_TRANSACTION = 100


async def drive(folder: Path, each: int, *, warm: int = 2) -> float:
    """``AT_ONCE`` tasks that take runs through their lives, ``each`` of them so many. Lifecycles per second."""
    with closing(SqliteStore(folder, create=True)) as store:
        service = Service(store, SystemClock(), SETTINGS)

        async def live(times: int) -> None:
            for _ in range(times):
                await service.submit(Task(title="x"))
                done = await service.dispatch(owner="me", bound=1)
                for run, _ in done.claimed:
                    claim = claim_of(run)
                    await service.start(claim)
                    await service.complete(claim)

        async def all_live(times: int) -> float:
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                for _ in range(AT_ONCE):
                    nursery.start_soon(live, times)
            return trio.current_time() - began

        await all_live(warm)
        return AT_ONCE * each / await all_live(each)


def record(folder: Path, each: int) -> list[Statement]:
    """The statements of so many lifecycles on the database in ``folder``."""
    with recorded() as recording:
        trio.run(lambda: drive(folder, each, warm=0))
    return recording.written()


def rows(plan: Plan) -> list[Row]:
    """Lifecycles per second against the same SQL bare, and with a million finished runs in the file."""
    each, small, large = plan.size((60, 1_000, 1_000_000), (2, 100, 2_000))
    few, many = plan.place("few"), plan.place("many")
    say(f"lifecycles: databases with {small:,} and {large:,} finished runs")
    add_finished(few, small)
    add_finished(many, large)
    statements = record(_copy(plan, few), each)
    lives = AT_ONCE * each
    transactions = max(1, round(lives * STEPS / STEPS_PER_TRANSACTION))

    def bare() -> float:
        folder = _copy(plan, few)
        rate = lives / replay(folder / "interlock.db", statements, transactions=transactions)
        shutil.rmtree(folder)
        return rate

    def ours() -> float:
        folder = _copy(plan, few)
        rate = trio.run(drive, folder, each)
        shutil.rmtree(folder)
        return rate

    done = in_turn({"bare": bare, "ours": ours, "ours, large": lambda: trio.run(drive, many, each)}, plan.times)
    shutil.rmtree(many)
    return [
        Row(
            what=f"floor: the same {len(statements) / lives:.0f} SQL statements per lifecycle, bare, "
            f"in transactions of {STEPS_PER_TRANSACTION} steps",
            figure=f"{done.median('bare'):,.0f}/s",
        ),
        Row(
            what=f"durable lifecycles through the service, {AT_ONCE} at once",
            figure=f"{done.median('ours'):,.0f}/s",
            against="the floor",
            value=done.ratio("ours", "bare"),
            bound=Bound(must=0.5, stretch=0.7),
        ),
        Row(
            what=f"the same with {large:,} finished runs in the database",
            figure=f"{done.median('ours, large'):,.0f}/s",
            against=f"with {small:,}",
            value=done.ratio("ours, large", "ours"),
            bound=Bound(must=0.75, stretch=0.9),
        ),
    ]


def _copy(plan: Plan, folder: Path) -> Path:
    target = plan.place("copy")
    shutil.copytree(folder, target, dirs_exist_ok=True)
    return target
