"""A seed is a story: the same event log byte for byte, whenever and wherever it is played."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import msgspec
import pytest
from simulation_campaign import drawn

from interlock.testing.simulation import Scenario, decode, encode, play

PUSH_SEED, PULL_SEED = 1, 2


def a_scenario(seed: int) -> Scenario:
    return drawn(seed, runs=40, hours=0.7)


def log_of(scenario: Scenario) -> tuple[bytes, str]:
    lines: list[bytes] = []
    story = play(scenario, log=lines.append)
    return b"".join(lines), story.digest


@cache
def log_of_seed(seed: int) -> tuple[bytes, str]:
    return log_of(a_scenario(seed))


@pytest.mark.parametrize("seed", [PUSH_SEED, PULL_SEED])
def test_the_same_seed_gives_the_same_log(seed: int) -> None:
    first, digest = log_of_seed(seed)
    again, _ = log_of(a_scenario(seed))

    assert first == again
    assert first.count(b"\n") > 100
    assert hashlib.sha256(first).hexdigest() == digest


@pytest.mark.parametrize(("seed", "hash_seed"), [(PUSH_SEED, "0"), (PULL_SEED, "4711")])
def test_another_process_plays_the_same(seed: int, hash_seed: str, tmp_path: Path) -> None:
    kept, log = tmp_path / "scenario.json", tmp_path / "log"
    kept.write_bytes(encode(a_scenario(seed)))
    command = [sys.executable, "-m", "interlock.testing.simulation", "--scenario", str(kept), "--log", str(log)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

    # In this process Hypothesis is loaded, and pytest-trio has changed trio's scheduler for its sake.
    assert log.read_bytes() == log_of_seed(seed)[0]


def test_signals_that_the_process_is_sent_change_nothing() -> None:
    heard = 0

    def hear(*_: object) -> None:
        nonlocal heard
        heard += 1

    before = signal.signal(signal.SIGPROF, hear)
    signal.setitimer(signal.ITIMER_PROF, 0.002, 0.002)
    try:
        log, _ = log_of(a_scenario(PUSH_SEED))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)

    assert heard > 10
    assert log == log_of_seed(PUSH_SEED)[0]


def test_another_seed_gives_another_log() -> None:
    assert log_of_seed(PUSH_SEED)[0] != log_of_seed(PULL_SEED)[0]


def test_the_order_of_tasks_and_chance_come_from_the_seed_of_the_scenario() -> None:
    other = msgspec.structs.replace(a_scenario(PUSH_SEED), seed=PUSH_SEED + 100)

    assert log_of_seed(PUSH_SEED)[0] != log_of(other)[0]


def test_a_scenario_is_kept_whole() -> None:
    scenario = a_scenario(PULL_SEED)

    assert decode(encode(scenario)) == scenario
