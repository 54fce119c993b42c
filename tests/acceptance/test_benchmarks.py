"""The benchmark suite works: every row of it, small. Its figures are not judged here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEASURED = (
    "floor: the same",
    "durable lifecycles through the service",
    "finished runs in the database",
    "out of a backlog of",
    "commit to the agent's first instruction, in process, p50",
    "submitted by another process, p50",
    "floor: xargs",
    "the whole command",
    "99.9 % of them ahead in one full lane",
    "50 lanes, free",
    "memory of the daemon per active run",
    "memory of the daemon per queued run",
    "start-up with",
    "agents at once",
    "CPU of the daemon",
    "database per finished run",
    "each pruned before the next",
    "durable claims over HTTP, 32 connections",
    "offer to claim under a long poll",
    "memory of a waiting agent",
)
PEERS = ("huey", "procrastinate", "litequeue", "GNU parallel", "hypercorn")


@pytest.mark.slow
def test_every_row_is_measured_and_nothing_is_left_running(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--small", "--folder", str(tmp_path)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for words in MEASURED:
        (row, *_) = [line for line in lines if words in line]
        figure = row.split("|")[2]
        assert any(character.isdigit() for character in figure), row
    for peer in PEERS:
        rows = [line for line in lines if peer in line]
        # One that is not there is named all the same.
        assert rows, peer
        assert all(any(mark in row for mark in ("/s)", "not installed")) for row in rows), rows
    assert "missed" not in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert _with(str(tmp_path)) == []


@pytest.mark.parametrize(
    "words", [["--only", "nonsense"], ["--write", "--small"], ["--write", "--only", "run"], ["--times", "0"]]
)
def test_what_makes_no_sense_is_refused(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "usage:" in done.stderr
    assert "Traceback" not in done.stderr


def _with(folder: str) -> list[str]:
    """Processes whose environment or working folder speaks of ``folder``."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            speaks = folder.encode() in (process / "environ").read_bytes() or folder in os.readlink(process / "cwd")
        except OSError:
            continue
        if speaks and int(process.name) != os.getpid():
            found.append((process / "cmdline").read_text("utf-8", "replace"))
    return found
