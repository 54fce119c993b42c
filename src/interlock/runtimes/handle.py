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
from interlock.runtimes.process import (
    Liveness,
    ProcessStat,
    is_alive,
    is_local,
    open_pidfd,
    same_command_line,
    send_signal,
)
from interlock.runtimes.tree import OUT_OF_REACH, SelfInTree, Tree
from interlock.runtimes.wrapper import NOT_RUN, InProcess, read_exit, read_identity

PATIENCE_SECONDS = 10.0
"""How long after KILL a tree may take to be gone (a process in an uninterruptible sleep does not die)."""

_FIRST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.25
_TRIES_BEFORE_HUNT = 1

_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

_unreaped: set[int] = set()


class ProcessHandle:
    """Handle of an agent behind a wrapper: one that this process launched (``child``), or one that it found.

    One that was found may not have written yet who it is: ``identity`` is None then, and the lock is all that there
    is to wait for. So it is for a function inside another process, which cannot be stopped from here.
    Costs one descriptor. To be used under trio; :meth:`wait` and :meth:`stop` may run at the same time.
    """

    def __init__(
        self,
        files: AttemptFiles,
        wrapper: ProcessIdentity | None,
        tree: Tree | None = None,
        *,
        child: bool = False,
    ) -> None:
        self._files = files
        self._wrapper: ProcessIdentity | None = None
        self._interpreter: ProcessIdentity | None = None
        self._tree = tree or Tree(files, None)
        self._child = child
        self._pidfd: int | None = None
        self._waiters = 0
        self._ended = False
        self._gone = False
        self._termed: set[tuple[int, int]] = set()
        if wrapper is not None:
            self._meet(wrapper)

    @property
    def identity(self) -> ProcessIdentity | None:
        """The wrapper's process; None while it is not known."""
        return self._wrapper

    async def wait(self) -> Ending:
        """Until the agent has ended: until its wrapper has. Descendants may be left.

        ``exit_status`` is None when the wrapper left none: it was killed, or is no child of ours and could not write. The
        agent may then live on without it, until :meth:`stop`.
        """
        await trio.lowlevel.checkpoint()
        await self._until_known()
        pause = _FIRST_PAUSE_SECONDS
        while not self._ended:
            await self._until_ended(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        while True:
            try:
                status = read_exit(self._files)
            except OSError as error:
                if error.errno not in _PASSING:
                    return Ending(exit_status=self._child_status())
            else:
                return Ending(exit_status=self._child_status() if status is None else status)
            await trio.sleep(_LONGEST_PAUSE_SECONDS)

    def _child_status(self) -> int | None:
        """What the wrapper, our child, says by its own exit when it could not leave it in a file: full disk, folder gone."""
        if not self._child or self._wrapper is None:
            return None
        try:
            # It stays a zombie until :meth:`stop`, which keeps its pid from being used again.
            ended = os.waitid(os.P_PID, self._wrapper.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if ended is None or ended.si_code != os.CLD_EXITED or ended.si_status == NOT_RUN:
            return None
        return ended.si_status

    async def stop(self, grace_ms: int) -> None:
        """End the whole tree: TERM to all but the wrapper, up to ``grace_ms`` milliseconds, KILL to all, confirmed.

        Near to free after a clean end. Raises :class:`TreeSurvives` when, 10 s after KILL, the end is not confirmed.
        May be called again, also at the same time with a shorter grace.
        """
        await trio.lowlevel.checkpoint()
        if self._gone:
            return
        try:
            if not self._ended and self._wrapper is None:
                await self._stop_unknown()
            if not self._ended and self._wrapper is not None and not is_local(self._wrapper):
                raise TreeSurvives(f"the agent of {self._files.folder} runs in another pid namespace")
            if not await self._tree.gone():
                await self._ask(grace_ms)
                await self._kill()
        except SelfInTree:
            raise TreeSurvives(
                f"this process (pid {os.getpid()}) is itself part of the tree of {self._files.folder}: stop it from outside"
            ) from None
        except OSError as error:
            raise TreeSurvives(f"whether the tree of {self._files.folder} is gone cannot be told: {error}") from error
        self._gone = True
        if self._child and not self._ended:
            # its lock is free a moment before it can be reaped
            await self._pause(_LONGEST_PAUSE_SECONDS)
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
        """Let go of the pidfd; the agent lives on. Who waits meanwhile gets trio.ClosedResourceError."""
        if self._pidfd is not None:
            trio.lowlevel.notify_closing(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._child and self._wrapper is not None:
            self._child = False
            adopt_child(self._wrapper.pid)

    def _meet(self, wrapper: ProcessIdentity) -> None:
        self._wrapper = wrapper
        if not is_local(wrapper):
            # the tree is not told: numbers of another boot or namespace would name strangers here
            self._ended = is_alive(wrapper) is Liveness.DEAD
            return
        self._tree.wrapper = wrapper
        try:
            self._pidfd = open_pidfd(wrapper.pid, wrapper.start_ticks)
        except ProcessLookupError:
            self._ended = True

    async def _until_known(self) -> None:
        """Until the wrapper says who it is, or the lock is free: then nothing runs, and the void mark keeps it so."""
        pause = _FIRST_PAUSE_SECONDS
        while not self._ended and self._wrapper is None:
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

        A wrapper that has not written yet who it is cannot do so any more, and starts nothing.
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
        """Until the wrapper has ended; without pidfds until it has, or ``pause`` has passed."""
        if self._wrapper is None:
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
            self._ended = is_alive(self._wrapper) is Liveness.DEAD
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
        """Until the wrapper's end is news, at most so long."""
        with trio.move_on_after(seconds):
            if self._ended:
                await trio.sleep_forever()
            await self._until_ended(seconds)

    async def _stop_unknown(self) -> None:
        # the wrapper looks for the mark once more before it starts the agent
        with suppress(*OUT_OF_REACH):
            attempt_lock.write_void(self._files)
        with trio.move_on_after(PATIENCE_SECONDS):
            await self._until_known()
        if self._wrapper is None and not self._ended:
            who = ", ".join(stat.describe() for stat in self._tree.holders()) or "nobody that can be seen from here"
            what = "nothing has started yet" if self._interpreter is None else "a function runs"
            raise TreeSurvives(f"the lock of {self._files.folder} is held, {what} in it; it is held by: {who}")

    async def _ask(self, grace_ms: int) -> None:
        pause = _FIRST_PAUSE_SECONDS
        with trio.move_on_after(grace_ms / 1000):
            while not await self._tree.gone():
                # parents first: one whose child dies before it goes on, and may end as if all were well
                for stat in sorted(await self._tree.members(), key=lambda stat: (stat.start_ticks, stat.pid)):
                    if self._tree.is_wrapper(stat) or stat.key in self._termed or self._is_before_exec(stat):
                        continue
                    self._termed.add(stat.key)
                    send_signal(stat.pid, stat.start_ticks, signal.SIGTERM)
                    if stat.state == "T":
                        send_signal(stat.pid, stat.start_ticks, signal.SIGCONT)
                crashpoint("stop.termed")
                await self._pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _is_before_exec(self, stat: ProcessStat) -> bool:
        """Whether it is the wrapper's child, not yet the agent: the wrapper's own handler would swallow its TERM."""
        wrapper = self._wrapper
        return wrapper is not None and stat.parent == wrapper.pid and same_command_line(stat.pid, wrapper.pid)

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


def adopt_child(pid: int) -> None:
    """Have a child reaped that no handle stands for: at once if it has ended, else by :func:`reap_closed`."""
    if not _reap(pid):
        _unreaped.add(pid)


def reap_closed() -> None:
    """Reap ended children whose handles are closed."""
    _unreaped.difference_update([pid for pid in _unreaped if _reap(pid)])


def _reap(pid: int) -> bool:
    """Whether this child is no more."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
