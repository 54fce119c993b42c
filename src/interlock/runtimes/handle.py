"""A live agent that is a process: waiting for its end, ending its tree."""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress

import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.crashpoints import crashpoint
from interlock.domain.run import ProcessIdentity
from interlock.ports.runtime import Activity, Ending, TreeSurvives
from interlock.runtimes import attempt_lock
from interlock.runtimes.keeper import Charge
from interlock.runtimes.process import Liveness, is_alive, is_local, open_pidfd, read_stat, send_signal
from interlock.runtimes.records import InProcess, read_exit, read_identity
from interlock.runtimes.tree import OUT_OF_REACH, SelfInTree, Tree

PATIENCE_SECONDS = 10.0
"""How long after KILL a tree may take to be gone (a process in an uninterruptible sleep does not die)."""

_FIRST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.25
_TRIES_BEFORE_HUNT = 1
_LOOKS_AT_LOCK = 5

_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class ProcessHandle:
    """Handle of an agent that is a process: one that this process launched (``charge``), or one that it found.

    Of the first its keeper tells when it has ended, and how. The second is watched by a pidfd, and by its files; so is the
    first when its keeper is gone. One that was found may not have written yet who it is: ``identity`` is None then, and
    the lock is all that there is to wait for. So it is for a function inside another process, which cannot be stopped
    from here. Costs one descriptor where it is watched by a pidfd. To be used under trio; :meth:`wait` and :meth:`stop`
    may run at the same time.
    """

    def __init__(
        self,
        files: AttemptFiles,
        root: ProcessIdentity | None,
        tree: Tree | None = None,
        *,
        charge: Charge | None = None,
    ) -> None:
        self._files = files
        self._root: ProcessIdentity | None = None
        self._interpreter: ProcessIdentity | None = None
        self._tree = tree or Tree(files, None)
        self._charge = charge
        self._pidfd: int | None = None
        self._waiters = 0
        self._ended = False
        self._gone = False
        self._closed = False
        self._termed: set[tuple[int, int]] = set()
        if root is not None:
            self._meet(root)

    @property
    def identity(self) -> ProcessIdentity | None:
        """The agent's process; None while it is not known."""
        return self._root

    async def wait(self) -> Ending:
        """Until the agent has ended. Descendants may be left.

        ``exit_status`` is None when nobody knows it: its keeper was killed, or could not write and is not ours. Also when
        nothing was started.
        """
        await trio.lowlevel.checkpoint()
        await self._until_known()
        pause = _FIRST_PAUSE_SECONDS
        while not self._ended:
            await self._until_ended(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return Ending(exit_status=await self._status())

    async def _status(self) -> int | None:
        if self._charge is not None and self._charge.ended:
            return self._charge.status
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                # asked first: what it wrote meanwhile is read then
                to_come = self._is_status_to_come()
                status = read_exit(self._files)
            except OSError as error:
                if error.errno not in _PASSING:
                    return None
            else:
                if status is not None or not to_come:
                    return status
            await trio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _is_status_to_come(self) -> bool:
        """Whether the keeper is still to write how the agent ended: its zombie's parent holds the lock until then.

        When the keeper is gone, the zombie has another parent, if it is there at all. Raises OSError.
        """
        if self._root is None or not is_local(self._root):
            return False
        stat = read_stat(self._root.pid)
        return stat is not None and stat.start_ticks == self._root.start_ticks and self._tree.is_held_by(stat.parent)

    async def stop(self, grace_ms: int) -> None:
        """End the whole tree: TERM to all, up to ``grace_ms`` milliseconds, KILL to all, confirmed.

        Near to free after a clean end. Raises :class:`TreeSurvives` when, 10 s after KILL, the end is not confirmed.
        May be called again, also at the same time with a shorter grace.
        """
        await trio.lowlevel.checkpoint()
        if self._gone:
            return
        self._hear_end()
        try:
            if not self._ended and self._root is None:
                await self._stop_unknown()
            if not self._ended and self._root is not None and not is_local(self._root):
                raise TreeSurvives(f"the agent of {self._files.folder} runs in another pid namespace")
            if not await self._gone_by_itself():
                await self._ask(grace_ms)
                await self._kill()
        except SelfInTree:
            raise TreeSurvives(
                f"this process (pid {os.getpid()}) is itself part of the tree of {self._files.folder}: stop it from outside"
            ) from None
        except OSError as error:
            raise TreeSurvives(f"whether the tree of {self._files.folder} is gone cannot be told: {error}") from error
        if not self._ended:
            # its lock is free a moment before the keeper tells
            await self._pause(_LONGEST_PAUSE_SECONDS)
        self._gone = True
        self._ended = True
        self.close()

    def activity(self) -> Activity:
        """Bytes of output, and clock ticks of CPU time (from a look at /proc at most a second old)."""
        try:
            size = os.stat(self._files.log).st_size
        except OSError:
            size = 0
        try:
            ticks = self._tree.cpu_ticks()
        except OSError:
            ticks = 0
        return Activity(output_bytes=size, cpu_ticks=ticks)

    def close(self) -> None:
        """Let go of what is held for it; the agent lives on. Who waits by a pidfd gets trio.ClosedResourceError."""
        if self._pidfd is not None:
            trio.lowlevel.notify_closing(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if not self._closed and self._charge is not None:
            self._charge.let_go()
        self._closed = True

    def _meet(self, root: ProcessIdentity) -> None:
        self._root = root
        if not is_local(root):
            # the tree is not told: numbers of another boot or namespace would name strangers here
            self._ended = is_alive(root) is Liveness.DEAD
            return
        self._tree.root = root
        if self._charge is None or self._charge.lost:
            self._watch(root)

    def _watch(self, root: ProcessIdentity) -> None:
        try:
            self._pidfd = open_pidfd(root.pid, root.start_ticks)
        except ProcessLookupError:
            self._ended = True

    def _hear_end(self) -> None:
        if self._charge is not None and self._charge.ended:
            self._ended = True
            self._tree.proven_gone = self._charge.alone

    async def _until_known(self) -> None:
        """Until the agent says who it is, or the lock is free: then nothing runs, and the void mark keeps it so."""
        pause = _FIRST_PAUSE_SECONDS
        while not self._ended and self._root is None:
            if not self._look() and not await self._look_without_folder():
                await trio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _look(self) -> bool:
        """Whether it is known now what is behind the lock."""
        lock = None
        try:
            identity = read_identity(self._files)
            if isinstance(identity, ProcessIdentity):
                self._meet(identity)
                return True
            if isinstance(identity, InProcess):
                self._interpreter = identity.interpreter
            lock = attempt_lock.share(self._files, create=False)
            if lock is None:
                return False
            attempt_lock.write_void(self._files)
            identity = read_identity(self._files)
        except OSError:
            # a full descriptor table, a folder out of reach: nothing is known
            return False
        finally:
            if lock is not None:
                os.close(lock)
        if isinstance(identity, ProcessIdentity):
            self._meet(identity)
        else:
            self._ended = True
        return True

    async def _look_without_folder(self) -> bool:
        """Whether it is known what was behind the lock, when the folder is gone and can tell no more.

        A process that has not written yet who it is cannot do so any more, and starts nothing.
        """
        try:
            os.stat(self._files.lock)
        except OUT_OF_REACH:
            if self._interpreter is not None and is_alive(self._interpreter) is not Liveness.DEAD:
                return False
        except OSError:
            return False
        else:
            return False
        try:
            root = await self._tree.find_root()
        except OSError:
            return False
        if root is not None:
            self._meet(root)
        elif self._tree.undecided or self._tree.strangers:
            return False
        else:
            self._ended = True
        return True

    async def _until_ended(self, pause: float) -> None:
        """Until the agent has ended; without keeper and pidfds until it has, or ``pause`` has passed."""
        assert self._root is not None
        charge = self._charge
        if charge is not None and not charge.lost:
            await charge.until_over()
            self._hear_end()
            return
        if charge is not None and self._pidfd is None and not self._closed and is_local(self._root):
            self._watch(self._root)
            if self._ended:
                return
        shared = self._waiters > 0
        fd = self._pidfd
        if fd is not None and shared:
            # trio lets one task wait for a descriptor
            try:
                fd = os.dup(fd)
            except OSError:
                fd = None
        if fd is None:
            self._ended = is_alive(self._root) is Liveness.DEAD
            if not self._ended:
                await trio.sleep(pause)
            return
        self._waiters += 1
        try:
            await trio.lowlevel.wait_readable(fd)
        except trio.ClosedResourceError:
            if not self._gone:
                raise
        finally:
            self._waiters -= 1
            if shared:
                os.close(fd)
        self._ended = True

    async def _pause(self, seconds: float) -> None:
        """Until the agent's end is news, at most so long."""
        with trio.move_on_after(seconds):
            if self._ended:
                await trio.sleep_forever()
            await self._until_ended(seconds)

    async def _stop_unknown(self) -> None:
        # it looks for the mark once more before it becomes the agent
        with suppress(*OUT_OF_REACH):
            attempt_lock.write_void(self._files)
        with trio.move_on_after(PATIENCE_SECONDS):
            await self._until_known()
        if self._root is None and not self._ended:
            who = ", ".join(stat.describe() for stat in self._tree.holders()) or "nobody that can be seen from here"
            what = "nothing has started yet" if self._interpreter is None else "a function runs"
            raise TreeSurvives(f"the lock of {self._files.folder} is held, {what} in it; it is held by: {who}")

    async def _gone_by_itself(self) -> bool:
        for _ in range(_LOOKS_AT_LOCK):
            if await self._tree.gone():
                return True
            if not self._tree.proven_gone:
                return False
            # a child of the keeper that is just being forked has a copy of everyone's lock for a moment
            await trio.sleep(_FIRST_PAUSE_SECONDS / 4)
        return False

    async def _ask(self, grace_ms: int) -> None:
        pause = _FIRST_PAUSE_SECONDS
        with trio.move_on_after(grace_ms / 1000):
            while not await self._tree.gone():
                # parents first: one whose child dies before it goes on, and may end as if all were well
                for stat in sorted(await self._tree.members(), key=lambda stat: (stat.start_ticks, stat.pid)):
                    if stat.key in self._termed:
                        continue
                    self._termed.add(stat.key)
                    send_signal(stat.pid, stat.start_ticks, signal.SIGTERM)
                    if stat.state == "T":
                        send_signal(stat.pid, stat.start_ticks, signal.SIGCONT)
                crashpoint("stop.termed")
                await self._pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _kill(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        tries = 0
        with trio.move_on_after(PATIENCE_SECONDS):
            while not await self._tree.gone():
                await self._tree.kill(hunt=tries >= _TRIES_BEFORE_HUNT)
                crashpoint("stop.killed")
                tries += 1
                await self._pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            return
        left = await self._tree.members()
        who = ", ".join(stat.describe() for stat in left)
        if not left:
            holders = ", ".join(stat.describe() for stat in self._tree.holders())
            who = f"its lock is held from outside the tree, by {holders or 'nobody that can be seen from here'}"
        raise TreeSurvives(f"the tree of {self._files.folder} survives KILL: {who}")
