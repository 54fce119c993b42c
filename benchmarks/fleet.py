"""A daemon with a thousand agents: how soon all run, what it costs in memory and CPU, how soon a new one has taken them up.

The agents are real `sleep` processes, started by a keeper. What is looked at is what anybody could see: the database, /proc.
"""

from __future__ import annotations

import statistics
import time
from contextlib import closing

import trio

from benchmarks.daemons import Daemon
from benchmarks.filling import add_finished
from benchmarks.probe import Plan, say
from benchmarks.table import Bound, Row
from interlock.domain.places import DATA_FOLDER
from interlock.domain.settings import Settings
from interlock.domain.task import Task
from interlock.service import Service
from interlock.store.clock import SystemClock
from interlock.store.sqlite import SqliteStore

SLEEP = "sleep 3600"
QUEUED_AT_ONCE = 1000


def rows(plan: Plan) -> list[Row]:
    """A daemon with agents at work, then one that finds them at its start beside a million finished runs."""
    return [*_at_work(plan), *_start_up(plan)]


def submit_beside(daemon: Daemon, count: int) -> None:
    """Queue ``count`` runs from this process, in transactions of a thousand."""

    async def main() -> None:
        with closing(SqliteStore(daemon.data, create=True)) as store:
            service = Service(store, SystemClock(), Settings())
            for start in range(0, count, QUEUED_AT_ONCE):
                await service.submit_all([Task(title="asleep")] * min(QUEUED_AT_ONCE, count - start))

    trio.run(main)


def fill_up(daemon: Daemon, count: int) -> float:
    """Submit until ``count`` agents run in all; seconds until the last of them is confirmed to be at work."""
    began = time.perf_counter()
    submit_beside(daemon, count - daemon.running())
    daemon.until(lambda: daemon.running() == count)
    return time.perf_counter() - began


def _at_work(plan: Plan) -> list[Row]:
    many, few, queued, watched = plan.size((1_000, 100, 100_000, 10.0), (20, 5, 1_000, 1.0))
    took, idle, per_active, per_queued, noise = [], [], [], [], []
    for turn in range(plan.times):
        with Daemon(plan.place("fleet"), SLEEP, many) as daemon:
            daemon.start()
            fill_up(daemon, few)
            daemon.rest()
            before = daemon.memory_kb()
            fill_up(daemon, many)
            daemon.rest()
            after = daemon.memory_kb()
            per_active.append((after - before) / (many - few))
            cpu, began = daemon.cpu_seconds(), time.perf_counter()
            time.sleep(watched)
            idle.append(100 * (daemon.cpu_seconds() - cpu) / (time.perf_counter() - began))
            quiet = daemon.memory_kb()
            # What the first thousand take is the same for any number: caches, statements.
            submit_beside(daemon, queued // 10)
            daemon.rest()
            some = daemon.memory_kb()
            submit_beside(daemon, queued)
            daemon.rest()
            per_queued.append((daemon.memory_kb() - some) / queued)
            noise.append(abs(quiet - after) / queued)
        with Daemon(plan.place("fleet"), SLEEP, many) as daemon:
            daemon.start()
            took.append(fill_up(daemon, many))
        say(
            f"  round {turn + 1} of {plan.times}: {many} agents in {took[-1]:.2f} s, idle {idle[-1]:.2f} %, "
            f"{per_active[-1]:.1f} KiB each, {per_queued[-1]:.4f} KiB per queued run"
        )
    return [
        _row(
            f"memory of the daemon per active run, from {few:,} to {many:,}",
            statistics.median(per_active),
            Bound(must=40, stretch=20, at_most=True, unit=" KB"),
            "anonymous memory of the process",
        ),
        # 0 is asked for. What is under 50 bytes cannot be told from nothing, and is no run kept in memory.
        _row(
            f"memory of the daemon per queued run, with {queued:,} more",
            round(max(0.0, statistics.median(per_queued)), 1),
            Bound(must=0, stretch=0, at_most=True, unit=" KB"),
            f"{statistics.median(per_queued) * 1024:.1f} bytes; between two looks at a daemon at rest "
            f"{max(noise) * 1024:.1f} bytes; SQLite's page cache of at most 32 MiB a connection is in it",
        ),
        _row(
            f"{many:,} agents at once (`{SLEEP}`), from their submit by another process until all run",
            statistics.median(took),
            Bound(must=10, stretch=3, at_most=True, unit=" s"),
        ),
        _row(
            f"CPU of the daemon with {many:,} agents when nothing happens, over {watched:g} s",
            statistics.median(idle),
            Bound(must=1, stretch=0.2, at_most=True, unit=" %"),
        ),
    ]


def _start_up(plan: Plan) -> list[Row]:
    finished, active = plan.size((1_000_000, 1_000), (2_000, 20))
    folder = plan.place("start")
    say(f"start-up: a database with {finished:,} finished runs and {active:,} active ones")
    add_finished(folder / DATA_FOLDER, finished)
    opened, adopted, rested = [], [], []
    with Daemon(folder, SLEEP, active) as daemon:
        daemon.start()
        fill_up(daemon, active)
        for turn in range(plan.times):
            daemon.kill()
            began = time.perf_counter()
            opened.append(daemon.start())
            daemon.until(lambda: daemon.running() == active)
            adopted.append(time.perf_counter() - began)
            cpu = daemon.cpu_seconds()
            daemon.rest()
            rested.append(daemon.cpu_seconds() - cpu)
            say(f"  round {turn + 1} of {plan.times}: open after {opened[-1]:.2f} s, adopted after {adopted[-1]:.2f} s")
    return [
        _row(
            f"start-up with {finished:,} finished and {active:,} active runs of a killed daemon, until all are adopted "
            "and the door is open",
            statistics.median(adopted),
            Bound(must=3, stretch=1, at_most=True, unit=" s"),
            f"open after {statistics.median(opened):.2f} s; until it is at rest another {statistics.median(rested):.2f} s of CPU",
        )
    ]


def _row(what: str, value: float, bound: Bound, more: str = "") -> Row:
    figure = f"{value:.3g}{bound.unit}"
    return Row(what=what, figure=f"{figure} ({more})" if more else figure, value=value, bound=bound)
