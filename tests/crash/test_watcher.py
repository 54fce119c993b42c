"""The witness itself: one that sees nothing would let every campaign pass."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_watcher import Watch, agents_of
from crash_witness import Witness
from crash_yard import until

Starter = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """A process that looks like an agent's; ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def make(run: str, fence: int, *, command: list[str] | None = None) -> subprocess.Popen[bytes]:
        marks = {"INTERLOCK_DATA": str(tmp_path), "INTERLOCK_RUN_ID": run, "INTERLOCK_FENCE": str(fence)}
        wanted = command or ["sleep", "60"]
        started.append(subprocess.Popen(wanted, env={**os.environ, **marks}, start_new_session=command is not None))
        until(lambda: any(seen.pid == started[-1].pid for seen in agents_of(str(tmp_path))))
        return started[-1]

    yield make
    for process in started:
        process.kill()
        process.wait()


def sampled(data: Path, *, limit: int = 9, **tags: int) -> Watch:
    (data / "tags").write_text("g1 gpu\ng2 gpu\n")
    watch = Watch(str(data), limit, tags, data / "tags")
    watch.sample()
    return watch


def test_two_fences_of_a_run_at_once_are_seen(tmp_path: Path, start: Starter) -> None:
    start("a", 1)
    start("b", 2)
    assert sampled(tmp_path).faults == []
    start("a", 2)
    (fault,) = sampled(tmp_path).faults
    assert "run a lives under fences [1, 2] at once" in fault


def test_an_attempt_that_was_started_twice_is_seen(tmp_path: Path, start: Starter) -> None:
    script = tmp_path / "agent.sh"
    script.write_text("sleep 60 & wait")
    agent = ["/bin/sh", str(script)]
    start("a", 1, command=agent)
    start("a", 1)
    start("b", 1, command=agent)
    assert sampled(tmp_path).faults == []
    start("a", 1, command=agent)
    (fault,) = sampled(tmp_path).faults
    assert "run a was started twice under fence 1" in fault


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


def test_the_witness_is_a_process_of_its_own_that_says_what_it_sees_at_once(tmp_path: Path, start: Starter) -> None:
    (tmp_path / "tags").touch()
    with Witness(tmp_path, tmp_path / "report", tmp_path / "tags", 2, {}) as witness:
        start("a", 1)
        start("a", 2)
        until(lambda: witness.faults)
    assert "run a lives under fences [1, 2] at once" in witness.faults[0]
    assert witness.samples > 0
    assert witness.sums["runs"] == 1


def test_a_witness_that_died_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "tags").touch()
    witness = Witness(tmp_path, tmp_path / "report", tmp_path / "tags", 2, {}).__enter__()
    assert witness._process is not None
    witness._process.kill()
    witness._process.wait()
    with pytest.raises(AssertionError, match="ended before its time"):
        witness.__exit__()
