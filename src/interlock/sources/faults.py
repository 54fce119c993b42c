"""What is wrong with a file, all of it at once, each with its place.

A person who mends a backlog wants every fault in one go, in the order of the file, and the words that mend
it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import msgspec

from interlock.domain.errors import InterlockError, InvalidInput

SHOWN_FAULTS = 20


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing wrong.

    ``line`` and ``column`` count from 1; ``path`` is the field (``tasks[3].timeout``) or empty.
    """

    line: int
    column: int
    path: str
    problem: str
    hint: str | None = None


class Faults:
    """Collects faults of one file; :meth:`check` raises them together as ``error`` (InvalidInput or
    InvalidConfig).
    """

    def __init__(self, source: str, error: type[InterlockError] = InvalidInput) -> None:
        self.source = printable(source)
        self.error_class = error
        self.kept: list[Fault] = []
        self.count = 0

    def add(self, line: int, column: int, path: str, problem: str, hint: str | None = None) -> None:
        """Notes a fault. Only the first ones are kept: a file of a million faults has one cause."""
        self.count += 1
        if len(self.kept) < SHOWN_FAULTS:
            fault = Fault(line=line, column=column, path=printable(path), problem=problem, hint=hint)
            self.kept.append(fault)

    def fatal(self, line: int, column: int, problem: str, hint: str | None = None) -> InterlockError:
        """Notes a fault that nothing can be read beyond; the caller raises the answer."""
        self.add(line, column, "", problem, hint)
        return self.error()

    def check(self) -> None:
        """Raises when there is any fault."""
        if self.count:
            raise self.error()

    def error(self) -> InterlockError:
        """All faults as one error; ``details["faults"]`` has them as data."""
        faults = sorted(self.kept, key=lambda fault: (fault.line, fault.column))
        details: dict[str, Any] = {
            "faults": [{"file": self.source, **msgspec.to_builtins(fault)} for fault in faults],
            "count": self.count,
        }
        if self.count == 1:
            return self.error_class(self._words(faults[0]), hint=faults[0].hint, details=details)
        lines = [self._words(fault) + (f" ({fault.hint})" if fault.hint else "") for fault in faults]
        if self.count > len(faults):
            lines.append(f"and {self.count - len(faults)} more")
        return self.error_class("\n".join(lines), hint=f"{self.count} faults; nothing was taken", details=details)

    def _words(self, fault: Fault) -> str:
        place = f"{self.source}:{fault.line}: "
        return f"{place}{fault.path}: {fault.problem}" if fault.path else f"{place}{fault.problem}"


def printable(text: str) -> str:
    """The text with everything that could move a cursor written as an escape."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def shown(text: str, most: int = 60) -> str:
    """A value as it is quoted in a message: escaped and cut."""
    whole = printable(text[: most + 1])
    return f'"{whole}"' if len(whole) <= most else f'"{whole[: most - 3]}..."'


def both_lines(first: int, second: int) -> str:
    """Where two things that should be one stand."""
    return f"on lines {first} and {second}" if first != second else f"on line {first}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that the word was probably meant to be."""
    names = {each.lower(): each for each in known}
    # a very long word cannot be meant, and matching it would take seconds
    found = difflib.get_close_matches(word[:80].lower(), names, n=1, cutoff=0.6)
    return names[found[0]] if found else None
