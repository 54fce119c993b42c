"""What a person sees of a dispatcher: lines, signals, screens, and where they go when nobody looks."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from interlock.actors import Ending
from interlock.cli import daemon, screen
from interlock.cli.batch import Batch
from interlock.cli.daemon import Daemon, SaidByLog
from interlock.cli.git_tree import clash_warning, work_tree
from interlock.cli.painter import terminal_size, write_all
from interlock.cli.plan import batch_name
from interlock.cli.screen import LiveScreen, News, Remarks, Screen
from interlock.cli.speaker import Said, Speaker
from interlock.domain.errors import Unavailable
from interlock.domain.run import Event, Run
from interlock.domain.settings import Settings
from interlock.domain.states import RunState
from interlock.domain.task import Task


class Heard:
    """What was said, in place of a terminal."""

    def __init__(self) -> None:
        self.said: list[Said] = []

    def write(self, said: Sequence[Said]) -> None:
        self.said += said

    def lines(self, speaker: Speaker) -> list[str]:
        speaker.flush()
        return [each.text for each in self.said]


class Opened:
    """As much of an open data folder as is looked at."""

    def __init__(self, **given: Any) -> None:
        self.data, self.config_path = Path("/data"), None
        self.settings, self.inactive, self.migrated_from = Settings(), (), None
        self.__dict__.update(given)


class Dispatcher:
    """One that only takes orders to end."""

    def __init__(self, working: int = 0) -> None:
        self.runs = [run(number) for number in range(1, working + 1)]
        self.ends: list[Ending] = []

    def active_runs(self) -> list[Run]:
        return self.runs

    def end(self, how: Ending) -> None:
        self.ends.append(how)


def run(number: int, state: RunState = RunState.QUEUED, **more: Any) -> Run:
    return Run(number=number, id=f"r{number}", state=state, task=Task(title=f"task {number}"), content_hash="", **more)


def up(heard: Heard, **given: Any) -> Daemon:
    made = Daemon(Opened(**given), verbose=False, alone=True)  # type: ignore[arg-type]
    made.speaker = Speaker(heard.write)
    return made


# the daemon


def test_the_greeting_says_what_is_unusual() -> None:
    heard = Heard()
    made = up(
        heard,
        migrated_from=Path("/data/backup.db"),
        inactive=("interlock.yaml:3: x: later",),
        settings=Settings(enabled=False),
    )
    made._greet(Dispatcher(12))  # type: ignore[arg-type]
    told = heard.lines(made.speaker)
    assert "its backup is /data/backup.db" in told[2]
    assert told[3] == "not active yet: interlock.yaml:3: x: later"
    assert told[4] == "dispatch.enabled is false: nothing is dispatched."
    assert told[5].startswith("Took up 12 runs that an earlier dispatcher left: #1, #2")
    assert told[5].endswith("#10 and 2 more")


@pytest.mark.parametrize("working", [0, 2])
async def test_each_further_signal_is_a_harder_ending(working: int, nursery: trio.Nursery) -> None:
    heard = Heard()
    made = up(heard)
    dispatcher = Dispatcher(working)
    await nursery.start(made._hear_signals, dispatcher)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGINT):
        signal.raise_signal(number)
        await trio.testing.wait_all_tasks_blocked(0.01)
    nursery.cancel_scope.cancel()
    assert dispatcher.ends == [Ending.DRAIN, Ending.KILL, Ending.DETACH]
    told = heard.lines(made.speaker)
    assert told[-1].startswith("Leaving at once; ")
    assert ("2 agents still being stopped" in told[-1]) == bool(working)
    assert len(told) == (3 if working else 2)


def record(level: int, error: Exception | None = None) -> logging.LogRecord:
    info = (type(error), error, None) if error is not None else None
    return logging.LogRecord("interlock", level, __file__, 1, "it %s", ("was\x1b so",), info)


@pytest.mark.parametrize(
    ("level", "style", "begins"),
    [
        (logging.INFO, "", "it was"),
        (logging.WARNING, "yellow", "warning: it was"),
        (logging.ERROR, "red", "error: it was"),
    ],
)
def test_what_the_actors_report_is_a_line(level: int, style: str, begins: str) -> None:
    heard = Heard()
    speaker = Speaker(heard.write)
    SaidByLog(speaker, verbose=False).emit(record(level))
    (line,) = heard.lines(speaker)
    assert line.partition("  ")[2] == f"{begins}\\x1b so"
    assert heard.said[0].style == style


@pytest.mark.parametrize("verbose", [False, True])
def test_an_error_is_named_and_shown_to_those_who_asked(verbose: bool) -> None:
    heard = Heard()
    speaker = Speaker(heard.write)
    SaidByLog(speaker, verbose=verbose).emit(record(logging.ERROR, LookupError("gone")))
    (text,) = heard.lines(speaker)
    assert text.splitlines()[0].endswith(": LookupError: gone")
    assert (len(text.splitlines()) > 1) == verbose


async def test_titles_are_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    asked: list[list[int]] = []

    class Store:
        async def read(self, look: Any) -> list[Run | None]:
            class Tx:
                def run(self, number: int) -> Run | None:
                    asked[-1].append(number)
                    return run(number) if number < 9 else None

            asked.append([])
            found: list[Run | None] = look(Tx())
            return found

    class Service:
        store = Store()

    monkeypatch.setattr(daemon, "KEPT_TITLES", 1)
    made = up(heard, service=Service())
    for number in (1, 1, 2, 3, 3, 9):
        await made._lines([told(number, "submit", RunState.QUEUED)])
    assert asked == [[1], [2], [3], [9]]
    assert set(made._titles) == {3}
    assert "task 3" in heard.lines(made.speaker)[3]


def told(number: int, name: str, to: RunState) -> Event:
    return Event(seq=number, run=number, event=name, from_state=None, to_state=str(to), at_ms=1000, by="x")


def test_the_daemon_on_a_terminal_and_without_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys.stdout, "isatty", lambda: True)
        daemon.print_said([Said("a [red]line[/red]", "bold"), Said("another")])
    assert "a [red]line[/red]" in capsys.readouterr().out
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", None)
        daemon.print_said([Said("nobody hears it")])
    assert capsys.readouterr().out == ""


# the screens


def test_remarks_of_the_log_are_remarks() -> None:
    made = Screen()
    heard = Heard()
    made._speaker = Speaker(heard.write)
    Remarks(made, verbose=False).emit(record(logging.WARNING))
    assert heard.lines(made._speaker) == ["warning: it was\\x1b so"]


async def test_a_screen_without_a_view_has_nothing_to_do() -> None:
    made = Screen()
    await made.tell([News(told(1, "submit", RunState.QUEUED), "x")])
    made.changed()
    await made.pause()
    made.close()
    live = LiveScreen()
    live.close()
    assert live._painter._painted == []


def test_a_painter_that_is_stuck_has_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "PATIENCE_SECONDS", 0.01)
    made = LiveScreen()
    cleared: list[int] = []
    monkeypatch.setattr(made._painter, "clear", lambda: cleared.append(1))
    with made._turn:
        made._clear()
    assert cleared == []
    made._clear()
    assert cleared == [1]


def test_a_stream_that_was_closed_before_we_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert screen._write(1, "x") is None


def test_a_log_that_cannot_be_found_is_not_shown() -> None:
    class Store:
        def __init__(self, found: Any) -> None:
            self.found = found

        def peek(self, _: Any) -> Any:
            if isinstance(self.found, Exception):
                raise self.found
            return self.found

    class Service:
        def __init__(self, found: Any) -> None:
            self.store = Store(found)

    working = Batch("b", [("k", run(1, RunState.RUNNING))]).working[1]
    for found in (Unavailable("no"), None):
        assert screen._log_of(Opened(service=Service(found)), working) is None  # type: ignore[arg-type]


def test_a_terminal_that_does_not_know_its_size(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        assert terminal_size(file.fileno()) == (80, 24)


def test_all_is_written_also_to_a_pipe_that_does_not_block() -> None:
    out, into = os.pipe()
    os.set_blocking(into, False)
    content = b"x" * 1_000_000
    read: list[bytes] = []

    def reader() -> None:
        while data := os.read(out, 65536):
            read.append(data)

    thread = threading.Thread(target=reader)
    thread.start()
    write_all(into, content)
    os.close(into)
    thread.join()
    os.close(out)
    assert b"".join(read) == content


# a batch and its plan


def test_two_tasks_of_one_run_are_one() -> None:
    twin = run(1, RunState.RUNNING, batch="b", fence=1)
    batch = Batch("b", [("k1", twin), ("k2", twin)], [twin])
    assert len(batch) == 1
    assert batch.counts[RunState.RUNNING] == 1


def test_runs_that_come_later_take_the_place_of_their_task() -> None:
    batch = Batch("b", [("k1", run(1, RunState.FAILED))])
    assert not batch.join(run(2, batch="other", task_key="k1"))
    assert batch.join(run(3, batch="b", task_key="new"))
    assert batch.join(run(3, batch="b", task_key="new")), "known"
    assert batch.join(run(4, batch="b", task_key="k1"))
    assert batch.counting() == [4]
    assert list(batch.unfinished) == [3, 4]


def test_only_the_latest_failures_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from interlock.cli import batch as module

    monkeypatch.setattr(module, "RECENT_FAILURES", 2)
    batch = Batch("b", [(f"k{number}", run(number)) for number in range(1, 5)])
    for number in range(1, 5):
        batch.see(told(number, "fail", RunState.FAILED))
    assert [failure.number for failure in batch.failures] == [4, 3]


def test_what_a_backlog_is_recognised_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.yaml").touch()
    assert batch_name("b.yaml", tmp_path / ".interlock") == "b.yaml"
    assert batch_name("b.yaml", tmp_path / "elsewhere" / ".interlock") == str(tmp_path / "b.yaml")
    assert batch_name("gone.yaml", tmp_path / ".interlock") == "gone.yaml"
    os.mkfifo(tmp_path / "pipe")
    assert batch_name("pipe", tmp_path / ".interlock") == batch_name("-", tmp_path / ".interlock")


def test_whether_agents_share_a_tree(tmp_path: Path) -> None:
    assert clash_warning(tmp_path, 4) is None
    (tmp_path / ".git").mkdir()
    assert work_tree(tmp_path / "below") is None, "not a repository yet"
    (tmp_path / ".git" / "HEAD").touch()
    assert work_tree(tmp_path / "below" / ("too long" * 100)) == tmp_path, "what cannot be looked into is passed over"
    assert clash_warning(tmp_path, 1) is None
    assert str(tmp_path) in (clash_warning(tmp_path, 4) or "")
