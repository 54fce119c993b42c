"""The dispatcher's side of its keeper (:mod:`interlock.runtimes.keeper_program`): orders out, news in.

Nothing here waits for the keeper: an order is sent as far as the socket takes it, the rest when there is room again, and
what the keeper says is heard by a system task. A keeper that is gone is noticed by the end of its socket, and whoever
waits for its news is told that there will be none (``lost``).
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.runtimes import keeper_program, process
from interlock.runtimes.keeper_program import FAULT, FORKED, LAUNCH, REFUSED, RELEASE, Frames, framed

log = logging.getLogger("interlock")

_CHUNK_BYTES = 1 << 16
_IDLE_END_SECONDS = 0.05
_PYTHON = (sys.executable, "-I", "-S")

# What the kernel takes at an exec (execve(2), "Limits on size of arguments and environment").
_LONGEST_WORD_BYTES = 32 * 4096
_LEAST_ROOM_BYTES = 128 * 1024
_MOST_ROOM_BYTES = 6 * 1024 * 1024

_unreaped: set[int] = set()


class Charge:
    """One agent in the keeper's charge, as far as this process has heard of it."""

    def __init__(self, keeper: Keeper, token: int) -> None:
        self.keeper = keeper
        self.token = token
        self.pid: int | None = None
        self.start_ticks: int | None = None
        self.refused: OSError | None = None
        """Why nothing was started, if so."""
        self.status: int | None = None
        """The exit status, None before the end, and when nothing was started."""
        self.ended = False
        self.alone = False
        """Whether the keeper found, when the agent had ended, that none of its descendants was left."""
        self.lost = False
        self._let_go = False
        self._answered = trio.Event()
        self._over = trio.Event()

    @property
    def answered(self) -> bool:
        """Whether the keeper has said that it forked, or could not."""
        return self.pid is not None or self.refused is not None

    async def until_answered(self, seconds: float) -> None:
        """Until :attr:`answered` or :attr:`lost`, but no longer than so."""
        with trio.move_on_after(seconds):
            await self._answered.wait()

    async def until_over(self) -> None:
        """Until :attr:`ended` or :attr:`lost`."""
        await self._over.wait()

    def let_go(self) -> None:
        """Tell the keeper that the agent's zombie is not needed."""
        self._let_go = True
        if self.pid is not None and not (self.alone or self.lost):
            self.keeper.release(self.pid, self.token)

    def hear(self, kind: int, words: tuple[Any, ...]) -> None:
        """Take in what the keeper says."""
        if kind == FORKED:
            self.pid, self.start_ticks = words
            if self._let_go:
                self.let_go()
        elif kind == REFUSED:
            number, place = words
            self.refused = OSError(number, os.strerror(number), None if place is None else os.fsdecode(place))
        else:
            self.status, self.alone = words
            self.ended = True
            self._over.set()
        self._answered.set()

    def lose(self) -> None:
        """There will be no more news."""
        self.lost = True
        self._answered.set()
        self._over.set()


class _Parcel:
    """Bytes on their way, with the descriptors that go along with the first of them."""

    def __init__(self, data: bytes, fds: tuple[int, ...]) -> None:
        self.rest = memoryview(data)
        self.fds = fds
        self.begun = False

    def send(self, link: socket.socket) -> bool:
        """As much as there is room for: whether that was all. Raises OSError."""
        while self.rest:
            try:
                sent = link.send(self.rest) if self.begun else socket.send_fds(link, [self.rest], list(self.fds))
            except BlockingIOError:
                return False
            self.begun = True
            self.rest = self.rest[sent:]
        return True


class Keeper:
    """A keeper process, started at once, and the socket to it. To be used within one run of trio. Raises OSError."""

    def __init__(self) -> None:
        self._loop = trio.lowlevel.current_trio_token()
        self._charges: dict[int, Charge] = {}
        self._parcels: deque[_Parcel] = deque()
        self._is_sending = False
        self._inbox = Frames()
        self._tokens = 0
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self.pid = _start(theirs)
            except BaseException:
                self._socket.close()
                raise
        self._socket.setblocking(False)
        trio.lowlevel.spawn_system_task(self._listen, name="interlock keeper")

    @property
    def usable(self) -> bool:
        """Whether orders can be sent, as far as is known."""
        return self._socket.fileno() >= 0 and self._loop is trio.lowlevel.current_trio_token()

    def launch(self, order: tuple[object, ...], fds: tuple[int, int, int]) -> Charge:
        """Have an agent started; ``order`` as :func:`order_for` made it. The descriptors have to stay open until it is
        answered. Raises OSError when the keeper has heard nothing of it, and will not.
        """
        self._tokens += 1
        charge = Charge(self, self._tokens)
        self._post(_Parcel(framed(LAUNCH, charge.token, *order), fds))
        self._charges[charge.token] = charge
        return charge

    def withdraw(self, charge: Charge, fds: tuple[int, int, int]) -> bool:
        """Take an order back: False when it is under way already."""
        for parcel in self._parcels:
            if parcel.fds == fds and not parcel.begun:
                self._parcels.remove(parcel)
                del self._charges[charge.token]
                return True
        return False

    def release(self, pid: int, token: int) -> None:
        """See :meth:`Charge.let_go`."""
        with suppress(OSError):
            self._post(_Parcel(framed(RELEASE, pid, token), ()))

    def close(self) -> None:
        """Let go of it: it ends when its last agent has. At once, and reaped, when it has none."""
        if self._socket.fileno() < 0:
            return
        idle = not self._charges
        trio.lowlevel.notify_closing(self._socket)
        self._lose()
        until = time.monotonic() + _IDLE_END_SECONDS
        while idle and self.pid in _unreaped and time.monotonic() < until:
            time.sleep(0.0005)
            reap()

    def _post(self, parcel: _Parcel) -> None:
        if self._socket.fileno() < 0:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        if self._parcels or not parcel.send(self._socket):
            self._parcels.append(parcel)
            if not self._is_sending:
                self._is_sending = True
                trio.lowlevel.spawn_system_task(self._send_on, name="interlock keeper: orders")

    async def _send_on(self) -> None:
        try:
            while self._parcels:
                await trio.lowlevel.wait_writable(self._socket)
                while self._parcels and self._parcels[0].send(self._socket):
                    self._parcels.popleft()
        except (OSError, ValueError, trio.ClosedResourceError):
            # the task that listens hears of the end, too
            self._parcels.clear()
        finally:
            self._is_sending = False

    async def _listen(self) -> None:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._socket)
                with suppress(BlockingIOError):
                    data = self._socket.recv(_CHUNK_BYTES)
                    if not data:
                        return
                    self._hear(data)
        except (OSError, trio.ClosedResourceError):
            return
        except Exception:
            # it would end the whole program
            log.exception("the keeper of the agents (pid %d) cannot be understood", self.pid)
        finally:
            self._lose()

    def _hear(self, data: bytes) -> None:
        self._inbox.feed(data)
        while (news := self._inbox.take()) is not None:
            kind = news[0]
            if kind == FAULT:
                log.error("the keeper of the agents (pid %d): %s", self.pid, news[1])
                continue
            charge = self._charges[news[1]]
            if kind != FORKED:
                del self._charges[charge.token]
            charge.hear(kind, news[2:])

    def _lose(self) -> None:
        if self._socket.fileno() >= 0:
            self._socket.close()
            _unreaped.add(self.pid)
            reap()
        self._parcels.clear()
        charges, self._charges = self._charges, {}
        for charge in charges.values():
            charge.lose()


def _start(theirs: socket.socket) -> int:
    child = subprocess.Popen(
        [*_PYTHON, _program(), str(theirs.fileno()), f"{process.boot_id()} {process.pid_namespace()}"],
        stdin=subprocess.DEVNULL,
        # it outlives this process, whose output may be a pipe that someone waits for the end of
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
        pass_fds=(theirs.fileno(),),
    )
    # It is reaped by its number, when it has ended.
    child.returncode = 0
    return child.pid


def _program() -> str:
    """The program's file: compiled, where that is at hand."""
    source = keeper_program.__file__
    compiled = str(getattr(keeper_program, "__cached__", None))
    with suppress(OSError):
        if os.stat(compiled).st_mtime_ns >= os.stat(source).st_mtime_ns:
            return compiled
    return source


def reap() -> None:
    """Reap keepers that have ended."""
    for pid in list(_unreaped):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _unreaped.discard(pid)


def order_for(
    files: AttemptFiles,
    program: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
) -> tuple[object, ...]:
    """The order to run ``program`` (an argv, its first word with a slash) in ``cwd`` (absolute), but for its last words: the
    cgroup's path (bytes) and the soft limit of open files, each or None.

    Raises OSError (E2BIG) or ValueError for what no exec would take.
    """
    argv = [_word(word) for word in program]
    environment = {_word(name): _word(value) for name, value in env.items()}
    _check(argv, environment)
    return (
        argv,
        environment,
        os.fsencode(cwd),
        tuple(os.fsencode(path) for path in (files.void, files.identity, files.exit)),
    )


# Most of what an agent gets is what the one before it got.
@lru_cache(maxsize=1024)
def _word(text: str) -> bytes:
    word = os.fsencode(text)
    if b"\0" in word:
        raise ValueError("embedded null byte")
    return word


def _check(argv: Sequence[bytes], env: Mapping[bytes, bytes]) -> None:
    if any(not name or b"=" in name for name in env):
        raise ValueError("illegal environment variable name")
    lengths = [*map(len, argv), *(len(name) + 1 + len(value) for name, value in env.items())]
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    room = _MOST_ROOM_BYTES if stack == resource.RLIM_INFINITY else min(stack // 4, _MOST_ROOM_BYTES)
    # each with its end and its pointer
    needed = sum(lengths) + 9 * len(lengths) + len(argv[0])
    if needed > max(room, _LEAST_ROOM_BYTES) or max(lengths) >= _LONGEST_WORD_BYTES:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
