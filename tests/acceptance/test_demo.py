"""`interlock demo`: as planned, in time, without the user's data or network."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

SECONDS = 20.0


def test_the_demo_ends_as_planned_and_in_time(yard: Any) -> None:
    yard.env["TMPDIR"] = str(yard.folder)
    began = time.monotonic()
    done = yard.interlock("demo")
    took = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All went as planned" in done.stdout
    assert "23 completed" in done.stdout
    # A machine that has more to do than it can is no fault of the demo.
    if os.getloadavg()[0] < 2 * (os.cpu_count() or 1):
        assert took < SECONDS
    (folder,) = yard.folder.glob("interlock-demo-*")
    assert (folder / "out" / "public" / "report.md").read_text().startswith("# The month")
    assert "goes on" not in done.stderr
    # what it says to look at next is there
    yard.folder = folder
    for command in (["ps", "--all"], ["show", "#18"], ["why", "#9"], ["logs", "#9"], ["diagram", "--run", "#18"]):
        looked = yard.interlock(*command)
        assert looked.returncode == 0, (command, looked.stderr)
    again = yard.interlock("run", "backlog.yaml")
    assert again.returncode == 1
    assert "23 done before (skipped)" in again.stderr


def test_the_demo_can_be_removed_and_goes_without_git(yard: Any) -> None:
    tools = yard.folder / "tools"
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("*") if Path(folder).is_dir() else ():
            target = tools / program.name
            if program.name != "git" and not target.is_symlink():
                target.symlink_to(program)
    assert shutil.which("git", path=str(tools)) is None
    yard.env |= {"TMPDIR": str(yard.folder), "PATH": str(tools)}
    done = yard.interlock("demo", "--remove")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "git is not installed" in done.stderr
    assert "20 completed" in done.stdout
    assert not list(yard.folder.glob("interlock-demo-*"))


@pytest.mark.parametrize("how", ["option", "environment"])
def test_the_demo_leaves_data_of_the_user_alone(yard: Any, how: str) -> None:
    yard.env["TMPDIR"] = str(yard.folder)
    yard.interlock("init")
    if how == "option":
        done = yard.interlock("demo", "--data", ".interlock")
        assert done.returncode == 4
        assert "there is data in" in done.stderr
    else:
        yard.env["INTERLOCK_DATA"] = str(yard.folder / ".interlock")
        assert yard.interlock("demo", "--remove").returncode == 0
    assert yard.runs() == []
