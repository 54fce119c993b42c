"""The two files that say who runs in an attempt's folder, and how it ended.

Both count only when they end in a newline. The process writes its own identity before it becomes the agent: when that
cannot be done (disk full) no agent starts. The exit status is written by the keeper when the agent has ended; when there
is none, and nobody heard it otherwise, the attempt counts as lost.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.run import ProcessIdentity
from interlock.runtimes import process


class InProcess(msgspec.Struct, frozen=True):
    """In place of a process: the agent is a function, in an interpreter that is nobody's to kill."""

    interpreter: ProcessIdentity


def read_line(path: Path) -> bytes | None:
    """A file's content without its final newline; None when it is missing or not (yet) complete."""
    try:
        # an agent can put a pipe in its place: to open or read that would wait for ever
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        content = os.read(fd, 4096)
    finally:
        os.close(fd)
    return content[:-1] if content.endswith(b"\n") else None


def read_exit(files: AttemptFiles) -> int | None:
    """The agent's exit status, 0..255; None when it left none."""
    line = read_line(files.exit)
    if line is None or not line.isdigit() or len(line) > 3:
        return None
    status = int(line)
    return status if status < 256 else None


def read_identity(files: AttemptFiles) -> ProcessIdentity | InProcess | None:
    """Who runs, or ran, in this folder; None when nobody wrote so (completely), and then no agent was started."""
    line = read_line(files.identity)
    if line is None:
        return None
    words = line.split(b" ", 2)
    function = words[0] == b"function"
    if function:
        words = line.split(b" ", 3)[1:]
    try:
        boot, namespace, raw = words
        stat = process.parse_stat(raw)
    except ValueError:
        return None
    identity = ProcessIdentity(
        boot_id=boot.decode(), pid_namespace=namespace.decode(), pid=stat.pid, start_ticks=stat.start_ticks
    )
    return InProcess(identity) if function else identity


def write_in_process_mark(files: AttemptFiles) -> None:
    """The counterpart of an identity for an agent inside this process. Raises OSError."""
    stat = Path("/proc/self/stat").read_bytes().rstrip(b"\n")
    line = b"function %s %s %s\n" % (process.boot_id().encode(), process.pid_namespace().encode(), stat)
    files.identity.write_bytes(line)
