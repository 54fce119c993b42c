"""The live view of `interlock run`: what it shows, as lines made to fit the terminal. Sending them is the painter's work.

Whatever comes from tasks and agents goes through :func:`interlock.cli.text.short`: it cannot move the cursor, and is never
taken for markup.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from interlock.actors.words import read_tail
from interlock.cli.batch import Batch, Failure, Working
from interlock.cli.painter import Line
from interlock.cli.standstill import Group, group_line
from interlock.cli.text import ELLIPSIS, short, width
from interlock.domain.states import RunState

if TYPE_CHECKING:
    from rich.console import Console

TAIL_CHARACTERS = 400
_SHOWN_STATES = (
    ("running", "cyan", (RunState.CLAIMED, RunState.RUNNING)),
    ("waiting", "", (RunState.QUEUED, RunState.DISPATCHED)),
    ("blocked", "magenta", (RunState.BLOCKED,)),
    ("completed", "green", (RunState.COMPLETED,)),
    ("failed", "red", (RunState.FAILED,)),
    ("timed out", "red", (RunState.TIMED_OUT,)),
    ("cancelled", "yellow", (RunState.CANCELLED,)),
)
_FAILURE_WORDS = {
    "fail": "failed",
    "reject": "failed",
    "time_out": "timed out",
    "cancel": "cancelled",
    "retry": "tried again",
    "release": "started again",
}


class Picture(NamedTuple):
    """All that a frame shows."""

    name: str
    batch: Batch
    elapsed_ms: int
    now_ms: int
    tails: Callable[[Working], str]
    groups: Sequence[Group] = ()
    hold: str | None = None
    hint: str = ""


Piece = tuple[str, str]
"""Text and its rich style."""


class Inks:
    """Turns pieces of text into a line for this terminal: colours as it has them, characters as it has them."""

    def __init__(self, console: Console, encoding: str) -> None:
        from rich.style import Style  # noqa: PLC0415

        self._console = console
        self._styles: dict[str, Style] = {}
        self._encoding = encoding
        self._parse = Style.parse
        self.full = self._fits("\u2501\u2713\u2717\u00b7\u2026")

    def _fits(self, text: str) -> bool:
        try:
            text.encode(self._encoding)
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    def line(self, pieces: Sequence[Piece], columns: int) -> Line:
        """One line of at most ``columns``; what is too long is cut."""
        left = columns
        parts: list[str] = []
        for text, style in pieces:
            fitting = short(text, left) if width(text) > left else text
            if not self.full:
                fitting = fitting.replace(ELLIPSIS, "~").replace("\u00b7", "-")
                fitting = fitting.encode(self._encoding, "replace").decode(self._encoding)
            left -= width(fitting)
            parts.append(self._inked(fitting, style))
            if left <= 0:
                break
        return Line("".join(parts), columns - max(left, 0))

    def _inked(self, text: str, style: str) -> str:
        if not style or not text:
            return text
        ink = self._styles.get(style)
        if ink is None:
            ink = self._styles[style] = self._parse(style)
        system = None if self._console.no_color else self._console._color_system  # noqa: SLF001 - rich has no other name for it
        return ink.render(text, color_system=system)


def frame(picture: Picture, inks: Inks, columns: int, rows: int) -> list[Line]:
    """The view, at most ``rows - 1`` lines of ``columns - 1``: a full last line or column would scroll."""
    wide, room = max(columns - 1, 8), max(rows - 1, 1)
    head = [_bar(picture, inks, wide), _counts(picture)]
    active = [
        _working(each, picture, wide) for each in sorted(picture.batch.working.values(), key=lambda w: w.since_ms)
    ]
    waits = _waits(picture)
    failures = [_failure(each, picture.batch) for each in picture.batch.failures]
    hint: list[list[Piece]] = [[(picture.hint, "dim")]] if picture.hint else []
    lines = [*head[:room]]
    left = room - len(lines)
    # What people look for first gets its share first; the rest divides what is left.
    least = min(len(waits), 2) + min(len(failures), 1) + len(hint)
    shown = _cut(active, max(min(left, 1), left - least), "working")
    left -= len(shown)
    told = _cut(waits, max(min(left, 1), left - min(len(failures), 1) - len(hint)) if left > 1 else 0, "")
    left -= len(told)
    bad = failures[: max(0, min(left - len(hint), 5))]
    left -= len(bad)
    blocks = [block for block in (shown, told, bad, hint[:left]) if block]
    spare = room - len(lines) - sum(map(len, blocks))
    for block in blocks:
        if spare >= len(blocks):
            lines.append([])
        lines.extend(block)
    return [inks.line(pieces, wide) for pieces in lines[:room]]


def _cut(lines: list[list[Piece]], room: int, noun: str) -> list[list[Piece]]:
    if len(lines) <= room:
        return lines
    if room <= 0:
        return []
    more = len(lines) - room + 1
    return [*lines[: room - 1], [(f"  and {more} more {noun}".rstrip(), "dim")]]


def _bar(picture: Picture, inks: Inks, columns: int) -> list[Piece]:
    batch = picture.batch
    total = len(batch)
    percent = 100 * batch.ended // total if total else 100
    after = f" {batch.ended}/{total} {percent:3d}% {_minutes(picture.elapsed_ms)}"
    room = columns - len(after)
    name = short(picture.name, max(6, min(30, room // 3)))
    length = max(4, min(60, room - width(name) - 1))
    done = length * batch.ended // total if total else length
    good = min(done, length * batch.completed // total if total else length)
    full, empty = ("\u2501", "\u2501") if inks.full else ("#", "-")
    return [
        (name, "bold"),
        (" ", ""),
        (full * good, "green"),
        (full * (done - good), "red"),
        (empty * (length - done), "bright_black"),
        (after, ""),
    ]


def _counts(picture: Picture) -> list[Piece]:
    counts = picture.batch.counts
    pieces: list[Piece] = []
    for word, style, states in _SHOWN_STATES:
        number = sum(counts[state] for state in states)
        if number:
            pieces += [(" \u00b7 " if pieces else "", "dim"), (f"{number} {word}", style)]
    return pieces


def _working(each: Working, picture: Picture, columns: int) -> list[Piece]:
    title = picture.batch.title(each.number)
    again = f" (try {each.fence})" if each.fence > 1 else ""
    elapsed = _minutes(picture.now_ms - each.since_ms)
    start = f"  #{each.number:<4} {elapsed:>5}  "
    if columns < 60:
        return [(start, "cyan"), (short(title + again, columns - len(start)), "")]
    room = min(48, (columns - len(start)) * 3 // 5)
    words = short(title, room - len(again)) + again
    pad = " " * (room - width(words))
    return [(start, "cyan"), (words + pad, ""), ("  ", ""), (picture.tails(each), "dim")]


def _waits(picture: Picture) -> list[list[Piece]]:
    lines: list[list[Piece]] = []
    if picture.hold is not None:
        lines.append([("  ", ""), (short(picture.hold, 400), "yellow")])
    for group in picture.groups:
        count, _, rest = group_line(group, picture.now_ms).partition(" ")
        lines.append([(f"  {count:>5} ", "yellow"), (short(rest, 400), "")])
    return lines


def _failure(failure: Failure, batch: Batch) -> list[Piece]:
    style = "red" if failure.final else "yellow"
    word = _FAILURE_WORDS.get(failure.word, failure.word)
    title = short(batch.title(failure.number), 24)
    return [(f"  #{failure.number:<4} {word:<11}", style), (f"  {title}: ", ""), (short(failure.message, 300), "dim")]


def _minutes(ms: int) -> str:
    seconds = max(0, ms) // 1000
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours}:{minutes:02d}:{seconds % 60:02d}" if hours else f"{minutes}:{seconds % 60:02d}"


class Tails:
    """Last lines of output files, read again only when the file has grown."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, int, str]] = {}

    def of(self, path: Path) -> str:
        """The last line that says something; empty when there is none."""
        try:
            status = os.stat(path)
        except OSError:
            return ""
        known = self._known.get(path)
        if known is not None and known[:2] == (status.st_size, status.st_mtime_ns):
            return known[2]
        line = read_tail(path, TAIL_CHARACTERS)
        self._known[path] = (status.st_size, status.st_mtime_ns, line)
        return line

    def forget(self, keep: set[Path]) -> None:
        """Drop what is not shown any more."""
        for path in self._known.keys() - keep:
            del self._known[path]
