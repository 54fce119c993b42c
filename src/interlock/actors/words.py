"""What an agent left behind to be read: its result file, and the last line of its output.

Both are the agent's to write, so anything may be there: a pipe, a link to itself, megabytes on one line, escape sequences.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from interlock.decide.outcome import ResultFile, read_result

RESULT_LIMIT = 16 * 1024 * 1024
TAIL_BYTES = 4096
TAIL_CHARACTERS = 200

# Whole sequences (CSI, OSC, DCS ...), so that none of their letters are left, then single control characters.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
    r"|\x1b|[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]"
)
_BREAKS = re.compile(r"[\r\n\v\f\x85\u2028\u2029]+")


def load_result(path: Path) -> tuple[ResultFile | None, str | None]:
    """The agent's own word: (result, None), (None, what is wrong with it), or (None, None) when it wrote nothing."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            data = file.read(RESULT_LIMIT + 1)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"the result file cannot be read: {error.strerror}"
    if not data.strip():
        return None, None
    if len(data) > RESULT_LIMIT:
        return None, f"the result file is over {RESULT_LIMIT // 1024 // 1024} MiB"
    try:
        return read_result(data), None
    except ValueError as error:
        return None, str(error)


def read_tail(path: Path, limit: int = TAIL_CHARACTERS) -> str:
    """Last line of a log that says something, without escape sequences, cut to ``limit`` characters. Reads its last 4 KiB."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return ""
    text = _ESCAPES.sub("", data.decode("utf-8", errors="replace"))
    for line in reversed(_BREAKS.split(text)):
        if line.strip():
            return line.strip()[:limit]
    return ""


def open_regular(path: str, flags: int) -> int:
    """For a file that is an agent's to make.

    To open or read a pipe in its place would wait for ever, and a link would have us read what is not the agent's.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", path)
