"""The process tree of an attempt: who belongs to it, whether any of it is left, and its end by force.

Its root is the agent's own process, which leads a session. Where that joined a cgroup, the cgroup is the tree.
Otherwise a process is a member when any of these holds, and it did not start before the root:

* it is in the root's session. The number stays reserved while the root's process (a zombie counts) or anyone
  of the session is there; when the root is gone, the session is believed only if a member by other signs is in it;
* its environment carries the mark ``INTERLOCK_ATTEMPT_DIR=<folder>`` (as it was at exec);
* it descends from a member;
* it holds the attempt's lock file. Looked at only when the lock is held and nothing else was found, and when the folder
  is gone: dear.

A folder can go away under a tree: someone tidies up. Then it has no lock that could be tried, or, made anew, one that
guards nothing. Such a tree is known by all of the above, by its removed lock file (which /proc still shows) and by
its cgroup, which is looked for by its name.

What escapes without a cgroup: a process that starts a session of its own, with an empty environment *and* all
descriptors closed, after its parents are gone. What escapes with one: a process that a privileged service moves to
another cgroup (systemd-run, a PAM login) and that has closed the lock. Nothing of another pid namespace is signalled.

The keeper that started the agent is no member, though it holds the lock. While it lives nothing escapes it: what it found
to be gone (``proven_gone``) need not be looked for.

An error that proves nothing (no descriptor left to look with) is raised, never taken for an absence.
"""

from __future__ import annotations

import os
import signal
import time
from functools import cache
from pathlib import Path

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.run import ProcessIdentity
from interlock.runtimes import attempt_lock, cgroup
from interlock.runtimes.process import (
    ProcessStat,
    identity_of,
    is_keeper,
    process_table,
    read_stat,
    running_pids,
    send_signal,
)
from interlock.runtimes.records import read_identity, read_line
from interlock.runtimes.snapshot import (
    Snapshot,
    fresh_snapshot,
    held_locks,
    holds_lock,
    marked_folder,
    recent_snapshot,
)

_QUICK_SECONDS = 0.25
_ENOUGH_PIDS = 32768
_FREEZE_ROUNDS = 25

OUT_OF_REACH = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
"""What is answered for an attempt's file when its folder is not what it was, and will not be again by waiting."""


class SelfInTree(Exception):
    """This very process belongs to the tree: it cannot confirm the tree's end, and must not signal it."""


class Tree:
    """The tree of one attempt. ``root`` is the agent's process, None while nobody knows it."""

    def __init__(
        self,
        files: AttemptFiles,
        root: ProcessIdentity | None,
        *,
        cgroup_path: Path | None = None,
        launched_at: float | None = None,
    ) -> None:
        self.files = files
        self.root = root
        self._cgroup = cgroup_path
        self._launched_at = launched_at
        self._seen_bare: set[tuple[int, int]] = set()
        self.proven_gone = False
        """Whether the keeper has said that nothing is left."""
        self.undecided = False
        """Whether the last look met a process of which it could not tell yet: look again a moment later."""
        self.strangers: list[ProcessStat] = []
        """Holders of the removed lock of which the last look could not tell whether they are of this tree."""

    @property
    def contained(self) -> bool:
        """Whether a cgroup holds the tree. False too when the agent could not join it: then its name is wiped."""
        try:
            if os.stat(self.files.lock).st_size == 0:
                return False
        except OSError:
            return False
        if self._cgroup is None:
            self._cgroup = recorded_cgroup(self.files)
        return self._cgroup is not None

    async def gone(self) -> bool:
        """Whether all of it is confirmed to be gone: the lock is free, the cgroup empty (or no member found).

        Cheap while the lock is held, with a cgroup, and after a short life. Removes the cgroup. Raises OSError when
        it cannot be told.
        """
        free = self._lock_is_free()
        if free is False:
            return False
        if free and self.contained:
            return self.remove_cgroup()
        if self.proven_gone:
            return self.remove_cgroup()
        lost = not free or self._is_lost()
        above = 0 if lost else self._pids_above()
        snapshot = Snapshot(above=above) if above else await fresh_snapshot()
        if self._find(snapshot, lost=lost) or self.undecided or self.strangers:
            return False
        return not lost or self.remove_cgroup()

    async def find_any(self) -> list[ProcessStat]:
        """Members by every sign but the lock, cgroup or not: for a recovery, which looks once and thoroughly."""
        found = self._in_cgroup() if self.contained else []
        return [*found, *self._find(await fresh_snapshot(), lost=self._is_lost())]

    async def find_root(self) -> ProcessIdentity | None:
        """Who must be the root of a tree that was found without knowing it: the oldest, if it leads its session.

        None when there is no such one: it is dead. Nobody may be taken for it then, since members are younger than it.
        """
        found = await self.find_any()
        first = min((stat.start_ticks for stat in found), default=0)
        leaders = [stat for stat in found if stat.start_ticks == first and stat.session == stat.pid]
        return identity_of(leaders[0]) if len({stat.pid for stat in leaders}) == 1 else None

    def remove_cgroup(self) -> bool:
        """Remove the cgroup, if one is known: True when nobody lives in it."""
        return self._cgroup is None or cgroup.remove(self._cgroup)

    def _lock_is_free(self) -> bool | None:
        """None when there is no lock any more that could be tried. Raises OSError when nothing can be told."""
        try:
            return attempt_lock.is_free(self.files)
        except OUT_OF_REACH:
            return None

    def _is_lost(self) -> bool:
        """Whether the folder tells nothing of this tree, which was started in it: it was removed, and perhaps made anew."""
        try:
            recorded = read_identity(self.files)
        except OUT_OF_REACH:
            return True
        return recorded is None or (self.root is not None and recorded != self.root)

    async def members(self) -> list[ProcessStat]:
        """Living members, the root included. With a cgroup that is not empty: those in it.

        Raises :class:`SelfInTree`, and OSError when it cannot be told.
        """
        found = self._in_cgroup()
        free = self._lock_is_free()
        if not found:
            found = self._find(await fresh_snapshot(), lost=not free or self._is_lost())
        if not found and free is False:
            found = [stat for stat in self.holders() if self._is_young(stat) and not is_keeper(stat.pid)]
        if any(stat.pid == os.getpid() for stat in found):
            raise SelfInTree
        return found

    def _is_root(self, stat: ProcessStat) -> bool:
        return self.root is not None and stat.key == (self.root.pid, self.root.start_ticks)

    def is_held_by(self, pid: int) -> bool:
        """Whether a process can be seen to hold the lock, or the one that was there before."""
        return self._holds_lock(pid, self._stat_lock())

    async def kill(self, *, hunt: bool = False) -> None:
        """KILL every member, once. Without a cgroup all are stopped first, so that none forks or restarts another.

        ``hunt`` is for chains of processes so short-lived that they are gone before a scan is over: each is stopped as
        soon as it is seen, the newest first.
        """
        if self._cgroup is not None or self.contained:
            assert self._cgroup is not None
            pids = cgroup.members(self._cgroup)
            if os.getpid() in pids:
                raise SelfInTree
            if pids and cgroup.kill(self._cgroup):
                return
        frozen: set[tuple[int, int]] = set()
        try:
            for _ in range(_FREEZE_ROUNDS):
                known = len(frozen)
                for stat in await self.members():
                    if stat.key not in frozen:
                        frozen.add(stat.key)
                        send_signal(stat.pid, stat.start_ticks, signal.SIGSTOP)
                if hunt:
                    self._hunt(frozen)
                if len(frozen) == known:
                    break
        finally:
            # never left stopped half-way, not even by a cancellation
            for pid, start_ticks in frozen:
                send_signal(pid, start_ticks, signal.SIGKILL)

    def _hunt(self, frozen: set[tuple[int, int]]) -> None:
        """Stop each member at first sight, and add it to ``frozen``."""
        if self.root is None:
            return
        root = read_stat(self.root.pid)
        session = self.root.pid if root is not None and self._is_root(root) else None
        mark = os.fsencode(self.files.folder)
        lock = self._stat_lock()
        parents = {pid for pid, _ in frozen}
        for pid in sorted(running_pids(), reverse=True):
            stat = read_stat(pid)
            if stat is None or stat.key in frozen or pid == os.getpid() or not self._is_young(stat):
                continue
            if stat.session != session and stat.parent not in parents:
                belongs_to = marked_folder(pid) if stat.memory_bytes else None
                # no environment: in the middle of an exec, perhaps, which keeps descriptors
                bare = belongs_to == b"" and self._holds_lock(pid, lock) and not is_keeper(pid)
                if belongs_to != mark and not bare:
                    continue
            frozen.add(stat.key)
            parents.add(pid)
            send_signal(pid, stat.start_ticks, signal.SIGSTOP)

    def cpu_ticks(self) -> int:
        """CPU time so far, in clock ticks; without a cgroup that of the session and its descendants, 1 s old at most."""
        if self.contained and self._cgroup is not None:
            used = cgroup.cpu_microseconds(self._cgroup)
            if used is not None:
                return used * os.sysconf("SC_CLK_TCK") // 1_000_000
        if self.root is None:
            return 0
        snapshot = recent_snapshot()
        found = snapshot.with_descendants(s for s in snapshot.session(self.root.pid) if self._is_young(s))
        return sum(stat.cpu_ticks for stat in found.values())

    def holders(self) -> list[ProcessStat]:
        """Everyone who can be seen to hold the lock, or the one that was there before, of this tree or not."""
        lock = self._stat_lock()
        return [stat for stat in process_table() if stat.living and self._holds_lock(stat.pid, lock)]

    def _stat_lock(self) -> os.stat_result | None:
        try:
            return os.stat(self.files.lock)
        except OSError:
            return None

    def _holds_lock(self, pid: int, lock: os.stat_result | None) -> bool:
        return (lock is not None and holds_lock(pid, lock)) or str(self.files.lock) in held_locks(pid)

    def _is_young(self, stat: ProcessStat) -> bool:
        return self.root is not None and stat.start_ticks >= self.root.start_ticks

    def _in_cgroup(self) -> list[ProcessStat]:
        if self._cgroup is None and not self.contained:
            return []
        assert self._cgroup is not None
        stats = (read_stat(pid) for pid in cgroup.members(self._cgroup))
        return [stat for stat in stats if stat is not None]

    def _pids_above(self) -> int:
        """Right after a short life only pids beyond the root's can be members: they cannot have wrapped round yet."""
        if self._launched_at is None or self.root is None:
            return 0
        if time.monotonic() - self._launched_at > _QUICK_SECONDS or not _many_pids():
            return 0
        try:
            with open("/proc/loadavg", "rb") as file:
                newest = int(file.read().split()[-1])
        except (OSError, ValueError, IndexError):
            return 0
        return self.root.pid - 1 if newest >= self.root.pid else 0

    def _find(self, snapshot: Snapshot, *, lost: bool) -> list[ProcessStat]:
        """Living members by session, mark and descent; when the folder is ``lost`` also by the lock and the cgroup.

        A process in the middle of an exec shows an empty environment, as does one that has none. Such a one is
        undecided when it is seen for the first time.
        """
        since = 0 if self.root is None else self.root.start_ticks
        first = snapshot.marked(os.fsencode(self.files.folder), since)
        self.strangers = []
        if lost:
            holders = [stat for stat in snapshot.holding(self.files.lock) if stat.start_ticks >= since]
            keepers = {stat.pid for stat in holders if is_keeper(stat.pid)}
            if self.root is None:
                first += [stat for stat in holders if stat.parent in keepers and stat.pid not in keepers]
                # a launcher, perhaps, which is not ours to signal
                self.strangers = [stat for stat in holders if stat not in first]
            else:
                first += [stat for stat in holders if stat.pid not in keepers]
            if self._cgroup is None:
                self._cgroup = snapshot.cgroup(cgroup.cgroup_name(self.files.folder))
            first += self._in_cgroup()
        session: list[ProcessStat] = []
        if self.root is not None:
            root = snapshot.get(self.root.pid)
            if root is not None and self._is_root(root):
                first.append(root)
            session = [stat for stat in snapshot.session(self.root.pid) if stat.start_ticks >= since]
        found = snapshot.with_descendants(first)
        if any(stat.key in found for stat in session):
            found = snapshot.with_descendants([*found.values(), *session])
        bare = snapshot.bare(since) - found.keys()
        self.undecided = not bare <= self._seen_bare
        self._seen_bare |= bare
        return [stat for stat in found.values() if stat.living]


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
