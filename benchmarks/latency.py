"""Enqueue to start: from the call of submit to the agent's first instruction, against spawning the same command bare."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import trio

import interlock

SAMPLES = 100


def _bare_ms(stamp: list[str]) -> float:
    took = []
    for _ in range(SAMPLES):
        began = time.time_ns()
        done = subprocess.run(stamp, capture_output=True, check=True)
        took.append((int(done.stdout) - began) / 1e6)
    return statistics.median(took)


async def _durable_ms(folder: Path, stamp: list[str]) -> tuple[float, float]:
    settings = interlock.Settings(
        agents={"stamp": interlock.Agent(name="stamp", command=tuple(stamp))}, default_agent="stamp"
    )
    took = []
    async with interlock.open(folder / ".interlock", settings) as il:
        for _ in range(SAMPLES):
            began = time.time_ns()
            run = await il.wait(await il.submit("stamp"))
            story = await il.service.story(run)
            log = il.data / str(story.attempts[0].folder) / "output.log"
            took.append((int(log.read_text()) - began) / 1e6)
    took.sort()
    return statistics.median(took), took[int(len(took) * 0.99) - 1]


def rows() -> list[tuple[str, str, str]]:
    """Table rows: what, milliseconds, against a bare spawn."""
    # The shell's own clock would cost a process; date is the first instruction that can tell the time.
    stamp = ["/bin/date", "+%s%N"]
    if not os.access(stamp[0], os.X_OK):
        return []
    with tempfile.TemporaryDirectory() as folder:
        bare = _bare_ms(stamp)
        p50, p99 = trio.run(_durable_ms, Path(folder), stamp)
    return [
        ("spawn alone, to the first instruction", f"{bare:.2f} ms", "the floor"),
        ("submit to the agent's first instruction, p50", f"{p50:.2f} ms", f"{p50 / bare:.1f} x of a spawn alone"),
        ("the same, p99", f"{p99:.2f} ms", f"{p99 / bare:.1f} x"),
    ]
