"""From bytes to text, with the refusals that every format shares."""

from __future__ import annotations

import os
import re
import select
import sys
from typing import IO

from interlock.domain.errors import InterlockError, InvalidInput, NotFound, TooLarge
from interlock.sources.faults import Faults, printable

MAX_FILE_BYTES = 64 * 1024 * 1024
STDIN = "-"

# tab and the line breaks are left; CR is gone before this looks
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def source_name(path: str) -> str:
    """What messages call the file."""
    return "<stdin>" if path == STDIN else printable(path)


def read_bytes(path: str, *, stdin: IO[bytes] | None = None, error: type[InterlockError] = InvalidInput) -> bytes:
    """The file's bytes; ``-`` is standard input.

    Raises NotFound (no such file), TooLarge (over 64 MiB), or ``error`` (a folder, not readable, standard input
    that is closed).
    """
    name = source_name(path)
    try:
        if path == STDIN:
            data = _read_stream(stdin or _standard_input(error))
        else:
            with open(path, "rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"{name}: no such file", hint=_where_paths_start()) from None
    except IsADirectoryError:
        raise error(f"{name}: is a folder", hint="name the file inside it") from None
    except (OSError, ValueError) as cause:
        reason = getattr(cause, "strerror", None) or str(cause)
        raise error(f"{name}: cannot be read: {reason}", hint="check the path and its permissions") from None
    if len(data) > MAX_FILE_BYTES:
        raise TooLarge(f"{name}: larger than {MAX_FILE_BYTES // 2**20} MiB", hint="split it into several files")
    return data


def _standard_input(error: type[InterlockError]) -> IO[bytes]:
    # None where the program was started without one: `<&-`, some services; closed where somebody closed it since
    if sys.stdin is None or sys.stdin.closed:
        raise error("standard input is closed", hint="give it with `< FILE` or a pipe, or name a file")
    return sys.stdin.buffer


def _read_stream(stream: IO[bytes]) -> bytes:
    """All there is, one byte over the limit at most. A pipe that does not block is waited for: half a backlog is none."""
    left = MAX_FILE_BYTES + 1
    try:
        blocks = os.get_blocking(stream.fileno())
    except (OSError, AttributeError):  # not a file of the system's
        blocks = True
    if blocks:
        return stream.read(left)
    parts = []
    while left:
        select.select([stream], [], [])
        part: bytes | None = stream.read(left)
        if part == b"":
            break
        parts.append(part or b"")
        left -= len(part or b"")
    return b"".join(parts)


def _where_paths_start() -> str:
    try:
        return f"paths start at {printable(os.getcwd())}"
    except OSError:
        return "the folder that you are in was removed: change to another"


def decode(data: bytes, faults: Faults) -> str:
    """UTF-8 text without BOM, line breaks as ``\\n``, without control characters.

    Raises the faults' error with line and column of the first byte that is not text.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise faults.fatal(1, 1, "is UTF-16 text", "save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        # the decoder counts after the BOM that it took off
        at = cause.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        line = data.count(b"\n", 0, at) + 1
        column = len(data[data.rfind(b"\n", 0, at) + 1 : at].decode("utf-8", "replace")) + 1
        problem = f"column {column}: byte 0x{data[at]:02x} is not UTF-8"
        raise faults.fatal(line, column, problem, "save the file as UTF-8") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    found = _CONTROL.search(text)
    if found:
        line, column = place(text, found.start())
        raise faults.fatal(
            line,
            column,
            f"column {column}: control character U+{ord(found[0]):04X}",
            "remove it; only tabs and line breaks may stand in a text",
        )
    return text


def place(text: str, at: int) -> tuple[int, int]:
    """Line and column of an index, both from 1."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
