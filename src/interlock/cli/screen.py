"""Where `interlock run` speaks: a live view on a terminal, one line per event elsewhere, nothing but the end with ``--json``.

Results (events, the summary) go to standard output, remarks to standard error. Both are written from other threads: whoever
does not read for a while holds up what is shown, never what is dispatched. Only the end, when nothing is left to be held
up, is written where it is said.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trio

from interlock.cli.batch import Batch, Working
from interlock.cli.lines import event_line, is_news
from interlock.cli.painter import Line, Painter, terminal_size, write_all
from interlock.cli.speaker import PATIENCE_SECONDS, Said, Speaker
from interlock.cli.standstill import Group, group_line
from interlock.cli.text import plain
from interlock.domain.errors import Unavailable
from interlock.domain.run import Event

if TYPE_CHECKING:
    from interlock.cli.host import Opened

FRAME_SECONDS = 0.125
TICK_SECONDS = 1.0
LONG_MS = 5000
PAUSE_SECONDS = 0.5


class News(NamedTuple):
    """An event, the title of its run, and how long the attempt took that it ended."""

    event: Event
    title: str
    took_ms: int | None = None


class Screen:
    """Remarks only: what ``--json`` shows until the end. The others do more."""

    color = False

    def __init__(self) -> None:
        self.hint = ""
        self._said: tuple[str, ...] = ()
        self._speaker = Speaker(_say)

    def remark(self, text: str) -> None:
        """Something beside the result, for a person: whole lines. Said soon; from any thread."""
        self._speaker.say(plain(text, lines=True))

    async def tell(self, news: Sequence[News]) -> None:
        """What happened."""

    def waiting(self, groups: Sequence[Group], hold: str | None, now_ms: int, *, idle: bool) -> None:
        """What waits for what. Told once, when it holds everything back for longer than a person would take for nothing."""
        timed = (
            [group for group in groups if group.at_ms is not None and group.at_ms - now_ms > LONG_MS] if idle else []
        )
        said = tuple(filter(None, [hold, *(group.what for group in timed)]))
        if said != self._said and (hold is not None or not any(group.at_ms is None for group in groups)):
            self._said = said
            for text in [hold] if hold is not None else [group_line(group, now_ms) for group in timed]:
                self.remark(f"waiting: {text}")

    async def show(self, batch: Batch, opened: Opened, name: str) -> None:
        """Keep something on the screen, until cancelled."""

    def changed(self) -> None:
        """There is something new to show."""

    async def pause(self) -> None:
        """Leave the terminal to others for a while."""

    def close(self) -> None:
        """Leave the terminal as it was."""

    def hush(self) -> None:
        """The last remark was made: print what is left of them."""
        self._speaker.close()

    def result(self, text: str) -> None:
        """The end: what the whole thing was for. Raises :class:`Unavailable` when it cannot be kept (a full disk)."""
        self._speaker.flush()
        fault = _write(1, text if text.endswith("\n") else text + "\n")
        if fault is not None and fault.errno not in (errno.EPIPE, errno.EIO):
            raise Unavailable(
                f"the output cannot be written: {fault.strerror}", hint="the work itself is done and kept"
            )


class LineScreen(Screen):
    """One line per event, each at once."""

    async def tell(self, news: Sequence[News]) -> None:
        """Print those that are news."""
        lines = [event_line(each.event, each.title, took_ms=each.took_ms) for each in news if is_news(each.event)]
        if lines:
            text = "\n".join(lines) + "\n"
            await trio.to_thread.run_sync(_write, 1, text, abandon_on_cancel=True)


class LiveScreen(Screen):
    """The live view. Remarks appear above it and stay."""

    color = True

    def __init__(self) -> None:
        super().__init__()
        self._painter = Painter(_show, lambda: terminal_size(1))
        self._above: list[str] = []
        self._dirty = trio.Event()
        self._remarks_here = sys.stderr is not None and sys.stderr.isatty()
        self._open = False
        self._token: trio.lowlevel.TrioToken
        self._groups: Sequence[Group] = ()
        self._hold: str | None = None
        self._turn = threading.Lock()

    def remark(self, text: str) -> None:
        """Above the view; to standard error when that goes elsewhere, or the view is not up."""
        if not self._open or not self._remarks_here:
            super().remark(text)
            return
        self._above.append(plain(text, lines=True) + "\n")
        self._token.run_sync_soon(self.changed)

    def waiting(self, groups: Sequence[Group], hold: str | None, now_ms: int, *, idle: bool) -> None:  # noqa: ARG002
        """Show it."""
        self._groups, self._hold = groups, hold
        self.changed()

    def changed(self) -> None:
        """Paint soon."""
        self._dirty.set()

    async def show(self, batch: Batch, opened: Opened, name: str) -> None:
        """Paint until cancelled, at most eight times a second, at least once."""
        # Imported here: the first agents are started before that has ended.
        from rich.console import Console  # noqa: PLC0415

        from interlock.cli.live import Inks, Picture, Tails, frame  # noqa: PLC0415

        inks = Inks(Console(file=sys.stdout), sys.stdout.encoding or "ascii")
        tails = Tails()
        folders: dict[tuple[int, int], Path | None] = {}

        def tail(working: Working) -> str:
            key = (working.number, working.fence)
            if key not in folders:
                folders[key] = _log_of(opened, working)
            path = folders[key]
            return "" if path is None else tails.of(path)

        began = opened.service.clock.now_ms()
        self._token = trio.lowlevel.current_trio_token()
        self._open = True
        while True:
            self._dirty = trio.Event()
            now = opened.service.clock.now_ms()
            picture = Picture(
                name=name,
                batch=batch,
                elapsed_ms=now - began,
                now_ms=now,
                tails=tail,
                groups=self._groups,
                hold=self._hold,
                hint=self.hint,
            )
            columns, rows = terminal_size(1)
            live = {(each.number, each.fence) for each in batch.working.values()}
            for gone in [key for key in folders if key not in live]:
                del folders[gone]
            tails.forget({path for path in folders.values() if path is not None})
            await self._paint(frame(picture, inks, columns, rows))
            await trio.sleep(FRAME_SECONDS)
            with trio.move_on_after(TICK_SECONDS - FRAME_SECONDS):
                await self._dirty.wait()

    async def _paint(self, lines: list[Line]) -> None:
        above = "".join(self._above)
        self._above.clear()
        await trio.to_thread.run_sync(self._paint_now, lines, above, abandon_on_cancel=True)

    def _paint_now(self, lines: list[Line], above: str) -> None:
        with self._turn:
            self._painter.paint(lines, above)

    def _clear(self) -> None:
        # A painter that is stuck in its write has the terminal; then there is nothing to be had of it.
        if self._turn.acquire(timeout=PATIENCE_SECONDS):
            try:
                self._painter.clear()
            finally:
                self._turn.release()

    async def pause(self) -> None:
        """Take the view away; the next frame brings it back. A terminal that takes nothing is not waited for."""
        with trio.move_on_after(PAUSE_SECONDS):
            await trio.to_thread.run_sync(self._clear, abandon_on_cancel=True)

    def close(self) -> None:
        """Take the view away, for good."""
        if self._open:
            self._open = False
            self._clear()
            for text in self._above:
                self._speaker.say(text.removesuffix("\n"))
            self._above.clear()


def make_screen(*, as_json: bool) -> Screen:
    """The one that fits where standard output goes."""
    if as_json:
        return Screen()
    if is_terminal():
        return LiveScreen()
    return LineScreen()


def is_terminal() -> bool:
    """Whether a person looks at standard output, on a terminal that can move its cursor."""
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        return False
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


class Remarks(logging.Handler):
    """What the dispatcher logs, as remarks."""

    def __init__(self, screen: Screen, *, verbose: bool) -> None:
        super().__init__(logging.INFO if verbose else logging.WARNING)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        """Say it."""
        # On whatever thread this is: a remark only joins a queue.
        self._screen.remark(f"{record.levelname.lower()}: {record.getMessage()}")


def _log_of(opened: Opened, working: Working) -> Path | None:
    from interlock.domain.attempt_files import AttemptFiles  # noqa: PLC0415

    try:
        attempt = opened.service.store.peek(lambda tx: tx.attempt(working.number, working.fence))
    except Unavailable:
        return None
    if attempt is None or attempt.folder is None:
        return None
    return AttemptFiles(opened.data / attempt.folder).log


def _show(text: str) -> None:
    _write(1, text)


def _say(said: Sequence[Said]) -> None:
    _write(2, "".join(f"{each.text}\n" for each in said))


def _write(descriptor: int, text: str) -> OSError | None:
    """To a standard stream, as it encodes. A reader who went away stops nothing: the work goes on and its end is kept."""
    stream = sys.stdout if descriptor == 1 else sys.stderr
    if stream is None:
        # Closed before we began (`>&-`): the number may belong to another file by now.
        return None
    try:
        stream.flush()
        write_all(descriptor, text.encode(stream.encoding or "utf-8", "backslashreplace"))
    except OSError as error:
        return error
    return None
