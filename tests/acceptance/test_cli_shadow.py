"""`interlock up --shadow`: what it says, that it changes nothing, and that it may run beside a dispatcher."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from typing import Any

import pytest

CONFIG = """
dispatch:
  defaultAgent: worker
  concurrency: {global: 2}
agents:
  worker: {command: "echo $INTERLOCK_RUN_NUMBER >> did; sleep 600"}
"""


class Watched:
    """A shadow whose lines are read as they come."""

    def __init__(self, yard: Any, *arguments: str) -> None:
        self.yard = yard
        self.out = (yard.folder / "shadow.out").open("w")
        self.process = subprocess.Popen(
            [*yard.command, "up", "--shadow", *arguments],
            cwd=yard.folder,
            env=yard.env,
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=subprocess.STDOUT,
        )
        yard.started.append(self.process)

    def said(self) -> str:
        return str(self.yard.read("shadow.out"))

    def until(self, words: str, times: int = 1) -> None:
        self.yard.until(lambda: self.said().count(words) >= times, f"{words!r} in:\n{self.said()}")

    def end(self) -> str:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60) == 0
        self.out.close()
        return self.said()


@pytest.fixture
def desk(yard: Any) -> Any:
    import sys

    yard.command = [sys.executable, "-m", "interlock"]
    yard.write("interlock.yaml", CONFIG)
    assert yard.interlock("init").returncode == 0
    return yard


def contents(yard: Any) -> list[str]:
    with sqlite3.connect(f"file:{yard.folder}/.interlock/interlock.db?mode=ro", uri=True) as database:
        return list(database.iterdump())


def test_it_decides_and_does_nothing(desk: Any) -> None:
    for title in ("one", "two", "three"):
        assert desk.interlock("add", title).returncode == 0
    before = contents(desk)
    shadow = Watched(desk)
    shadow.until("would start #2 by worker (the default)  two")
    shadow.until("#3 waits: the limit of global is full: 2 of 2 in use, by #1, #2  three")
    assert contents(desk) == before
    assert desk.did() == []
    assert not (desk.folder / ".interlock" / "http.sock").exists()
    assert desk.interlock("add", "four").returncode == 0
    shadow.until("#4 waits: the limit of global is full")
    assert shadow.said().count("#3 waits: ") == 1, "a reason that stays is said once"
    assert desk.interlock("close", "1").returncode == 0
    shadow.until("#1 has ended (completed): its slots are free")
    shadow.until("would start #3 by worker")
    assert desk.interlock("pause").returncode == 0
    shadow.until("dispatching is paused: nothing would start")
    said = shadow.end()
    assert "Shadow of a dispatcher" in said
    assert said.endswith("Shadow ends: 3 runs would have been started or offered.\n")
    assert desk.states() == ["completed", "queued", "queued", "queued"]
    assert "no dispatcher is running" in desk.interlock("ps").stdout


def test_it_runs_beside_a_dispatcher(desk: Any) -> None:
    assert desk.interlock("add", "one").returncode == 0
    shadow = Watched(desk)
    shadow.until("would start #1")
    daemon = desk.start("up", "--no-http")
    shadow.until("in truth: a dispatcher is up")
    desk.until(lambda: desk.states() == ["running"], "the run started")
    assert desk.interlock("add", "two").returncode == 0
    assert desk.interlock("add", "three").returncode == 0
    desk.until(lambda: desk.states() == ["running", "running", "queued"], "the second one started")
    shadow.until("#3 waits: the limit of global is full")
    assert "would start #3" not in shadow.end()
    assert desk.did() == ["1", "2"]
    assert desk.interlock("stop", "--kill").returncode == 0
    assert daemon.wait(60) == 0


def test_an_agent_that_cannot_be_started(desk: Any) -> None:
    desk.write("interlock.yaml", CONFIG.replace('"echo $INTERLOCK_RUN_NUMBER >> did; sleep 600"', '["./none"]'))
    assert desk.interlock("add", "one").returncode == 0
    shadow = Watched(desk)
    shadow.until("#1 waits: agent 'worker' cannot be started")
    none = desk.write("none", "#!/bin/sh\n")
    none.chmod(0o755)
    shadow.until("would start #1 by worker")
    shadow.end()


def test_offers_in_pull_mode(desk: Any) -> None:
    desk.write("interlock.yaml", CONFIG.replace("dispatch:", "dispatch:\n  mode: pull"))
    assert desk.interlock("routes", "set", "review.*", "reviewer", "--max-concurrent", "1").returncode == 0
    for title in ("one", "two"):
        assert desk.interlock("add", title, "--type", "review.code").returncode == 0
    shadow = Watched(desk)
    shadow.until("would offer #1 to reviewer (route review.*)  one")
    shadow.until("#2 waits: the limit of route 'review.code' is full")
    shadow.end()
    assert desk.states() == ["queued", "queued"]


def test_many_reasons_make_few_lines(desk: Any) -> None:
    desk.write("interlock.yaml", CONFIG.replace("global: 2", "global: 0"))
    lines = "".join(f'{{"id": {n}, "title": "t{n}", "status": "queued"}}\n' for n in range(100))
    desk.write("runs.jsonl", lines)
    assert desk.interlock("import", "dump", "runs.jsonl").returncode == 0
    shadow = Watched(desk)
    shadow.until("100 wait in all")
    assert shadow.end().count(" waits: ") == 20


def test_what_does_not_go_together(desk: Any) -> None:
    for option in (("--listen", "127.0.0.1:0"), ("--peer",)):
        done = desk.interlock("up", "--shadow", *option)
        assert done.returncode == 2
        assert "--shadow goes with neither" in done.stderr


def test_there_has_to_be_something_to_look_at(yard: Any) -> None:
    done = yard.interlock("up", "--shadow")
    assert done.returncode == 3
    assert "interlock init" in done.stderr
    assert list(yard.folder.iterdir()) == []
