"""The live view: fits every terminal, is moved by nobody's text, and costs little."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from interlock.actors.words import read_tail
from interlock.cli.batch import Batch
from interlock.cli.live import Inks, Picture, Tails, frame
from interlock.cli.painter import Line, Painter
from interlock.cli.standstill import Group
from interlock.cli.text import width
from interlock.domain.run import Event, Run
from interlock.domain.states import RunState
from interlock.domain.task import Task

SGR = re.compile(r"\x1b\[[0-9;]*m")
TITLES = (
    "short",
    "[red]no markup[/red]",
    "日本語のとても長いタイトル" * 8,
    "\x1b[2J\x1b[H\x07gone",
    "a\u202eb",
    "x" * 5000,
    "two\nlines",
)


def run(number: int, title: str = "title", state: RunState = RunState.QUEUED, **more: Any) -> Run:
    return Run(number=number, id=f"r{number}", state=state, task=Task(title=title), content_hash="", **more)


def event(number: int, name: str, to: RunState, *, fence: int = 1, seq: int = 0, message: str | None = None) -> Event:
    return Event(
        seq=seq,
        run=number,
        event=name,
        from_state=None,
        to_state=str(to),
        at_ms=1000,
        by="x",
        fence=fence,
        message=message,
    )


def busy_batch() -> Batch:
    batch = Batch("b", [(f"k{n}", run(n, title)) for n, title in enumerate([*TITLES, *TITLES], start=1)])
    for number in range(1, 8):
        batch.see(event(number, "claim", RunState.CLAIMED))
    for number in range(8, 12):
        batch.see(event(number, "fail", RunState.FAILED, message="went \x1b[31mwrong\r" * 50))
    return batch


def inks(encoding: str = "utf-8") -> Inks:
    from rich.console import Console

    return Inks(Console(force_terminal=True, color_system="truecolor"), encoding)


def picture(batch: Batch) -> Picture:
    return Picture(
        name="\x1b[31mbacklog" * 9,
        batch=batch,
        elapsed_ms=3_700_000,
        now_ms=65_000,
        tails=lambda _: "last [bold]line " * 40,
        groups=[Group(3, "limit of tag gpu is full (1 of 1)"), Group(2, "wait for another try; the first", 66_500)],
        hold="dispatching is paused by somebody" * 9,
        hint="Ctrl-C: stop",
    )


@pytest.mark.parametrize("columns", [1, 5, 10, 20, 39, 40, 60, 80, 200])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 10, 24, 60])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_a_frame_fits_and_holds_no_foreign_control(columns: int, rows: int, encoding: str) -> None:
    lines = frame(picture(busy_batch()), inks(encoding), columns, rows)
    assert 1 <= len(lines) <= max(rows - 1, 1)
    for line in lines:
        bare = SGR.sub("", line.text)
        assert bare.isprintable()
        assert width(bare) == line.columns <= max(columns - 1, 8)
        line.text.encode(encoding)


def test_what_matters_stays_when_there_is_little_room() -> None:
    text = "\n".join(SGR.sub("", line.text) for line in frame(picture(busy_batch()), inks(), 80, 12))
    assert "4/14" in text
    assert "7 running" in text
    assert "#1 " in text
    assert "more working" in text
    assert "paused" in text
    assert "#11" in text
    assert "Ctrl-C" in text


def test_all_is_shown_when_there_is_room() -> None:
    text = "\n".join(SGR.sub("", line.text) for line in frame(picture(busy_batch()), inks(), 120, 60))
    assert "more" not in text
    assert "3 limit of tag gpu is full (1 of 1)" in text
    assert "2 wait for another try; the first in 2s" in text
    assert "[red]no markup[/red]" in text
    assert "last [bold]line" in text


def test_a_failure_that_went_well_in_the_end_is_no_failure() -> None:
    batch = Batch("b", [("k", run(1)), ("l", run(2))])
    batch.see(event(1, "retry", RunState.QUEUED, message="no"))
    assert [failure.number for failure in batch.failures] == [1]
    batch.see(event(2, "fail", RunState.FAILED, message="no"))
    batch.see(event(1, "retry", RunState.QUEUED, message="no"))
    assert [failure.number for failure in batch.failures] == [2, 1]
    batch.see(event(1, "complete", RunState.COMPLETED))
    assert [failure.number for failure in batch.failures] == [2]


def test_a_batch_counts_each_task_once() -> None:
    batch = Batch("b", [("k", run(1)), ("l", run(2, state=RunState.COMPLETED))], [run(9)])
    assert (len(batch), batch.completed, batch.ended, list(batch.unfinished)) == (2, 1, 1, [1, 9])
    batch.see(event(1, "claim", RunState.CLAIMED, fence=3))
    assert batch.working[1].fence == 3
    batch.see(event(1, "fail", RunState.FAILED, fence=3))
    assert not batch.working
    assert not batch.succeeded
    # `interlock retry` in another terminal: the new run counts in the old one's place
    assert batch.join(run(10, batch="b", task_key="k"))
    assert (len(batch), batch.ended, batch.counting()) == (2, 1, [10, 2])
    batch.see(event(10, "complete", RunState.COMPLETED))
    assert batch.succeeded
    assert list(batch.unfinished) == [9]
    assert not batch.join(run(11, batch="other", task_key="k"))
    # a held run is told of by a note, whose state is the run's
    batch.see(event(9, "hold", RunState.QUEUED))
    assert list(batch.unfinished) == [9]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", ""),
        (b"\n \n\t\n", ""),
        (b"one\ntwo\n", "two"),
        (b"one\ntwo\n\n   \n", "two"),
        (b"10%\r50%\r100%", "100%"),
        (b"\x1b[31mred\x1b[0m \x1b]0;title\x07end\x1b", "red end"),
        (b"\xff\xfe\x00bad", "\ufffd\ufffdbad"),
    ],
)
def test_the_last_line_that_says_something(tmp_path: Path, data: bytes, line: str) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(data)
    assert read_tail(path) == line


def test_a_line_of_ten_megabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"x" * 10_000_000)
    assert width(read_tail(path, 400)) == 400


def test_a_file_is_read_again_only_when_it_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "output.log"
    tails = Tails()
    assert tails.of(path) == ""
    path.write_text("one\n")
    assert tails.of(path) == "one"
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("read again"))
    assert tails.of(path) == "one"
    monkeypatch.undo()
    with path.open("a") as file:
        file.write("two\n")
    assert tails.of(path) == "two"
    tails.forget(set())
    assert tails.of(path) == "two"


class Sent:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.columns = 80
        self.painter = Painter(self.texts.append, lambda: (self.columns, 24))


def test_nothing_is_sent_when_nothing_changed() -> None:
    sent = Sent()
    lines = [Line("one", 3), Line("two", 3)]
    sent.painter.paint(lines)
    sent.painter.paint(list(lines))
    assert len(sent.texts) == 1


def test_a_block_is_painted_over_and_taken_away() -> None:
    sent = Sent()
    sent.painter.paint([Line("one", 3), Line("two", 3)])
    sent.painter.paint([Line("three", 5)])
    assert sent.texts[1].startswith("\r\x1b[1A")
    assert sent.texts[1].endswith("three\x1b[K\x1b[J")
    sent.painter.paint([Line("three", 5)], "said\n")
    assert sent.texts[2] == "\r\x1b[Jsaid\r\nthree\x1b[K\x1b[J"
    sent.painter.clear()
    assert sent.texts[3] == "\r\x1b[J\x1b[?25h"
    sent.painter.clear()
    assert len(sent.texts) == 4


def test_a_narrower_window_wrapped_the_lines() -> None:
    sent = Sent()
    sent.painter.paint([Line("x" * 79, 79), Line("", 0), Line("y" * 41, 41)])
    sent.columns = 40
    sent.painter.clear()
    # 2 + 1 + 2 rows: four up
    assert sent.texts[1].startswith("\r\x1b[4A")
