"""Who a dispatcher process is, and whether another one lives.

An instance holds a lock (flock) on ``instances/N.lock`` for as long as it lives, and has written its id into that file. A lock
that is free, or held by another id, says that the instance is gone. Nothing else does: not its pid, not a lease.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from interlock.domain.errors import Conflict, Unavailable
from interlock.domain.run import Instance

INSTANCE_LIMIT = 64
LOOKS = 3000


class InstanceLock:
    """The lock of this process. Raises :class:`Conflict` when ``alone`` and another daemon is up."""

    def __init__(self, data: Path, *, alone: bool) -> None:
        self.folder = data / "instances"
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self.ordinal, self._descriptor = self._take(alone=alone)
            stable = hashlib.sha256(f"{socket.gethostname()}\0{data.resolve()}".encode()).hexdigest()[:8]
            self.id = f"{socket.gethostname()}:{os.getpid()}:{stable}.{self.ordinal}"
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{self.id}\n".encode(), 0)
        except OSError as error:
            raise Unavailable(
                f"{self.folder}: {error.strerror}", hint="check that the data folder can be written"
            ) from error

    def _take(self, *, alone: bool) -> tuple[int, int]:
        for ordinal in range(INSTANCE_LIMIT):
            descriptor = os.open(self.folder / f"{ordinal}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not _take_from_lookers(descriptor):
                holder = os.pread(descriptor, 512, 0).decode(errors="replace").strip()
                os.close(descriptor)
                if alone:
                    raise Conflict(
                        f"a dispatcher is up for this data folder already ({holder or 'starting'})",
                        hint="`interlock ps` shows its work, `interlock stop` ends it, --peer starts one beside it",
                    )
                continue
            return ordinal, descriptor
        raise Conflict(
            f"{INSTANCE_LIMIT} dispatchers are up for this data folder already",
            hint="`interlock ps` lists them, `interlock stop` ends them all",
        )

    def release(self) -> None:
        """Let go of the lock: to everybody else this instance is gone now."""
        os.close(self._descriptor)


def _take_from_lookers(descriptor: int) -> bool:
    """Take the lock for good; False when an instance has it. Whoever asks :func:`is_alive` shares it for a moment."""
    for _ in range(LOOKS):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        # Each looks for microseconds only; many at once may leave no gap for a while.
        time.sleep(0.001)
    return False


def is_alive(data: Path, instance_id: str) -> bool:
    """Whether the instance with this id holds its lock."""
    ordinal = instance_id.rpartition(".")[2]
    if not ordinal.isdigit():
        return False
    try:
        descriptor = os.open(data / "instances" / f"{ordinal}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.pread(descriptor, 512, 0).decode(errors="replace").strip() == instance_id
        return False
    finally:
        os.close(descriptor)


def alive_instances(data: Path, instances: list[Instance]) -> tuple[Instance, ...]:
    """Those of ``instances`` that live."""
    return tuple(instance for instance in instances if is_alive(data, instance.id))
