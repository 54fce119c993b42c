"""Records of a file, one after the other, however long the file is: JSON, JSONL and CSV, each with its line.

A file that a program wrote may be far larger than a backlog that a person wrote, so it is read in pieces; what is held in memory
is a piece and a record. In JSON, records are objects: alone, one after the other, in a list, or in a list below a key such as
``runs``.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import IO, Any, NoReturn

import msgspec

from interlock.domain.errors import InvalidInput, NotFound, TooLarge
from interlock.sources.faults import Faults, shown
from interlock.sources.text import STDIN, source_name

PIECE = 1 << 20
MAX_RECORD = 16 * PIECE
"""Characters of one record at most."""
LISTS = ("runs", "pending", "workflow_runs", "workflowRuns", "items", "queue", "data", "results")
"""Keys below which a list of records is looked for."""
_DELIMITERS = ",;\t|"
_BLANK = " \t\r\n"


class Record(msgspec.Struct, frozen=True):
    """One entry: its number in the file and its line, both from 1, and what stands there. A cell of CSV is text, or None."""

    number: int
    line: int
    fields: Any
    written: bool = False
    """Whether values are as somebody wrote them down: all of CSV is text, whatever it means."""


class RecordFile:
    """A file that is read once, from its start. ``-`` is standard input."""

    def __init__(self, path: str, *, stdin: IO[bytes] | None = None) -> None:
        self.source = source_name(path)
        self._extension = PurePath(path).suffix.lower()
        try:
            self._file: Any = _standard_input(stdin) if path == STDIN else open(path, "rb")  # noqa: SIM115 - see close()
        except FileNotFoundError:
            raise NotFound(f"{self.source}: no such file") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InvalidInput(
                f"{self.source}: cannot be read: {reason}", hint="name a file that can be read"
            ) from None

    def close(self) -> None:
        """Let go of it."""
        self._file.close()

    def records(self, faults: Faults, *, format: str | None = None) -> Iterator[Record]:  # noqa: A002 - the option's name
        """Its records, of ``format`` (csv, json, jsonl), else as its name or its beginning says.

        Raises the error of ``faults`` where nothing can be read beyond.
        """
        try:
            kind = format or _EXTENSIONS.get(self._extension) or _look(self._file.peek(PIECE))
            text = io.TextIOWrapper(self._file, encoding="utf-8-sig", newline="")
            try:
                yield from (_csv_records if kind == "csv" else _json_records)(text, faults)
            finally:
                text.detach()
        except OSError as error:
            raise InvalidInput(f"{self.source}: cannot be read: {error.strerror}") from None


_EXTENSIONS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


def _look(beginning: bytes) -> str:
    first = beginning.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    return "json" if first in (b"[", b"{", b"") else "csv"


def _standard_input(stdin: IO[bytes] | None) -> IO[bytes]:
    if stdin is None and (sys.stdin is None or sys.stdin.closed):
        raise ValueError("standard input is closed")
    return stdin or sys.stdin.buffer


@contextmanager
def _not_text(faults: Faults, line: Any) -> Iterator[None]:
    """What the decoder refuses, as a fault at about that line."""
    try:
        yield
    except UnicodeDecodeError as error:
        bad = error.object[error.start]
        raise faults.fatal(line(), 1, f"byte 0x{bad:02x} near here is not UTF-8", "save the file as UTF-8") from None


# CSV


def _csv_records(text: IO[str], faults: Faults) -> Iterator[Record]:
    lines = _Lines(text)
    with _not_text(faults, lambda: lines.read + 1):
        first = lines.peek()
        before = csv.field_size_limit(MAX_RECORD)
        reader = csv.reader(lines, delimiter=max(_DELIMITERS, key=first.count), strict=True)
        try:
            head = next(reader, None)
            if head is not None:
                head = [name.strip() for name in head]
                _check_head(head, faults)
                yield from _rows(reader, head, faults)
        except csv.Error as error:
            raise faults.fatal(lines.read, 1, f"is no CSV: {error}", "quotes are doubled inside of quotes") from None
        finally:
            csv.field_size_limit(before)


class _Lines:
    """Lines of a text, the first of which can be looked at before. ``read``: how many were read."""

    def __init__(self, text: IO[str]) -> None:
        self._text = text
        self._first: str | None = None
        self.read = 0

    def peek(self) -> str:
        self._first = self._text.readline(MAX_RECORD)
        return self._first

    def __iter__(self) -> Iterator[str]:
        if self._first:
            self.read += 1
            yield self._first
        for line in self._text:
            self.read += 1
            yield line


def _check_head(head: list[str], faults: Faults) -> None:
    for at, name in enumerate(head):
        if not name:
            raise faults.fatal(1, 1, f"column {at + 1} has no name", "the first line names the columns")
        if name in head[:at]:
            raise faults.fatal(1, 1, f"column {shown(name)} is there twice", "rename one of them")


def _rows(reader: Any, head: list[str], faults: Faults) -> Iterator[Record]:
    line = reader.line_num + 1
    number = 0
    for row in reader:
        if row:
            number += 1
            if len(row) != len(head):
                faults.add(
                    line, 1, f"record {number}", f"has {len(row)} cells, the first line {len(head)}", "check its quotes"
                )
            else:
                cells = {name: None if cell in ("", r"\N") else cell for name, cell in zip(head, row, strict=True)}
                yield Record(number, line, cells, written=True)
        line = reader.line_num + 1


# JSON


class _Doubled(ValueError):
    """A key that an object has twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _Doubled(f"the key {shown(twice)} is there twice")
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


class _Window:
    """The piece of a text that is being read, and the line of where that is."""

    def __init__(self, text: IO[str], faults: Faults) -> None:
        self._text = text
        self._faults = faults
        self._decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number)
        self._buffer = ""
        self._at = 0
        self._ended = False
        self.line = 1

    def _more(self) -> bool:
        """Read on; False at the end."""
        if self._ended:
            return False
        with _not_text(self._faults, lambda: self.line + self._buffer.count("\n", self._at)):
            read = self._text.read(PIECE)
        self._ended = not read
        self._buffer = self._buffer[self._at :] + read
        self._at = 0
        return bool(read)

    def _go(self, to: int) -> None:
        self.line += self._buffer.count("\n", self._at, to)
        self._at = to

    def next(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            at = self._at
            while at < len(self._buffer) and self._buffer[at] in _BLANK:
                at += 1
            self._go(at)
            if at < len(self._buffer):
                return self._buffer[at]
            if not self._more():
                return ""

    def take(self, wanted: str) -> None:
        """Go over a character that has to come next."""
        found = self.next()
        if found == "" or found not in wanted:
            what = " or ".join(wanted)
            seen = "the file ends" if found == "" else f"not {shown(found)}"
            self.stop(f"{what} is expected, {seen}", "check quotes, commas and brackets")
        self._at += 1

    def value(self) -> Any:
        """The value that comes next, whole."""
        self.next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._at)
            except _Doubled as error:
                self.stop(str(error), "keep one of them")
            except RecursionError:
                self.stop("is nested too deep", "flatten it")
            except ValueError as error:
                self._read_on(error)
                continue
            if end == len(self._buffer) and self._more():
                # It may only seem to be whole: 12 of 123.
                continue
            self._go(end)
            return value

    def _read_on(self, error: ValueError) -> None:
        """A value that is not whole: perhaps what is missing is only not read yet."""
        if len(self._buffer) - self._at > MAX_RECORD:
            raise TooLarge(
                f"{self._faults.source}:{self.line}: a record has more than {MAX_RECORD >> 20} Mi characters",
                hint="leave it out, or shorten it",
            )
        if not self._more():
            at = error.pos if isinstance(error, json.JSONDecodeError) else self._at
            self.line += self._buffer.count("\n", self._at, at)
            what = error.msg.lower() if isinstance(error, json.JSONDecodeError) else str(error)
            self.stop(what, "check quotes, commas and brackets")

    def stop(self, problem: str, hint: str) -> NoReturn:
        raise self._faults.fatal(self.line, 1, problem, hint)


def _json_records(text: IO[str], faults: Faults) -> Iterator[Record]:
    window = _Window(text, faults)
    number = 0
    while (first := window.next()) != "":
        found = _listed(window) if first == "[" else _below_keys(window) if first == "{" else None
        if found is None:
            window.stop("an object or a list of objects is expected", "write [{...}, {...}], or one {...} a line")
        for line, fields in found:
            number += 1
            yield Record(number, line, fields)


def _listed(window: _Window) -> Iterator[tuple[int, Any]]:
    window.take("[")
    if window.next() == "]":
        window.take("]")
        return
    while True:
        window.next()
        line = window.line
        yield line, window.value()
        if window.next() == "]":
            window.take("]")
            return
        window.take(",]")


def _below_keys(window: _Window) -> Iterator[tuple[int, Any]]:
    """An object that is a record, or that has records below one of its keys."""
    window.next()
    line = window.line
    window.take("{")
    own: dict[str, Any] = {}
    holds = False
    while window.next() != "}":
        key = window.value()
        if not isinstance(key, str):
            window.stop("a key in double quotes is expected", "check quotes, commas and brackets")
        window.take(":")
        first = window.next()
        if key in LISTS and first == "[":
            holds = True
            yield from _listed(window)
        elif key in LISTS and first == "{":
            holds = True
            yield from _below_keys(window)
        elif key in own:
            window.stop(f"the key {shown(key)} is there twice", "keep one of them")
        else:
            own[key] = window.value()
        if window.next() != "}":
            window.take(",}")
    window.take("}")
    if own and not holds:
        yield line, own
