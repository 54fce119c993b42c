"""The keeper: the small process that starts agents, waits for them, and writes down how they ended.

A program of its own, in one file, which imports nothing of Interlock (``python -I -S keeper_program.py FD WHO``): it is
small, so that forking it is cheap, and it lives in a session of its own, so that no Ctrl-C reaches it. It has one thread:
a loop over the socket to its dispatcher and the ends of its children. Each dispatcher has a keeper. When the dispatcher
is gone the keeper stays until the last agent that it started has ended.

What happens at a launch:

* The order comes with three descriptors: the attempt's lock (held by the dispatcher, one description for all), prompt, log.
* The keeper looks for the void mark, and forks. The child drops every other descriptor (other attempts' locks are among
  them), leads a session, joins its cgroup, and waits for the word.
* The keeper writes into the folder who the child is, and only then gives the word: the child becomes the agent, which so is
  the process that the identity names, and has the lock without a gap. A keeper that dies before that gives no word, and
  nothing starts. When the identity cannot be written nothing does either, and the order is refused.
* The signals that ask a process to end are blocked in the keeper, and by inheritance in the child until the last moment
  before the exec: a TERM that comes early ends the child then, and is not lost.
* When a program cannot be executed, 126 or 127 (there is none) is its status, and the log says why.

As much as possible is done by the keeper, not by the child: each page that a child writes to has to be copied first.

What happens at an end: the keeper writes the exit status, lets go of its copy of the lock, reaps, tells the dispatcher.
Whoever finds the lock free therefore finds the exit status. The file counts only when it ends in a newline; when it
cannot be written the dispatcher still hears the status.

The keeper is a subreaper: whatever its agents leave behind becomes its child, so that it can tell whether anything is
left (``alone``). While something is, the zombie of an agent is kept until the dispatcher has ended its tree: that
keeps its pid, the number of its session, from being used again.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal itself imports enum: 4 ms, and a megabyte to fork
import _socket
import errno
import gc
import marshal
import os
import resource
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LAUNCH, RELEASE, FORKED, REFUSED, ENDED, FAULT = range(6)
"""Kinds of messages: the first two are the dispatcher's, the others the keeper's."""

PLACE_FD, WORD_FD, LOCK_FD = 61, 62, 63
"""Which descriptors a child has: beyond those that scripts use, within the smallest table of a process. The last stays."""

_CHUNK_BYTES = 1 << 16
_SUBREAPER = 36
_SYS_CLONE3 = 435
_CLONE_INTO_CGROUP = 0x200000000
# What the kernel raises for a fault of the process itself cannot be blocked in a useful way.
_NOT_BLOCKED = {_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL, _signal.SIGABRT, _signal.SIGCHLD}
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK


class Frames:
    """Messages (tuples of plain values) out of a stream of bytes: each has its length in four bytes before it."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add what was received."""
        self._buffer += data

    def take(self) -> tuple[Any, ...] | None:
        """The next complete message."""
        end = 4 + int.from_bytes(self._buffer[:4], "little")
        if len(self._buffer) < max(end, 4):
            return None
        # from the process at the other end of a private socket, which runs the same interpreter
        message: tuple[Any, ...] = marshal.loads(bytes(self._buffer[4:end]))  # noqa: S302
        del self._buffer[:end]
        return message


def framed(*message: Any) -> bytes:
    """A message as it is sent."""
    body = marshal.dumps(message)
    return len(body).to_bytes(4, "little") + body


class Kept:
    """An agent that was started here and is not reaped yet."""

    __slots__ = ("exit", "lock", "released", "token")

    def __init__(self, token: int, lock: int, exit_file: bytes) -> None:
        self.token = token
        self.lock = lock
        self.exit = exit_file
        self.released = False


class Keeper:
    """The loop. ``who``: boot and pid namespace, the first words of an identity."""

    def __init__(self, link: _socket.socket, who: bytes) -> None:
        self._link: _socket.socket | None = link
        self._who = who
        self._inbox = Frames()
        self._received: list[list[int]] = []
        self._outbox = bytearray()
        self._kept: dict[int, Kept] = {}
        self._zombies: set[int] = set()
        self._soft_limit, self._hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._hard_limit, self._hard_limit))
        self._nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._clear_places()
        self._libc = load_libc()
        self._children = become_subreaper(self._libc)
        self._wake, bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        prepare_signals(bell)
        link.setblocking(False)
        self._top = max(link.fileno(), self._wake, bell, self._children or 0, LOCK_FD)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._poll.register(link.fileno(), select.POLLIN)

    def run(self) -> None:
        """Until the dispatcher is gone and no agent is left."""
        while True:
            order = self._inbox.take()
            if order is None and self._link is None:
                # of an order that was cut off: its lock is to be free
                while self._received:
                    close_all(self._received.pop())
                if not self._kept:
                    return
            elif self._link is not None:
                # what is not obeyed yet is left in the socket: the sender's patience is the limit, not our memory
                wanted = (select.POLLIN if order is None else 0) | (select.POLLOUT if self._outbox else 0)
                self._poll.modify(self._link.fileno(), wanted)
            try:
                self._turn(order)
            except Exception as error:  # noqa: BLE001  agents depend on this loop, whatever happens in it
                self._say(FAULT, f"{type(error).__name__}: {error}")

    def _turn(self, order: tuple[Any, ...] | None) -> None:
        for fd, events in self._poll.poll(None if order is None else 0):
            if fd == self._wake:
                os.read(self._wake, _CHUNK_BYTES)
                self._see_ends()
                continue
            if events & select.POLLOUT:
                self._flush()
            if events & ~select.POLLOUT:
                self._read()
        if order is None:
            return
        if order[0] == LAUNCH:
            self._launch(*order[1:])
        else:
            self._release(*order[1:])

    # the socket

    def _read(self) -> None:
        assert self._link is not None
        try:
            data, ancillary, flags, _ = self._link.recvmsg(
                _CHUNK_BYTES, _socket.CMSG_SPACE(3 * 4), _socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            data, ancillary, flags = b"", [], 0
        fds = [
            int.from_bytes(content[at : at + 4], sys.byteorder)
            for _, _, content in ancillary
            for at in range(0, len(content) - 3, 4)
        ]
        # Each order begins with its descriptors, and a read never goes beyond one that has some.
        if fds or flags & _socket.MSG_CTRUNC:
            self._received.append(fds)
            self._top = max(self._top, *fds, 0)
        self._inbox.feed(data)
        if not data:
            self._lose(self._link)

    def _say(self, *message: Any) -> None:
        if self._link is not None:
            self._outbox += framed(*message)
            self._flush()

    def _flush(self) -> None:
        assert self._link is not None
        try:
            sent = self._link.send(self._outbox)
        except BlockingIOError:
            return
        except OSError:
            # the reading side finds out; what it has not read yet is to be obeyed
            sent = len(self._outbox)
        del self._outbox[:sent]

    def _lose(self, link: _socket.socket) -> None:
        """The dispatcher is gone: nobody is interested in zombies any more."""
        self._poll.unregister(link.fileno())
        link.close()
        self._link = None
        while self._zombies:
            self._reap(self._zombies.pop())

    # starting

    def _launch(
        self,
        token: int,
        argv: list[bytes],
        env: dict[bytes, bytes],
        cwd: bytes,
        files: tuple[bytes, bytes, bytes],
        cgroup: bytes | None,
        soft_limit: int | None,
    ) -> None:
        fds = self._received.pop(0)
        lent: list[int] = []
        try:
            if len(fds) != 3:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            lock, stdin, log = fds
            void, identity, exit_file = files
            if exists(void):
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            place = os.open(cwd, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            lent.append(place)
            word, go = os.pipe2(os.O_CLOEXEC)
            lent += [word, go]
            pid = self._fork((stdin, log, place, word, lock), max(self._top, *lent), argv, env, cgroup)
            try:
                stat = read_all(b"/proc/%d/stat" % pid)
                soft = self._soft_limit if soft_limit is None else soft_limit
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, self._hard_limit))
                write(identity, b"%s %s" % (self._who, stat))
                os.write(go, b"!")
            except BaseException:
                os.kill(pid, _signal.SIGKILL)
                os.waitpid(pid, 0)
                raise
        except OSError as error:
            close_all([*fds, *lent])
            self._say(REFUSED, token, error.errno, error.filename)
            return
        close_all([stdin, log, *lent])
        self._kept[pid] = Kept(token, lock, exit_file)
        self._say(FORKED, token, pid, int(stat[stat.rindex(b")") :].split()[20]))

    def _fork(
        self, fds: tuple[int, ...], top: int, argv: list[bytes], env: dict[bytes, bytes], cgroup: bytes | None
    ) -> int:
        """Fork: the child has its descriptors in their places, since they were put there before. Raises OSError."""
        stdin, log, place, word, lock = fds
        for fd, number in ((stdin, 0), (log, 1), (log, 2), (lock, LOCK_FD)):
            os.dup2(fd, number)
        os.dup2(place, PLACE_FD, inheritable=False)
        os.dup2(word, WORD_FD, inheritable=False)
        try:
            pid, within = clone(self._libc, cgroup)
            if pid == 0:
                become(argv, env, None if within else cgroup, top)
        finally:
            self._clear_places()
        return pid

    def _clear_places(self) -> None:
        """Nothing is in the places of a child's descriptors, and they are taken: no other descriptor gets there."""
        for number in range(3):
            os.dup2(self._nothing, number)
        for number in (PLACE_FD, WORD_FD, LOCK_FD):
            os.dup2(self._nothing, number, inheritable=False)

    # ends

    def _see_ends(self) -> None:
        while True:
            found = self._next_end()
            if found is None:
                return
            pid, status = found
            if pid in self._kept:
                self._end(pid, self._kept[pid], status)
            else:
                self._reap(pid)

    def _next_end(self) -> tuple[int, int] | None:
        """A child that ended and was not seen yet, with its exit status; it stays a zombie."""
        what = os.WEXITED | os.WNOHANG | os.WNOWAIT
        # A zombie that is kept would be the answer each time: then only those that were started here are asked for.
        asked = (
            [(os.P_PID, pid) for pid in self._kept if pid not in self._zombies] if self._zombies else [(os.P_ALL, 0)]
        )
        for kind, pid in asked:
            try:
                info = os.waitid(kind, pid, what)
            except ChildProcessError:
                continue
            if info is not None:
                return info.si_pid, info.si_status + (0 if info.si_code == os.CLD_EXITED else 128)
        return None

    def _end(self, pid: int, kept: Kept, status: int) -> None:
        try:
            write(kept.exit, b"%d\n" % status)
        except OSError as error:
            self._say(FAULT, f"exit status {status} cannot be written to {os.fsdecode(kept.exit)}: {error.strerror}")
        os.close(kept.lock)
        alone = self._is_alone()
        if alone or self._link is None or kept.released:
            self._reap(pid)
        else:
            self._zombies.add(pid)
        self._say(ENDED, kept.token, status, alone)

    def _release(self, pid: int, token: int) -> None:
        """The dispatcher has ended the tree, or does not care for it: the agent's zombie may go."""
        kept = self._kept.get(pid)
        if kept is None or kept.token != token:
            return
        kept.released = True
        if pid in self._zombies:
            self._zombies.discard(pid)
            self._reap(pid)
            # those of others may have been left aside
            self._see_ends()

    def _reap(self, pid: int) -> None:
        os.waitpid(pid, 0)
        self._kept.pop(pid, None)

    def _is_alone(self) -> bool:
        """Whether no process but the agents themselves is a child: then nothing is left of those that ended.

        Whatever descends from an agent that ended has a child of the keeper above it. The list only grows while it is
        read, since nobody but this thread reaps.
        """
        if self._children is None:
            return False
        try:
            while True:
                others = read_children(self._children) - self._kept.keys()
                if not others:
                    return True
                # their own children, if any, become ours by that
                if not any(os.waitpid(pid, os.WNOHANG)[0] for pid in others):
                    return False
        except OSError:
            return False


def become(argv: list[bytes], env: dict[bytes, bytes], cgroup: bytes | None, top: int) -> None:
    """In the child: become the agent when the word is given. ``top``: the highest descriptor."""
    status = 126
    try:
        os.closerange(3, PLACE_FD)
        os.closerange(LOCK_FD + 1, top + 1)
        os.setsid()
        os.fchdir(PLACE_FD)
        if cgroup is not None:
            join(cgroup)
        if os.read(WORD_FD, 1):
            _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
            try:
                os.execve(argv[0], argv, env)  # noqa: S606
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                # a script without a first line that says by what: as shells do
                os.execve(b"/bin/sh", [b"/bin/sh", *argv], env)  # noqa: S606
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            status = 127
        complain(f"{os.fsdecode(argv[0])}: {error.strerror}")
    finally:
        os._exit(status)


def join(cgroup: bytes) -> None:
    """Join it; or, where that fails, have the tree held by the other means: its lock file names no cgroup then."""
    try:
        write(cgroup + b"/cgroup.procs", b"0", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        os.ftruncate(LOCK_FD, 0)


def complain(text: str) -> None:
    """To the log of the attempt, if it can be."""
    try:  # noqa: SIM105  contextlib is not at hand here
        os.write(2, os.fsencode(f"interlock: {text}\n"))
    except OSError:
        pass


def write(path: bytes, content: bytes, flags: int = _NEW) -> None:
    """All of it, or OSError. Never waits: an agent can put a pipe in the place of a file."""
    fd = os.open(path, flags, 0o600)
    try:
        if os.write(fd, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(fd)


def close_all(fds: list[int]) -> None:
    """Close them."""
    for fd in fds:
        os.close(fd)


def read_all(path: bytes) -> bytes:
    """A small file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def exists(path: bytes) -> bool:
    """Whether something of this name is there. Raises OSError."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def read_children(fd: int) -> set[int]:
    """The pids of all children, zombies included. Raises OSError."""
    content = b""
    while chunk := os.pread(fd, _CHUNK_BYTES, len(content)):
        content += chunk
    return set(map(int, content.split()))


def load_libc() -> Any:
    """The C library, for what Python has no function for; None where it cannot be had."""
    try:
        import ctypes  # noqa: PLC0415
    except ImportError:
        return None
    libc = ctypes.PyDLL(None)
    libc.syscall.restype = ctypes.c_long
    return libc


def become_subreaper(libc: Any) -> int | None:
    """Have descendants whose parents are gone become children of this process: the file that lists its children.

    None where the system cannot do that, or cannot tell.
    """
    try:
        if libc.prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
            return None
        return os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None


def clone(libc: Any, cgroup: bytes | None) -> tuple[int, bool]:
    """Fork, into a cgroup if the system can do that (Linux 5.7): the pid, 0 in the child, and whether that is within it.

    To join it afterwards would wait until every processor has passed through the scheduler: 10 ms and more. And what
    os.fork() does for Python in a child (for threads, above all, of which there are none) costs as much as the fork.
    Raises OSError.
    """
    fd = -1
    if cgroup is not None and libc is not None:
        try:
            fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            fd = -1
    pid = -1
    if libc is not None:
        # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, its size, tls, set_tid, its size, cgroup
        words = [0 if fd < 0 else _CLONE_INTO_CGROUP, 0, 0, 0, _signal.SIGCHLD, 0, 0, 0, 0, 0, max(fd, 0)]
        pid = libc.syscall(_SYS_CLONE3, b"".join(word.to_bytes(8, sys.byteorder) for word in words), 88)
    within = fd >= 0 and pid >= 0
    if pid != 0 and fd >= 0:
        os.close(fd)
    return (os.fork() if pid < 0 else pid), within


def prepare_signals(bell: int) -> None:
    """Nothing is ignored, nearly all are blocked, and the end of a child rings."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - _NOT_BLOCKED)
    for number in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}:
        if _signal.getsignal(number) != _signal.SIG_DFL:
            _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(_signal.SIGCHLD, lambda *_: None)
    _signal.set_wakeup_fd(bell, warn_on_full_buffer=False)


def main() -> None:
    """``FD``: the socket to the dispatcher. ``WHO``: the first words of an identity."""
    fd, who = sys.argv[1:]
    # its number may be one that is needed
    link = _socket.socket(fileno=os.dup(int(fd)))
    os.close(int(fd))
    keeper = Keeper(link, os.fsencode(who))
    # A collection would touch, and after a fork so copy, every object.
    gc.disable()
    gc.freeze()
    keeper.run()
    os._exit(0)


if __name__ == "__main__":
    main()
