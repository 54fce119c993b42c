"""From the commit of a submit to the agent's first instruction, against spawning the same command bare.

The agent is ``date``, which prints the time as the first thing that it does. A run is submitted to a dispatcher that is at rest.
The commit is taken for done when SQLite says so, inside the process that submits (:mod:`benchmarks.recording` stamps it), and not
when the submitter hears of it, which is later: what lies between belongs to the wait.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

import interlock
from benchmarks.daemons import Daemon
from benchmarks.probe import Plan, percentile, say
from benchmarks.recording import commits_stamped
from benchmarks.table import Bound, Row

STAMP = ("/bin/date", "+%s%N")
LOOK_SECONDS = 0.005
PAUSE_SECONDS = 0.01


class Samples:
    """Milliseconds by name; the names that are compared were measured in turn."""

    def __init__(self) -> None:
        self.bare: list[float] = []
        self.from_commit: list[float] = []
        self.from_call: list[float] = []

    def ratio(self, share: float) -> float:
        """Of a percentile, against the same one of a bare spawn."""
        return percentile(self.from_commit, share) / percentile(self.bare, share)


def _bare_ms() -> float:
    with tempfile.TemporaryFile() as output:
        began = time.time_ns()
        subprocess.run(STAMP, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=True)
        output.seek(0)
        return (int(output.read()) - began) / 1e6


async def _sample(samples: Samples, il: interlock.Interlock, commits: list[int]) -> None:
    samples.bare.append(_bare_ms())
    # The dispatcher is to be at rest, as it is when a person submits something.
    await trio.sleep(PAUSE_SECONDS)
    commits.clear()
    began = time.time_ns()
    run = await il.submit("stamp")
    committed = commits[0]
    while not (run := await il.get(run)).terminal:
        await trio.sleep(LOOK_SECONDS)
    story = await il.service.story(run)
    stamped = int((il.data / str(story.attempts[0].folder) / "output.log").read_text())
    samples.from_commit.append((stamped - committed) / 1e6)
    samples.from_call.append((stamped - began) / 1e6)


@asynccontextmanager
async def _in_process(folder: Path) -> AsyncIterator[interlock.Interlock]:
    agent = interlock.Agent(name="stamp", command=STAMP)
    settings = interlock.Settings(agents={"stamp": agent}, default_agent="stamp")
    async with interlock.open(folder / ".interlock", settings) as il:
        yield il


@asynccontextmanager
async def _beside_a_daemon(folder: Path) -> AsyncIterator[interlock.Interlock]:
    with Daemon(folder, " ".join(STAMP), 10) as daemon:
        daemon.start()
        async with interlock.open(folder / ".interlock", folder / "interlock.yaml", dispatch=False) as il:
            yield il


def _measure(plan: Plan, name: str, opened: Callable[[Path], object]) -> Samples:
    samples, count = Samples(), plan.size(200, 5)

    async def main() -> None:
        # What is measured is the commit of the process that submits, which is this one in both cases.
        with commits_stamped() as commits:
            async with opened(plan.place("latency")) as il:  # type: ignore[attr-defined]
                for _ in range(count):
                    await _sample(samples, il, commits)

    trio.run(main)
    say(f"  {name}: p50 {percentile(samples.from_commit, 0.5):.2f} ms, bare {percentile(samples.bare, 0.5):.2f} ms")
    return samples


def rows(plan: Plan) -> list[Row]:
    """Milliseconds, in the process of the dispatcher and from another one."""
    if not Path(STAMP[0]).exists():
        return [Row(what=f"latency: {STAMP[0]} is not there", figure="not measured")]
    inside = _measure(plan, "in process", _in_process)
    other = _measure(plan, "another process", _beside_a_daemon)
    bare = inside.bare + other.bare
    shown = f"p50 {percentile(bare, 0.5):.2f}, p99 {percentile(bare, 0.99):.2f} ms"
    return [
        Row(what="floor: spawn alone to the agent's first instruction", figure=shown),
        *_compared(
            "commit to the agent's first instruction, in process", inside, Bound(must=2, stretch=1.3, at_most=True)
        ),
        *_compared("the same, submitted by another process", other, Bound(must=2.5, stretch=1.6, at_most=True)),
    ]


def _compared(what: str, samples: Samples, bound: Bound) -> list[Row]:
    called = percentile(samples.from_call, 0.5)
    return [
        Row(
            what=f"{what}, p50",
            figure=f"{percentile(samples.from_commit, 0.5):.2f} ms ({called:.2f} ms from the call of submit)",
            against="spawn alone, p50",
            value=samples.ratio(0.5),
            bound=bound,
        ),
        Row(
            what=f"{what}, p99",
            figure=f"{percentile(samples.from_commit, 0.99):.2f} ms",
            against="spawn alone, p99",
            value=samples.ratio(0.99),
        ),
    ]
