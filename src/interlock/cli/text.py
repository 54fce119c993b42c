"""Words of strangers, made fit for a terminal.

Titles, messages, questions and output come from tasks and agents. What a terminal would obey (escape sequences, carriage
returns, text that turns the line around) is shown, not sent: ``\\x1b`` is four characters that a person can read.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime

from interlock.sources.durations import format_duration

_BREAKS = re.compile(r"[ \t]*(?:\r\n|[\n\r\v\f\x85\u2028\u2029])+[ \t]*")
_SAFE_LINE = re.compile(r"[ -~]*\Z")
_JOINERS = frozenset("\u200c\u200d")
"""Invisible, but emoji and several scripts are written with them."""
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
ELLIPSIS = "…"


def plain(text: str, *, lines: bool = False) -> str:
    """``text`` on one line (with ``lines``: its own lines), control and invisible characters shown as escapes.

    Line breaks become one space, tabs too. Letters of every script stay as they are.
    """
    if _SAFE_LINE.match(text):
        return text
    if lines:
        return "\n".join(_visible(line.expandtabs(4)) for line in _split(text))
    return _visible(_BREAKS.sub(" ", text.strip("\r\n")).replace("\t", " "))


def _split(text: str) -> list[str]:
    return text.replace("\r\n", "\n").split("\n")


def _visible(line: str) -> str:
    return "".join(_shown(character) for character in line)


def _shown(character: str) -> str:
    if character.isprintable() or character in _JOINERS or unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def width(text: str) -> int:
    """Columns that ``text`` takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def short(text: str, columns: int) -> str:
    """:func:`plain` ``text`` in at most ``columns`` columns; what was cut ends in an ellipsis."""
    line = plain(text)
    if width(line) <= columns:
        return line
    kept: list[str] = []
    left = columns - 1
    for character in line:
        left -= _cells(character)
        if left < 0:
            break
        kept.append(character)
    return "".join(kept).rstrip() + ELLIPSIS


def span(ms: float) -> str:
    """A stretch of time for people: ``45ms``, ``1.2s``, ``1m30s``, ``2d3h``."""
    return format_duration(int(ms))


def clock(at_ms: int) -> str:
    """The wall-clock time of a moment, in the time zone of whoever reads it: ``14:03:44``."""
    return _local(at_ms).strftime("%H:%M:%S")


def moment(at_ms: int) -> str:
    """A moment with its date: ``2025-11-30 14:03:44``."""
    return _local(at_ms).strftime("%Y-%m-%d %H:%M:%S")


def _local(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000).astimezone()


def count(number: int, noun: str, plural: str | None = None) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
