"""``interlock verify`` as a person uses it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

CONFIG = """
dispatch:
  defaultAgent: counter
  concurrency: {global: 3, perTag: {gpu: 1, never: 0}}
agents:
  counter: wc -w
  careful: {command: "touch started", maxConcurrent: 2}
"""
BROKEN = """
from interlock.service import dispatching

whole = dispatching.saturated
dispatching.saturated = lambda keys, used, limits: [
    one for one in whole(keys, used, limits) if not one.key.startswith("tag:gpu")
]
"""
MISSING = "raise ModuleNotFoundError('no hypothesis', name='hypothesis')\n"


def left_by(pid: int) -> list[Path]:
    """Folders of an exploration of that process."""
    places = {Path("/dev/shm"), Path(tempfile.gettempdir())}
    return [path for place in places for path in place.glob(f"interlock-verify-{pid}-*")]


def python_path(yard: Any, name: str, text: str) -> None:
    """Let every Python that is started in the yard find a module."""
    folder = yard.folder / "modules"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    yard.env["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_says_what_was_explored_and_touches_nothing(yard: Any) -> None:
    yard.write("interlock.yaml", CONFIG)
    assert yard.interlock("init").returncode == 0
    assert yard.interlock("routes", "set", "review", "careful").returncode == 0
    assert yard.interlock("routes", "set", "build", "nobody").returncode == 0
    before = contents(yard.folder)
    done = yard.interlock("verify", "--seconds", "4")
    assert (done.returncode, done.stderr) == (0, "")
    assert "interlock.yaml, with 2 routes, explored for" in done.stdout
    assert re.search(r"\d+ walks? \(\d+ steps\), \d+ simulations? \(\d+ hours\), \d+ runs", done.stdout)
    assert re.search(r"^tag:gpu +1 +[01] ", done.stdout, re.MULTILINE)
    assert "note: the limit tag:never is 0: nothing of tag 'never' ever starts" in done.stdout
    assert "note: the route of type 'build' can never be taken" in done.stdout
    assert done.stdout.endswith("No invariant failed.\n")
    assert contents(yard.folder) == before, "no agent was started, and the database is as it was"


def test_json(yard: Any) -> None:
    yard.write("other.yaml", CONFIG)
    done = yard.interlock("verify", "--seconds", "2", "--json", "--config", "other.yaml")
    assert done.returncode == 0
    data = json.loads(done.stdout)
    assert data["config"] == "other.yaml"
    assert data["finding"] is None
    assert data["explored"]["walks"] >= 1
    assert data["explored"]["limits"]["tag:never"] == {"cap": 0, "highest": 0, "filled": 0}
    assert set(data["explored"]["events"]) >= {"submit", "dispatch"}
    assert not (yard.folder / ".interlock").exists()


def test_without_a_configuration_the_defaults_are_explored(yard: Any) -> None:
    done = yard.interlock("verify", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No interlock.yaml: the defaults, with 0 routes" in done.stdout
    assert "a stand-in did the work here" in done.stdout


def test_a_fault_of_the_configuration_is_named(yard: Any) -> None:
    yard.write("interlock.yaml", "dispatch:\n  concurrency: {globl: 3}\n")
    done = yard.interlock("verify")
    assert done.returncode == 2
    assert "interlock.yaml:2" in done.stderr
    assert "globl" in done.stderr


@pytest.mark.parametrize("arguments", [("--seconds", "0"), ("--seconds", "-1"), ("--seconds", "x"), ("--seed", "-1")])
def test_wrong_numbers_are_refused(yard: Any, arguments: tuple[str, ...]) -> None:
    done = yard.interlock("verify", *arguments)
    assert done.returncode == 2
    assert arguments[0] in done.stderr


def test_without_the_extra_it_says_what_to_install(yard: Any) -> None:
    python_path(yard, "hypothesis.py", MISSING)
    done = yard.interlock("verify")
    assert done.returncode == 5
    assert "needs the extra `testing`, and hypothesis is not installed" in done.stderr
    assert "pip install 'interlock[testing]'" in done.stderr
    imported = subprocess.run(
        [sys.executable, "-c", "import interlock.testing"], env=yard.env, capture_output=True, text=True, check=False
    )
    assert imported.stderr.endswith(
        "interlock.testing needs Hypothesis, which is not installed: pip install 'interlock[testing]'\n"
    )
    assert yard.interlock("ps", "--data", "nowhere").returncode == 3, "nobody else needs it"


def test_a_failure_is_told_as_a_small_story_that_can_be_seen_again(yard: Any) -> None:
    yard.write("mine.yaml", CONFIG)
    python_path(yard, "sitecustomize.py", BROKEN)
    done = yard.interlock("verify", "--seconds", "60", "--config", "mine.yaml")
    assert done.returncode == 1, done.stdout + done.stderr
    how = re.search("An invariant failed, in a (walk|simulation):", done.stdout)
    assert how is not None
    assert "tag:gpu" in done.stdout
    story = re.findall(r"^  (\d+)\. (.*)$", done.stdout, re.MULTILINE)
    assert [int(number) for number, _ in story] == list(range(1, len(story) + 1))
    assert len(story) <= 60
    if how[1] == "walk":
        assert len(story) <= 10
        assert "dispatch by" in story[-1][1]
    again = re.search(
        r"Seed \d+\. To see it again: interlock (verify --seed \d+ --config mine\.yaml)$", done.stdout, re.MULTILINE
    )
    assert again is not None
    replayed = yard.interlock(*shlex.split(again[1]))
    assert replayed.returncode == 1
    assert "tag:gpu" in replayed.stdout
    if how[1] == "walk":
        assert re.findall(r"^  (\d+)\. (.*)$", replayed.stdout, re.MULTILINE) == story


def test_ctrl_c_stops_at_once_with_what_was_explored(yard: Any) -> None:
    yard.write("interlock.yaml", CONFIG)
    shown = yard.terminal("verify", "--seconds", "3600", columns=120)
    shown.expect(r"[1-9]\d* walks? \(\d+ steps\)")
    assert left_by(shown.pid)
    shown.sendintr()
    shown.expect("Interrupted; up to here:")
    shown.expect("No invariant failed")
    shown.read()
    shown.close()
    assert shown.exitstatus == 130
    assert left_by(shown.pid) == []


def test_a_signal_away_from_a_terminal_does_the_same(yard: Any) -> None:
    yard.write("interlock.yaml", CONFIG)
    process = yard.start("verify", "--seconds", "3600")
    yard.until(lambda: left_by(process.pid), "it explores")
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted; up to here:" in out
    assert err == ""
    assert left_by(process.pid) == []


def test_no_other_command_needs_the_kit(yard: Any) -> None:
    yard.interlock("init")
    check = (
        "import sys; from interlock.__main__ import LazyHost; from interlock.cli.main import execute; "
        "assert [execute(LazyHost(), words.split()) for words in "
        "('--help', 'verify --help', 'ps', 'add x', 'limits', 'stats', 'config check')] == [0] * 7; "
        "print([name for name in sys.modules if name.startswith(('interlock.testing', 'hypothesis', 'pytest'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=yard.folder, env=yard.env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
