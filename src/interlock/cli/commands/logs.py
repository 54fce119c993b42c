"""``interlock logs``."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from interlock.cli.logs_filter import RESET, TerminalFilter
from interlock.cli.output import warn
from interlock.cli.runs import run_argument, run_words, shown_state
from interlock.cli.session import Session, pass_session
from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.errors import NotFound
from interlock.domain.run import Attempt

if TYPE_CHECKING:
    from interlock.cli.host import Opened
    from interlock.service.reads import Story

CHUNK = 64 * 1024
LOOK_SECONDS = 0.2


@click.command()
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on as it grows, into later attempts too, until the run ends.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="That attempt, not the latest.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines.")
@pass_session
def logs(session: Session, /, run: str, follow: bool, attempt: int | None, lines: int | None) -> None:
    """Print what a run's agent wrote, standard output and error together.

    Piped on, the bytes are just those that it wrote. On a terminal its colours pass and every other control sequence is
    shown instead of obeyed.

    \b
    Examples:
      interlock logs 42
      interlock logs 42 -f
      interlock logs 42 --attempt 1 > first-try.log
    """

    async def print_logs(il: Opened) -> None:
        story = await il.service.story(run)
        out = Output()
        try:
            if follow:
                await _follow(il, story, out, attempt=attempt, lines=lines)
            else:
                _print(il, story, out, attempt=attempt, lines=lines)
        finally:
            out.close()

    session.run(print_logs)


class Output:
    """Standard output, for the bytes of a stranger."""

    def __init__(self) -> None:
        self._filter = TerminalFilter() if sys.stdout is not None and sys.stdout.isatty() else None

    def write(self, data: bytes) -> None:
        """Print it now."""
        if sys.stdout is None:
            return
        if self._filter is None:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        else:
            sys.stdout.write(self._filter.feed(data))
        sys.stdout.flush()

    def close(self) -> None:
        """What was kept back, and the terminal's own colours again."""
        if self._filter is not None and sys.stdout is not None:
            rest = self._filter.feed(b"", last=True)
            sys.stdout.write(rest + (RESET if self._filter.coloured else ""))


class Tail:
    """Reads one attempt's log as it grows."""

    def __init__(self, path: Path, lines: int | None) -> None:
        self.path = path
        self._lines = lines
        self._file: BinaryIO | None = None
        self.seen = False

    def copy(self, out: Output) -> bool:
        """Print what came since the last call. Whether there was any."""
        if self._file is None:
            try:
                self._file = self.path.open("rb")
            except FileNotFoundError:
                return False
            if self._lines is not None:
                to_last_lines(self._file, self._lines)
        any_ = False
        while data := self._file.read(CHUNK):
            out.write(data)
            any_ = self.seen = True
        return any_

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()


def to_last_lines(file: BinaryIO, lines: int) -> None:
    """Move to where the last ``lines`` lines begin."""
    end = at = file.seek(0, os.SEEK_END)
    wanted = lines + 1
    while at > 0 and wanted > 0:
        size = min(CHUNK, at)
        at -= size
        file.seek(at)
        block = file.read(size)
        if at + size == end and not block.endswith(b"\n"):
            # The last line has no end yet: it counts all the same.
            wanted -= 1
        position = len(block)
        while wanted > 0 and (position := block.rfind(b"\n", 0, position)) >= 0:
            wanted -= 1
            if wanted == 0:
                file.seek(at + position + 1)
                return
    file.seek(0 if lines else end)


def _choose(story: Story, fence: int | None) -> Attempt | None:
    if fence is None:
        return story.attempts[-1] if story.attempts else None
    for attempt in story.attempts:
        if attempt.fence == fence:
            return attempt
    known = ", ".join(str(attempt.fence) for attempt in story.attempts) or "none yet"
    raise NotFound(f"run #{story.run.number} has no attempt {fence}", hint=f"its attempts: {known}")


def _tail(il: Opened, attempt: Attempt, lines: int | None) -> Tail | None:
    return None if attempt.folder is None else Tail(AttemptFiles(il.data / attempt.folder).log, lines)


def _print(il: Opened, story: Story, out: Output, *, attempt: int | None, lines: int | None) -> None:
    chosen = _choose(story, attempt)
    if chosen is None:
        state = shown_state(story.run)
        warn(f"{run_words(story.run)} has no output: it is {state}, no agent has worked on it yet.")
        return
    tail = _tail(il, chosen, lines)
    if tail is None:
        warn(f"{run_words(story.run)} has no output here: {chosen.holder} works elsewhere.")
        return
    there = tail.copy(out)
    tail.close()
    if not there and chosen.remote and not tail.path.exists():
        warn(f"{run_words(story.run)} has no output here: {chosen.holder} works elsewhere, and has sent none.")
    elif not there and lines != 0:
        so_far = "yet" if chosen.ended_ms is None else "at all"
        where = "" if tail.path.exists() else f" ({tail.path} is not there)"
        warn(f"Attempt {chosen.fence} of {run_words(story.run)} has written nothing {so_far}{where}.")


async def _follow(il: Opened, story: Story, out: Output, *, attempt: int | None, lines: int | None) -> None:
    import trio  # noqa: PLC0415

    number = story.run.number
    chosen = _choose(story, attempt)
    tail: Tail | None = None
    fence: int | None = None
    waiting = False
    with ExitStack() as opened:
        while True:
            if chosen is not None and chosen.fence != fence:
                if tail is not None:
                    tail.copy(out)
                if fence is not None:
                    warn(f"==> attempt {chosen.fence} <==")
                fence, tail = chosen.fence, _tail(il, chosen, lines)
                if tail is not None:
                    opened.callback(tail.close)
                lines = None
            # What is known of the attempt was read before its log: what it wrote until its end is in there.
            any_ = tail is not None and tail.copy(out)
            if not any_:
                over = chosen is not None and chosen.ended_ms is not None
                if story.run.terminal and (over or chosen is None):
                    _say_end(story)
                    return
                if attempt is not None and over:
                    return
                if not waiting and (tail is None or not tail.seen):
                    warn(f"{run_words(story.run)} is {shown_state(story.run)} and has written nothing yet; waiting.")
                    waiting = True
                await trio.sleep(LOOK_SECONDS)
            story = await il.service.story(number)
            chosen = _following(story, fence, attempt)


def _following(story: Story, fence: int | None, only: int | None) -> Attempt | None:
    """The attempt to go on with: the one that is read until it has ended, then the next."""
    if only is not None:
        return _choose(story, only)
    for attempt in story.attempts:
        if fence is None or attempt.fence > fence or (attempt.fence == fence and attempt.ended_ms is None):
            return attempt
    return story.attempts[-1] if story.attempts else None


def _say_end(story: Story) -> None:
    run = story.run
    why = f": {run.message}" if run.message and run.state != "completed" else ""
    warn(f"{run_words(run)} {'is' if run.state == 'cancelled' else 'has'} {str(run.state).replace('_', ' ')}{why}")
