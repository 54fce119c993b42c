"""The process tree of an attempt: who belongs to it, whether any of it is left, and its end by force.

Where the wrapper joined a cgroup, the cgroup is the tree. Otherwise a process is a member when any of these holds, and
it did not start before the wrapper:

* it is in the wrapper's session. The number stays reserved while the wrapper's process (a zombie counts) or anyone
  of the session is there; when the wrapper is gone, the session is believed only if a member by other signs is in it;
* its environment carries the mark ``INTERLOCK_ATTEMPT_DIR=<folder>`` (as it was at exec);
* it descends from a member;
* it has the attempt's lock file open. Looked at only when the lock is held and nothing else was found: dear.

What escapes without a cgroup: a process that starts a session of its own, with an empty environment *and* all
descriptors closed, after its parents are gone. What escapes with one: a process that a privileged service moves to
another cgroup (systemd-run, a PAM login) and that has closed the lock. Nothing of another pid namespace is signalled.

An error that proves nothing (no descriptor left to look with) is raised, never taken for an absence.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.run import ProcessIdentity
from interlock.runtimes import attempt_lock, cgroup
from interlock.runtimes.process import GONE, ProcessStat, process_table, read_stat, send_signal
from interlock.runtimes.wrapper import read_line

MARK = "INTERLOCK_ATTEMPT_DIR"

_QUICK_SECONDS = 0.25
_ENOUGH_PIDS = 32768
_FREEZE_ROUNDS = 25


class SelfInTree(Exception):
    """This very process belongs to the tree: it cannot confirm the tree's end, and must not signal it."""


class Tree:
    """The tree of one attempt. ``wrapper`` is its root, None while nobody knows it."""

    def __init__(
        self,
        files: AttemptFiles,
        wrapper: ProcessIdentity | None,
        *,
        cgroup_path: Path | None = None,
        launched_at: float | None = None,
    ) -> None:
        self.files = files
        self.wrapper = wrapper
        self._cgroup = cgroup_path
        self._launched_at = launched_at
        self._seen_bare: set[tuple[int, int]] = set()
        self.undecided = False
        """Whether the last look met a process of which it could not tell yet: look again a moment later."""

    @property
    def contained(self) -> bool:
        """Whether a cgroup holds the tree. False too when the wrapper could not join it, and so wiped its name."""
        try:
            if os.stat(self.files.lock).st_size == 0:
                return False
        except OSError:
            return False
        if self._cgroup is None:
            self._cgroup = recorded_cgroup(self.files)
        return self._cgroup is not None

    def gone(self) -> bool:
        """Whether all of it is confirmed to be gone: the lock is free, the cgroup empty (or no member found).

        Cheap while the lock is held, and with a cgroup. Removes the cgroup. Raises OSError when the lock cannot be
        tried: then nothing is confirmed.
        """
        if not attempt_lock.is_free(self.files):
            return False
        if self.contained:
            return self._cgroup is not None and cgroup.remove(self._cgroup)
        return not self._find(above=self._pids_above()) and not self.undecided

    def find_any(self) -> list[ProcessStat]:
        """Members by every sign but the lock, cgroup or not: for a recovery, which looks once and thoroughly."""
        return [*(self._in_cgroup() if self.contained else []), *self._find()]

    def members(self) -> list[ProcessStat]:
        """Living members, the wrapper included. With a cgroup that is not empty: those in it."""
        found = self._in_cgroup() if self.contained else []
        if not found:
            found = self._find()
        if not found and not attempt_lock.is_free(self.files):
            found = [stat for stat in self.holders() if self._is_young(stat)]
        if any(stat.pid == os.getpid() for stat in found):
            raise SelfInTree
        return found

    def is_wrapper(self, stat: ProcessStat) -> bool:
        """Whether this is the root."""
        return self.wrapper is not None and stat.key == (self.wrapper.pid, self.wrapper.start_ticks)

    async def kill(self) -> None:
        """KILL every member, once. Without a cgroup all are stopped first, so that none forks or restarts another."""
        if self.contained and self._cgroup is not None:
            pids = cgroup.members(self._cgroup)
            if os.getpid() in pids:
                raise SelfInTree
            if pids and cgroup.kill(self._cgroup):
                return
        frozen: set[tuple[int, int]] = set()
        try:
            for _ in range(_FREEZE_ROUNDS):
                fresh = {stat.key for stat in self.members()} - frozen
                if not fresh:
                    break
                for pid, start_ticks in fresh:
                    send_signal(pid, start_ticks, signal.SIGSTOP)
                frozen |= fresh
                await trio.lowlevel.checkpoint()
        finally:
            # never left stopped half-way, not even by a cancellation
            for pid, start_ticks in frozen:
                send_signal(pid, start_ticks, signal.SIGKILL)

    def cpu_ticks(self, table: list[ProcessStat] | None) -> int:
        """CPU time of the tree so far, in clock ticks; of the session and its descendants where there is no cgroup."""
        if self.contained and self._cgroup is not None:
            used = cgroup.cpu_microseconds(self._cgroup)
            if used is not None:
                return used * os.sysconf("SC_CLK_TCK") // 1_000_000
        if self.wrapper is None:
            return 0
        found = {s.key: s for s in table or () if s.session == self.wrapper.pid and self._is_young(s)}
        _add_descendants(found, table or [])
        return sum(stat.cpu_ticks for stat in found.values())

    def holders(self) -> list[ProcessStat]:
        """Everyone who can be seen to have the lock file open, of this tree or not."""
        try:
            lock = os.stat(self.files.lock)
        except OSError:
            return []
        return [stat for stat in process_table() if stat.living and _has_open(stat.pid, lock)]

    def _is_young(self, stat: ProcessStat) -> bool:
        return self.wrapper is not None and stat.start_ticks >= self.wrapper.start_ticks

    def _in_cgroup(self) -> list[ProcessStat]:
        if self._cgroup is None:
            return []
        stats = (read_stat(pid) for pid in cgroup.members(self._cgroup))
        return [stat for stat in stats if stat is not None]

    def _pids_above(self) -> int:
        """Right after a short life only pids beyond the wrapper's can be members: they cannot have wrapped round yet."""
        if self._launched_at is None or self.wrapper is None:
            return 0
        if time.monotonic() - self._launched_at > _QUICK_SECONDS or not _many_pids():
            return 0
        try:
            with open("/proc/loadavg", "rb") as file:
                newest = int(file.read().split()[-1])
        except (OSError, ValueError, IndexError):
            return 0
        return self.wrapper.pid - 1 if newest >= self.wrapper.pid else 0

    def _find(self, *, above: int = 0) -> list[ProcessStat]:
        """Living members by session, mark and descent.

        A process in the middle of an exec shows an empty environment, as does one that has none. Such a one is
        undecided when it is seen for the first time.
        """
        table = list(process_table(above=above))
        found: dict[tuple[int, int], ProcessStat] = {}
        self.undecided = False
        if self.wrapper is not None:
            table = [stat for stat in table if self._is_young(stat)]
            found = {stat.key: stat for stat in table if self.is_wrapper(stat)}
        self._add_session(found, table)
        _add_descendants(found, table)
        mark = b"\0%s=%s\0" % (MARK.encode(), os.fsencode(self.files.folder))
        bare: set[tuple[int, int]] = set()
        for stat in table:
            if stat.key in found or stat.memory_bytes == 0:
                continue
            environment = _environment(stat.pid)
            if environment is not None and mark in environment:
                found[stat.key] = stat
            elif environment == b"":
                bare.add(stat.key)
        self._add_session(found, table)
        _add_descendants(found, table)
        bare -= found.keys()
        self.undecided = not bare <= self._seen_bare
        self._seen_bare |= bare
        return [stat for stat in found.values() if stat.living]

    def _add_session(self, found: dict[tuple[int, int], ProcessStat], table: list[ProcessStat]) -> None:
        session = None if self.wrapper is None else self.wrapper.pid
        if session is not None and any(stat.session == session for stat in found.values()):
            found.update((stat.key, stat) for stat in table if stat.session == session)


@cache
def _many_pids() -> bool:
    """Whether pids take long to come round again: a small pid_max can be used up in a moment."""
    try:
        return int(Path("/proc/sys/kernel/pid_max").read_bytes()) >= _ENOUGH_PIDS
    except (OSError, ValueError):
        return False


def recorded_cgroup(files: AttemptFiles) -> Path | None:
    """The cgroup that the attempt's lock file names, if it is there and is this folder's (an agent could write there)."""
    line = read_line(files.lock)
    if not line:
        return None
    path = Path(os.fsdecode(line))
    return path if path.name == cgroup.cgroup_name(files.folder) and path.is_dir() else None


def _add_descendants(found: dict[tuple[int, int], ProcessStat], table: list[ProcessStat]) -> None:
    children: dict[int, list[ProcessStat]] = {}
    for stat in table:
        children.setdefault(stat.parent, []).append(stat)
    todo = [key[0] for key in found]
    while todo:
        for child in children.get(todo.pop(), ()):
            if child.key not in found:
                found[child.key] = child
                todo.append(child.pid)


def _environment(pid: int) -> bytes | None:
    """The environment at exec, framed by NULs; empty when there is none (now); None when it is not ours to see."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            content = file.read()
    except (*GONE, PermissionError):
        return None
    return b"\0" + content + b"\0" if content else b""


def _has_open(pid: int, wanted: os.stat_result) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except (*GONE, PermissionError):
        return False
    for number in numbers:
        with suppress(OSError):
            # the name first: a stat of a file on a dead network mount would hang
            if "/lock" in os.readlink(f"{folder}/{number}") and os.path.samestat(
                os.stat(f"{folder}/{number}"),
                wanted,
            ):
                return True
    return False
