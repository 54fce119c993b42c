"""The lock and the void mark of an attempt folder: what makes a second start impossible.

The lock is a flock on an open file description. The launcher takes it for itself alone, looks for the void mark, and only
then has the agent started; the description goes to the keeper with the order, and is inherited by the tree. So the lock is
held alone exactly until the launcher has let go of it, the keeper has written the exit status, and everyone of the tree
who has not closed it is gone. Who recovers, or only looks, *shares* the lock: that
succeeds when nobody holds it alone, keeps launchers out, and is not taken for a live agent by others who look at the
same moment. The void mark is written before letting go: a launcher that was stopped before it took the lock finds the
mark, one that was stopped after it still holds the lock.

A free lock proves an absence only where the file is the one that the tree inherited. A folder that was removed and made
anew has another: :mod:`interlock.runtimes.tree` knows what else to look at.

flock works across processes and pid namespaces of one host, not on NFS (emulated there by locks that children do not
inherit): the data folder belongs on a local disk.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from interlock.domain.attempt_files import AttemptFiles


def take(files: AttemptFiles) -> int | None:
    """Take the lock to launch under it, without waiting: its descriptor, or None while anyone has it, or shares it.

    Raises OSError: FileNotFoundError when the folder is gone, also when it went, or was replaced, meanwhile.
    """
    return _lock(files, fcntl.LOCK_EX, create=True)


def share(files: AttemptFiles, *, create: bool = True) -> int | None:
    """Share the lock with others who look, without waiting: its descriptor, or None while a launcher or a tree has it.

    Raises OSError as :func:`take`; without ``create`` FileNotFoundError also when there is no lock file (then nothing can
    be said of who holds it).
    """
    return _lock(files, fcntl.LOCK_SH, create=create)


def _lock(files: AttemptFiles, kind: int, *, create: bool) -> int | None:
    fd = os.open(files.lock, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    try:
        # a lock on a file that nobody else can find any more protects from nobody
        if not os.path.samestat(os.fstat(fd), os.stat(files.lock)):
            raise FileNotFoundError(2, "the attempt's folder was replaced", str(files.lock))
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_free(files: AttemptFiles) -> bool:
    """Whether neither a launcher nor a tree has the lock now. Raises OSError as :func:`share`."""
    fd = share(files, create=False)
    if fd is None:
        return False
    os.close(fd)
    return True


def write_void(files: AttemptFiles) -> None:
    """Write the void mark and force it to the disk. Raises OSError."""
    if files.void.exists():
        return
    for path, flags in ((files.void, os.O_WRONLY | os.O_CREAT), (files.folder, os.O_RDONLY | os.O_DIRECTORY)):
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def give_up(folder: Path) -> None:
    """Void an attempt on somebody's word, whoever has its lock: what has not started in ``folder`` never does. Raises OSError."""
    # 0o700 as for every attempt's folder, which may not have been made yet
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_void(AttemptFiles(folder))
