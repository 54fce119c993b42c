"""Where a test lets this process die, or stand still: at which pass of which point, and how much later."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from interlock.domain import crashpoints
from interlock.domain.crashpoints import crashpoint


class Signalled:
    """What this process would have been sent, and by which thread."""

    def __init__(self) -> None:
        self.numbers: list[signal.Signals] = []
        self.threads: list[threading.Thread] = []

    def kill(self, pid: int, number: signal.Signals) -> None:
        assert pid == os.getpid()
        self.numbers.append(number)
        self.threads.append(threading.current_thread())

    def passes(self, name: str, times: int) -> list[list[signal.Signals]]:
        """What comes of each pass."""
        came = []
        for _ in range(times):
            before = len(self.numbers)
            crashpoint(name)
            came.append(self.numbers[before:])
        return came


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> Signalled:
    made = Signalled()
    monkeypatch.setattr(os, "kill", made.kill)
    monkeypatch.setattr(crashpoints, "_passes", {})
    return made


def ask(monkeypatch: pytest.MonkeyPatch, *, kill: str = "", stop: str = "") -> None:
    monkeypatch.setattr(crashpoints, "_KILL", kill)
    monkeypatch.setattr(crashpoints, "_STOP", stop)


def test_nothing_is_asked_for(signalled: Signalled, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch)
    assert signalled.passes("here", 3) == [[], [], []]
    assert crashpoints._passes == {}, "it costs nothing"


def test_it_dies_from_the_pass_on_that_is_asked_for(signalled: Signalled, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, kill="there,here:2")
    assert signalled.passes("here", 3) == [[], [signal.SIGKILL], [signal.SIGKILL]]
    assert signalled.passes("there", 1) == [[signal.SIGKILL]]
    assert signalled.passes("elsewhere", 3) == [[], [], []]


def test_it_stands_still_at_that_pass_alone(signalled: Signalled, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, stop="here:2")
    assert signalled.passes("here", 4) == [[], [signal.SIGSTOP], [], []]


def test_it_dies_some_microseconds_later(signalled: Signalled, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, kill="here:1+20")
    before = set(threading.enumerate())
    crashpoint("here")
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    assert signalled.numbers == [signal.SIGKILL]
    assert signalled.threads != [threading.current_thread()], "the process goes on meanwhile"
