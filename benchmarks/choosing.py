"""Choose-next: one decision of the dispatcher with a million queued, against one with a thousand.

A decision is all that admits one run: choose it, check every limit, move it, take its slots, two events, the attempt. It is
measured inside its transaction, which is then undone, so that the next one finds the same queue; the commit is left out, since it
costs the same whatever is queued and would hide the difference.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from random import Random

import msgspec

from benchmarks.filling import copy_queued, submit
from benchmarks.probe import Plan, in_turn, say
from benchmarks.table import Bound, Row
from interlock.domain.settings import Agent, Limits, Settings
from interlock.domain.task import Task
from interlock.ports.store import Tx
from interlock.service import dispatching
from interlock.service.context import Context
from interlock.store.clock import SystemClock
from interlock.store.sqlite import SqliteStore

DECISIONS = 200
FEWEST = 5
LONGEST_SECONDS = 5.0
"""A decision that takes long is not taken 200 times."""
SETTINGS = Settings(agents={"a": Agent(name="a", command="true")}, default_agent="a", limits=Limits(total=1000))


class Queue(msgspec.Struct, frozen=True):
    """A queue to choose from: ``lanes`` of equal length, the first ``full`` of them without room and ahead of the others."""

    words: str
    queued: int
    lanes: int = 1
    full: int = 0
    spare: int = 0
    """Runs of the lanes with room, when they are to be shorter than the full ones; 0: all lanes are equal."""

    def settings(self) -> Settings:
        """With the limits that make the first lanes full."""
        limits = Limits(total=1000, per_role={f"role-{number}": 0 for number in range(self.full)})
        return msgspec.structs.replace(SETTINGS, limits=limits)

    def fill(self, folder: Path) -> None:
        """Make it."""
        tasks = [
            Task(title="x", role=f"role-{number}" if self.lanes > 1 else None, priority=9 if number < self.full else 0)
            for number in range(self.lanes)
        ]
        numbers = submit(folder, tasks, self.settings())
        if self.spare:
            ahead, behind = numbers[: self.full], numbers[self.full :]
            copy_queued(folder, ahead, (self.queued - self.spare) // len(ahead) - 1)
            if self.spare > len(behind):
                copy_queued(folder, behind, self.spare // len(behind) - 1)
        elif self.queued > self.lanes:
            copy_queued(folder, numbers, self.queued // self.lanes - 1)


class _Undo(Exception):
    """Takes a decision back."""


def decide_us(store: SqliteStore, settings: Settings, decisions: int) -> float:
    """Median microseconds of one decision."""
    ctx = Context(now_ms=SystemClock().now_ms(), rng=Random(1), settings=settings)
    took: list[float] = []

    def decide(tx: Tx) -> None:
        began = time.perf_counter()
        done = dispatching.dispatch(tx, ctx, owner="me", scope=None, bound=1)
        took.append((time.perf_counter() - began) * 1e6)
        assert len(done.claimed) == 1
        raise _Undo

    enough = time.monotonic() + LONGEST_SECONDS
    while len(took) < decisions and (len(took) < FEWEST or time.monotonic() < enough):
        with suppress(_Undo):
            store.write_now(decide)
    return statistics.median(took)


def rows(plan: Plan) -> list[Row]:
    """Microseconds of a decision, by what is queued."""
    few, many, lanes = plan.size((1_000, 1_000_000, 10_000), (100, 1_000, 50))
    floor = Queue(f"{few:,} queued, free", few)
    queues = [
        Queue("free", many),
        Queue("99.9 % of them ahead in one full lane", many, lanes=2, full=1, spare=max(1, many // 1000)),
        Queue(f"{lanes:,} lanes, free", many, lanes=lanes),
        Queue(f"{lanes:,} lanes, all but 10 of them full and ahead", many, lanes=lanes, full=lanes - 10),
    ]
    with ExitStack() as stack:
        measures = {queue.words: _measure(plan, stack, queue) for queue in (floor, *queues)}
        done = in_turn(measures, plan.times)
    base = f"{few:,} queued"
    return [
        Row(what=f"choose-next with {base}", figure=f"{done.median(floor.words):.0f} us"),
        *(
            Row(
                what=f"choose-next with {many:,} queued, {queue.words}",
                figure=f"{done.median(queue.words):.0f} us",
                against=base,
                value=done.ratio(queue.words, floor.words),
                bound=Bound(must=2, stretch=1.3, at_most=True),
            )
            for queue in queues
        ),
    ]


def _measure(plan: Plan, stack: ExitStack, queue: Queue) -> Callable[[], float]:
    folder = plan.place("choose")
    say(f"choose-next: {queue.queued:,} queued, {queue.words}")
    stack.callback(shutil.rmtree, folder)
    queue.fill(folder)
    store = stack.enter_context(closing(SqliteStore(folder, inline=True)))
    settings, decisions = queue.settings(), plan.size(DECISIONS, 5)
    return lambda: decide_us(store, settings, decisions)
