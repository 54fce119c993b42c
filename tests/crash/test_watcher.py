"""The witness itself: one that sees nothing would let every campaign pass."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_watcher import Watcher, agents_of
from crash_yard import until

Starter = Callable[[str, int], Any]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """A process that looks like an agent's; ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def make(run: str, fence: int) -> subprocess.Popen[bytes]:
        marks = {"INTERLOCK_DATA": str(tmp_path), "INTERLOCK_RUN_ID": run, "INTERLOCK_FENCE": str(fence)}
        started.append(subprocess.Popen(["sleep", "60"], env={**os.environ, **marks}))
        until(lambda: any(seen.pid == started[-1].pid for seen in agents_of(str(tmp_path))))
        return started[-1]

    yield make
    for process in started:
        process.kill()
        process.wait()


def sampled(data: Path, *, limit: int = 9, **tags: int) -> Watcher:
    watcher = Watcher(str(data), limit, tags, lambda run: ("gpu",) if run.startswith("g") else ())
    watcher.sample()
    return watcher


def test_two_fences_of_a_run_at_once_are_seen(tmp_path: Path, start: Starter) -> None:
    start("a", 1)
    start("b", 2)
    assert sampled(tmp_path).faults == []
    start("a", 2)
    (fault,) = sampled(tmp_path).faults
    assert "run a lives under fences [1, 2] at once" in fault


def test_a_limit_that_is_exceeded_is_seen(tmp_path: Path, start: Starter) -> None:
    for run in ("a", "g1", "g2"):
        start(run, 1)
    start("a", 1)
    assert sampled(tmp_path, limit=3, gpu=2).faults == []
    assert "3 runs live under a limit of 2" in sampled(tmp_path, limit=2).faults[0]
    assert "2 runs with tag gpu live under a limit of 1" in sampled(tmp_path, gpu=1).faults[0]


def test_the_dead_and_strangers_are_not_counted(tmp_path: Path, start: Starter) -> None:
    process = start("a", 1)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    start("a", 2)
    assert [seen.fence for seen in agents_of(str(tmp_path))] == [2]
    assert agents_of(str(tmp_path / "elsewhere")) == []
    assert sampled(tmp_path).faults == []
