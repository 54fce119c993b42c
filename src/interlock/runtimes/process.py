"""Which process is which: identity that survives the reuse of a pid, liveness, and signals that cannot go astray.

A process is (boot id, pid namespace, pid, start time in clock ticks since boot). The start time of /proc does not move
with the wall clock. Where ``os.pidfd_open`` is missing (Linux before 5.3, other systems) everything here still works,
with two losses: waiting becomes polling of /proc, and between the check of an identity and the signal there is a
moment in which the pid could be reused.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from functools import cache

import msgspec

from interlock.domain.run import ProcessIdentity

GONE = (FileNotFoundError, ProcessLookupError)
"""What /proc answers for a process that is not there. Any other error proves nothing."""


class Liveness(StrEnum):
    """What can be said of a process."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class ProcessStat(msgspec.Struct, frozen=True):
    """The fields of /proc/PID/stat that are used here. ``cpu_ticks`` includes children that were waited for."""

    pid: int
    name: bytes
    state: str
    parent: int
    session: int
    cpu_ticks: int
    threads: int
    start_ticks: int
    memory_bytes: int

    @property
    def key(self) -> tuple[int, int]:
        """Tells processes of this boot and namespace apart."""
        return self.pid, self.start_ticks

    @property
    def living(self) -> bool:
        """False for a zombie; a dead main thread beside living threads is a living process."""
        if self.state not in "ZXx":
            return True
        return self.threads > 1 and _has_living_thread(self.pid)

    def describe(self) -> str:
        """For messages: pid, name and state."""
        return f"pid {self.pid} ({self.name.decode(errors='replace')}, state {self.state})"


def parse_stat(raw: bytes) -> ProcessStat:
    """Parse /proc/PID/stat. A name may hold spaces, parentheses and newlines: it ends at the last ``)``.

    Raises ValueError for anything that is not such a line.
    """
    opening, closing = raw.find(b"("), raw.rfind(b")")
    if opening < 0 or closing < opening:
        raise ValueError("not the content of /proc/PID/stat")
    f = raw[closing + 1 :].split()
    if len(f) < 21:
        raise ValueError("/proc/PID/stat is cut short")
    return ProcessStat(
        int(raw[:opening]),
        raw[opening + 1 : closing],
        f[0].decode(),
        int(f[1]),
        int(f[3]),
        int(f[11]) + int(f[12]) + int(f[13]) + int(f[14]),
        int(f[17]),
        int(f[19]),
        int(f[20]),
    )


def read_stat(pid: int) -> ProcessStat | None:
    """The stat of a process, zombies included; None when there is none (or /proc hides it).

    Raises OSError when it cannot be told, for want of descriptors or memory.
    """
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    try:
        return parse_stat(os.read(fd, 4096))
    except (ProcessLookupError, ValueError):
        return None
    finally:
        os.close(fd)


def is_keeper(pid: int) -> bool:
    """Whether a process is a keeper, or was forked by one and is not the agent yet. False when that cannot be seen."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return len(words) > 3 and words[1:3] == [b"-I", b"-S"] and b"keeper_program" in words[3]


def running_pids(*, above: int = 0) -> list[int]:
    """All pids that /proc shows, beyond ``above``."""
    return [pid for name in os.listdir("/proc") if name.isdigit() and (pid := int(name)) > above]


def process_table(*, above: int = 0) -> Iterator[ProcessStat]:
    """The stat of every process that /proc shows, beyond pid ``above``. About 10 us each."""
    for pid in running_pids(above=above):
        stat = read_stat(pid)
        if stat is not None:
            yield stat


def _has_living_thread(pid: int) -> bool:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except GONE:
        return False
    for thread in threads:
        with suppress(*GONE, ValueError), open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
            if parse_stat(file.read()).state not in "ZXx":
                return True
    return False


@cache
def boot_id() -> str:
    """Another one after each boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


@cache
def pid_namespace() -> str:
    """The pid namespace of this process, such as ``pid:[4026531836]``."""
    return os.readlink("/proc/self/ns/pid")


def identity_of(stat: ProcessStat) -> ProcessIdentity:
    """The identity of a process of this boot and namespace."""
    return ProcessIdentity(boot_id=boot_id(), pid_namespace=pid_namespace(), pid=stat.pid, start_ticks=stat.start_ticks)


def identify(pid: int) -> ProcessIdentity | None:
    """Who has this pid now; a zombie counts. None when nobody does."""
    stat = read_stat(pid)
    return None if stat is None else identity_of(stat)


def is_local(identity: ProcessIdentity) -> bool:
    """Whether the pid means something here: this boot, this pid namespace."""
    return identity.boot_id == boot_id() and identity.pid_namespace == pid_namespace()


def is_alive(identity: ProcessIdentity) -> Liveness:
    """Whether this very process lives.

    Of another boot: dead. Of another pid namespace: unknown. A zombie without living threads: dead. Unknown too when
    the pid is in use and /proc does not show by whom (``hidepid``, /proc not mounted, no descriptor left to look).
    """
    if identity.boot_id != boot_id():
        return Liveness.DEAD
    if identity.pid_namespace != pid_namespace():
        return Liveness.UNKNOWN
    try:
        stat = read_stat(identity.pid)
        if stat is None:
            with suppress(PermissionError):
                os.kill(identity.pid, 0)
            stat = read_stat(identity.pid)
    except ProcessLookupError:
        return Liveness.DEAD
    except OSError:
        return Liveness.UNKNOWN
    if stat is None:
        return Liveness.UNKNOWN
    if stat.start_ticks != identity.start_ticks or not stat.living:
        return Liveness.DEAD
    return Liveness.ALIVE


def open_pidfd(pid: int, start_ticks: int) -> int | None:
    """A pidfd of this very process (zombies included), to be closed by the caller.

    None when there are no pidfds here or no descriptor is left: then poll. Raises ProcessLookupError when the process
    is gone, or the pid is another's by now: the identity is checked after the descriptor pins it.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError as error:
        # EINVAL and ENOENT: a thread's id, which no identity of ours names
        if error.errno in (errno.EINVAL, errno.ENOENT):
            raise ProcessLookupError(errno.ESRCH, "no such process") from error
        return None
    try:
        stat = read_stat(pid)
    except OSError:
        os.close(fd)
        return None
    if stat is None or stat.start_ticks != start_ticks:
        os.close(fd)
        raise ProcessLookupError(errno.ESRCH, "the pid is another process's by now")
    return fd


def send_signal(pid: int, start_ticks: int, number: signal.Signals) -> bool:
    """Signal this very process and no other; False when it is gone or is not ours to signal."""
    try:
        fd = open_pidfd(pid, start_ticks)
    except ProcessLookupError:
        return False
    try:
        if fd is not None:
            signal.pidfd_send_signal(fd, number)
        else:
            stat = read_stat(pid)
            if stat is None or stat.start_ticks != start_ticks:
                return False
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if fd is not None:
            os.close(fd)
    return True
