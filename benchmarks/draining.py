"""Drain of jobs that do nothing: a long backlog against a short one, and against other queues; see :mod:`benchmarks.drains`."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import postgres
from benchmarks.filling import copy_queued, submit
from benchmarks.probe import Plan, Rounds, in_turn, say
from benchmarks.table import Bound, Row
from interlock.domain.task import Task

OURS = {
    "interlock-agents": "async functions as agents, attempt folders included",
    "interlock-service": "through the service: claim, start, complete",
}
PEERS = {
    "huey": ("huey, tuned, FULL, results kept", False, Bound(must=1.1, stretch=1.5)),
    "procrastinate": ("procrastinate on PostgreSQL", False, Bound(must=8, stretch=15)),
    "litequeue": ("litequeue, FULL", True, Bound(must=10, stretch=50)),
    "huey-forgetful": ("huey, tuned, FULL, nothing kept of a job", False, None),
}
"""Name, whether its backlog is the long one, what is asked of us beside it."""


def missing(kind: str) -> str | None:
    """Why a peer cannot be measured here."""
    module = kind.partition("-")[0]
    if importlib.util.find_spec(module) is None:
        return "not installed"
    if kind == "procrastinate" and (importlib.util.find_spec("psycopg") is None or postgres.programs() is None):
        return "not installed (it needs psycopg and PostgreSQL)"
    return None


def rate(kind: str, folder: Path, backlog: int, count: int) -> float:
    """Jobs per second of one drain, in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.drains", kind, str(folder), str(backlog), str(count)]
    done = subprocess.run(
        words, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    if done.returncode or not done.stdout.strip():
        raise RuntimeError(f"the drain of {kind} ended with {done.returncode}: {done.stderr[-2000:]}")
    return float(done.stdout)


def rows(plan: Plan) -> list[Row]:
    """Jobs per second by kind and backlog."""
    short, long = plan.size((1_000, 100_000), (50, 500))
    say(f"drain: backlogs of {short:,} and {long:,}")
    queues = {size: _queue(plan, size) for size in (short, long)}

    def ours(kind: str, size: int) -> Callable[[], float]:
        def measure() -> float:
            folder = plan.place("drain")
            shutil.copytree(queues[size], folder, dirs_exist_ok=True)
            found = rate(kind, folder, size, short)
            shutil.rmtree(folder)
            return found

        return measure

    def peer(kind: str, size: int, sockets: Path | None) -> Callable[[], float]:
        def measure() -> float:
            folder = sockets or plan.place("peer")
            # One that is slow with a long backlog is not waited for as long.
            found = rate(kind, folder, size, short if size == short else max(1, short // 5))
            if sockets is None:
                shutil.rmtree(folder)
            return found

        return measure

    with ExitStack() as stack:
        measures = {(kind, size): ours(kind, size) for kind in OURS for size in (short, long)}
        there = [kind for kind in PEERS if missing(kind) is None]
        for kind in there:
            sockets = stack.enter_context(postgres.cluster()) if kind == "procrastinate" else None
            size = long if PEERS[kind][1] else short
            measures[kind, size] = peer(kind, size, sockets)
        done = in_turn({f"{kind} {size}": measure for (kind, size), measure in measures.items()}, plan.times)
    found = [row for kind in OURS for row in _by_backlog(done, kind, short, long)]
    return [*found, *(row for kind in PEERS for row in _beside(done, kind, short, long))]


def _queue(plan: Plan, size: int) -> Path:
    folder = plan.place("queue")
    numbers = submit(folder, [Task(title="no-op")])
    copy_queued(folder, numbers, size - 1)
    return folder


def _by_backlog(done: Rounds, kind: str, short: int, long: int) -> list[Row]:
    few, many = f"{kind} {short}", f"{kind} {long}"
    return [
        Row(
            what=f"drain of {short:,} no-op runs out of a backlog of {long:,}, {OURS[kind]}",
            figure=f"{done.median(many):,.0f}/s",
            against=f"out of {short:,} ({done.median(few):,.0f}/s)",
            value=done.ratio(many, few),
            bound=Bound(must=0.8, stretch=0.95),
        )
    ]


def _beside(done: Rounds, peer: str, short: int, long: int) -> list[Row]:
    name, is_long, bound = PEERS[peer]
    size = long if is_long else short
    absent = missing(peer)
    found = []
    for kind, words in OURS.items():
        against = f"{name}: {absent}" if absent else f"{name} ({done.median(f'{peer} {size}'):,.0f}/s)"
        found.append(
            Row(
                what=f"drain of no-op runs, backlog of {size:,}, {words}",
                figure=f"{done.median(f'{kind} {size}'):,.0f}/s",
                against=against,
                value=None if absent else done.ratio(f"{kind} {size}", f"{peer} {size}"),
                bound=bound,
            )
        )
    return found
