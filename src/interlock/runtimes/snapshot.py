"""All processes at one moment, indexed by the signs that tell to which tree they belong; shared by whoever looks.

A scan costs about 20 us a process. A thousand agents that are stopped together must not cost a thousand scans: those
who ask in the same turn of the loop get one scan between them, taken after they asked.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import trio

from interlock.runtimes import cgroup
from interlock.runtimes.process import GONE, ProcessStat, process_table

MARK = "INTERLOCK_ATTEMPT_DIR"
"""The variable by which a process is known to belong to an attempt: its folder."""

_MARK = b"\0" + MARK.encode() + b"="
_REMOVED = " (deleted)"
_RECENT_SECONDS = 1.0


class Snapshot:
    """Processes by pid, session, parent and mark. ``above``: only those beyond that pid. Raises OSError."""

    def __init__(self, *, above: int = 0) -> None:
        self.taken_at = time.monotonic()
        self._stats = list(process_table(above=above))
        self._by_pid: dict[int, ProcessStat] = {}
        self._by_session: dict[int, list[ProcessStat]] = {}
        self._by_parent: dict[int, list[ProcessStat]] = {}
        for stat in self._stats:
            self._by_pid[stat.pid] = stat
            self._by_session.setdefault(stat.session, []).append(stat)
            self._by_parent.setdefault(stat.parent, []).append(stat)
        self._environments_since: int | None = None
        self._by_mark: dict[bytes, list[ProcessStat]] = {}
        self._bare: list[ProcessStat] = []
        self._by_lock: dict[str, list[ProcessStat]] | None = None
        self._cgroups: dict[str, Path] | None = None

    def get(self, pid: int) -> ProcessStat | None:
        """The process with this pid."""
        return self._by_pid.get(pid)

    def session(self, number: int) -> list[ProcessStat]:
        """The members of a session."""
        return self._by_session.get(number, [])

    def with_descendants(self, stats: Iterable[ProcessStat]) -> dict[tuple[int, int], ProcessStat]:
        """``stats`` and all that descend from them, by their keys."""
        found = {stat.key: stat for stat in stats}
        todo = list(found.values())
        while todo:
            for child in self._by_parent.get(todo.pop().pid, ()):
                if child.key not in found:
                    found[child.key] = child
                    todo.append(child)
        return found

    def marked(self, folder: bytes, since: int) -> list[ProcessStat]:
        """Those started at ``since`` (ticks) or later whose environment at exec names ``folder`` as their attempt's."""
        self._read_environments(since)
        return [stat for stat in self._by_mark.get(folder, ()) if stat.start_ticks >= since]

    def bare(self, since: int) -> set[tuple[int, int]]:
        """Keys of those started since that show no environment: it is empty, or they are in the middle of an exec."""
        self._read_environments(since)
        return {stat.key for stat in self._bare if stat.start_ticks >= since}

    def holding(self, lock: Path) -> list[ProcessStat]:
        """Those that can be seen to hold the lock file of this path, one that was removed included. Dear at first asking."""
        if self._by_lock is None:
            found: dict[str, list[ProcessStat]] = {}
            for stat in self._stats:
                if stat.memory_bytes:
                    for path in held_locks(stat.pid):
                        found.setdefault(path, []).append(stat)
            self._by_lock = found
        return self._by_lock.get(str(lock), [])

    def cgroup(self, name: str) -> Path | None:
        """The cgroup of an attempt, wherever it is; None when there is none of this name. Dear at first asking."""
        if self._cgroups is None:
            self._cgroups = cgroup.existing()
        return self._cgroups.get(name)

    def _read_environments(self, since: int) -> None:
        before = self._environments_since
        if before is not None and before <= since:
            return
        for stat in self._stats:
            # without memory: a kernel thread, a zombie, one that is exiting
            if stat.memory_bytes == 0 or stat.start_ticks < since:
                continue
            if before is not None and stat.start_ticks >= before:
                continue
            folder = marked_folder(stat.pid)
            if folder:
                self._by_mark.setdefault(folder, []).append(stat)
            elif folder == b"":
                self._bare.append(stat)
        self._environments_since = since


def held_locks(pid: int) -> set[str]:
    """The paths of the lock files that a process can be seen to hold, as they were if they are removed."""
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except (*GONE, PermissionError):
        return set()
    found = set()
    for number in numbers:
        with suppress(*GONE, PermissionError):
            path = os.readlink(f"{folder}/{number}").removesuffix(_REMOVED)
            if path.endswith("/lock") and not _only_looks(pid, number):
                found.add(path)
    return found


def _only_looks(pid: int, number: str) -> bool:
    """Whether this descriptor shares a lock: that of a dispatcher which looks, never that of a tree."""
    with suppress(OSError), open(f"/proc/{pid}/fdinfo/{number}", "rb") as file:
        words = file.read().split()
        return b"FLOCK" in words and b"READ" in words
    return False


def marked_folder(pid: int) -> bytes | None:
    """The attempt folder that a process's environment (as it was at exec) names.

    Empty when it shows no environment (now); None when it names no folder, or is not ours to see.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            environment = file.read()
    except (*GONE, PermissionError):
        return None
    if not environment:
        return b""
    return (b"\0" + environment).partition(_MARK)[2].partition(b"\0")[0] or None


_order = itertools.count(1)
_latest: tuple[int, Snapshot] | None = None


async def fresh_snapshot() -> Snapshot:
    """One that was begun after this call. Raises OSError."""
    asked = next(_order)
    await trio.lowlevel.checkpoint()
    if _latest is not None and _latest[0] > asked:
        return _latest[1]
    return _take()


def recent_snapshot() -> Snapshot:
    """One that is at most a second old. Raises OSError."""
    if _latest is not None and time.monotonic() - _latest[1].taken_at < _RECENT_SECONDS:
        return _latest[1]
    return _take()


def _take() -> Snapshot:
    global _latest  # noqa: PLW0603
    # numbered before it is begun: whoever asks meanwhile (there is no other thread that may) gets a later one
    number = next(_order)
    _latest = (number, Snapshot())
    return _latest[1]


def holds_lock(pid: int, wanted: os.stat_result) -> bool:
    """Whether a process can be seen to hold a lock file; only files of the name ``lock`` are looked at."""
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except (*GONE, PermissionError):
        return False
    for number in numbers:
        try:
            # the name first: a stat of a file on a dead network mount would hang
            if "/lock" not in os.readlink(f"{folder}/{number}"):
                continue
            if os.path.samestat(os.stat(f"{folder}/{number}"), wanted) and not _only_looks(pid, number):
                return True
        except OSError:
            continue
    return False
