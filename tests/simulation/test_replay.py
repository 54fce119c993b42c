"""A seed is a story: the same event log byte for byte, whenever and wherever it is played."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation_campaign import drawn

from interlock.testing.simulation import decode, encode, play

PUSH_SEED, PULL_SEED = 1, 2


def log_of(seed: int) -> tuple[bytes, str]:
    lines: list[bytes] = []
    story = play(drawn(seed, runs=60, hours=1), log=lines.append)
    return b"".join(lines), story.digest


@pytest.mark.parametrize("seed", [PUSH_SEED, PULL_SEED])
def test_the_same_seed_gives_the_same_log(seed: int) -> None:
    first, digest = log_of(seed)
    again, _ = log_of(seed)

    assert first == again
    assert first.count(b"\n") > 100
    assert hashlib.sha256(first).hexdigest() == digest


@pytest.mark.parametrize("seed", [PUSH_SEED, PULL_SEED])
def test_another_process_plays_the_same(seed: int, tmp_path: Path) -> None:
    kept = tmp_path / "scenario.json"
    kept.write_bytes(encode(drawn(seed, runs=60, hours=1)))
    logs = []
    for hash_seed in ("0", "4711"):
        log = tmp_path / f"log-{hash_seed}"
        command = [sys.executable, "-m", "interlock.testing.simulation", "--scenario", str(kept), "--log", str(log)]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        logs.append(log.read_bytes())

    # In this process Hypothesis is loaded, and pytest-trio has changed trio's scheduler for its sake.
    assert logs == [log_of(seed)[0]] * 2


def test_another_seed_gives_another_log() -> None:
    assert log_of(PUSH_SEED)[0] != log_of(PUSH_SEED + 2)[0]


def test_the_order_of_tasks_and_chance_come_from_the_seed_of_the_scenario() -> None:
    import msgspec

    scenario = drawn(PUSH_SEED, runs=60, hours=1)
    other = msgspec.structs.replace(scenario, seed=scenario.seed + 1)

    assert play(scenario).digest != play(other).digest


def test_a_scenario_is_kept_whole() -> None:
    scenario = drawn(PULL_SEED, runs=60, hours=1)

    assert decode(encode(scenario)) == scenario
