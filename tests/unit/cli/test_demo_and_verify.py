"""`interlock demo` and `interlock verify` where something is not as usual."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from interlock.cli import demo, demo_yard
from interlock.cli.batch import Batch
from interlock.cli.commands import verify
from interlock.domain.run import Run
from interlock.domain.states import RunState
from interlock.testing import verifying
from interlock.testing.verifying import Finding

# the demo


class Played:
    """`interlock run` of the demo's backlog, in which every task ends as it is told to."""

    def __init__(self, status: int = 0, **otherwise: RunState) -> None:
        self.status = status
        self.otherwise = otherwise
        self.files: list[str] = []

    def __call__(self, session: Any, request: Any, *, at_end: Any) -> int:
        self.files = sorted(str(path) for path in Path().iterdir())
        jobs = self.jobs
        runs = [
            (
                f"id:{job.id}",
                Run(
                    number=number,
                    id=f"r{number}",
                    state=self.otherwise.get(job.id, RunState(job.ends)),
                    task=_task(job.id),
                    content_hash="",
                ),
            )
            for number, job in enumerate(jobs, start=1)
        ]
        at_end(Batch("backlog.yaml", runs))
        return self.status

    jobs: Any = ()


def _task(title: str) -> Any:
    from interlock.domain.task import Task

    return Task(title=title)


@pytest.fixture
def play(desk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the demo be played so, in a folder below this one."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    original = demo_yard.make_yard

    def start(played: Played, *arguments: str, git: bool = True) -> Any:
        def make(yard: Path, *, git: bool) -> Any:
            if git and not able:
                raise subprocess.CalledProcessError(128, "git", stderr=b"fatal: no identity\n")
            played.jobs = original(yard, git=git)
            return played.jobs

        able = git
        monkeypatch.setattr(demo_yard, "make_yard", make)
        monkeypatch.setattr(demo, "run_backlog", played)
        return desk.interlock(*arguments, "demo")

    return start


def test_a_demo_that_goes_as_planned(play: Any) -> None:
    said = play(Played(1))
    assert said.status == 0
    assert "All went as planned" in said.out
    assert "INTERLOCK_DATA" not in said.out


def test_a_demo_that_does_not(play: Any) -> None:
    said = play(Played(1, hang=RunState.COMPLETED))
    assert said.status == 1
    assert "hang is completed, and was to be timed_out" in said.err
    assert "All went as planned" not in said.out
    assert "Look around:" in said.out


def test_a_demo_that_was_interrupted_says_no_more(play: Any) -> None:
    said = play(Played(130))
    assert (said.status, said.out) == (130, "")


def test_a_demo_without_a_git_that_works(play: Any) -> None:
    played = Played(1)
    said = play(played, git=False)
    assert "git does not work here, so the demo goes without: fatal: no identity" in said.err
    assert said.status == 0
    assert "agent.sh" in played.files


def test_a_demo_with_data_elsewhere_says_where(play: Any, tmp_path: Path) -> None:
    said = play(Played(1), "--data", str(tmp_path / "my data"))
    assert f"export INTERLOCK_DATA='{tmp_path / 'my data'}'" in said.out


# verify


def exploring(monkeypatch: pytest.MonkeyPatch, error: BaseException | None = None, **found: Any) -> None:
    """An exploration that ends so, at once."""

    class Exploration(verifying.Exploration):
        def run(self, *_: Any, **__: Any) -> None:
            for name, value in found.items():
                setattr(self, name, value)
            if error is not None:
                raise error

    monkeypatch.setattr(verifying, "Exploration", Exploration)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), BaseExceptionGroup("", [BaseExceptionGroup("", [KeyboardInterrupt()])])]
)
def test_ctrl_c_wherever_it_comes_up(desk: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    exploring(monkeypatch, error)
    said = desk.interlock("verify", "--seconds", "1")
    assert said.status == 130
    assert "Interrupted; up to here:" in said.out


def test_a_fault_of_the_exploration_is_no_finding(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exploring(monkeypatch, BaseExceptionGroup("", [LookupError("odd")]))
    said = desk.interlock("verify", "--seconds", "1")
    assert said.status == 70
    assert "LookupError: odd" in said.err


def test_a_story_too_long_for_a_screen_is_cut(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = tuple(f"step {number}" for number in range(verify.STORY_LINES + 5))
    finding = Finding(how="walk", seed=7, fault="tag:gpu was exceeded", lines=lines, smallest=False)
    exploring(monkeypatch, finding=finding)
    said = desk.interlock("--config", "interlock.yaml", "verify")
    assert said.status == 1
    assert "The story that leads to it, as it was found:" in said.out
    assert (
        f"  {verify.STORY_LINES}. step {verify.STORY_LINES - 1}\n  (and 5 more lines: --json has them all)" in said.out
    )
    assert "To see it again: interlock verify --seed 7 --config interlock.yaml" in said.out
    said = desk.interlock("verify", "--json")
    assert said.status == 1
    assert json.loads(said.out)["finding"]["lines"] == list(lines)


def test_routes_that_cannot_be_read_are_left_out(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exploring(monkeypatch)
    for name in ("interlock.db", "interlock.db-wal"):
        (desk.folder / ".interlock" / name).write_bytes(b"no database at all" * 99)
    said = desk.interlock("verify", "--seconds", "1")
    assert said.status == 0
    assert "verified without routes: " in said.err


def test_a_kit_that_is_broken_is_a_fault_of_ours(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    import interlock.testing

    monkeypatch.delattr(interlock.testing, "verifying")
    monkeypatch.setitem(sys.modules, "interlock.testing.verifying", None)
    assert desk.interlock("verify").status == 70
