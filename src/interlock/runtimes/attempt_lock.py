"""The lock and the void mark of an attempt folder: what makes a second start impossible.

The lock is a flock on an open file description. The launcher takes it, looks for the void mark, and only then spawns;
the description is inherited by the wrapper and its tree, so the lock is free exactly when the launcher and everyone
of the tree who has not closed it are gone. Who finds it free takes it, and writes the void mark before letting go:
a launcher that was stopped before it took the lock finds the mark, one that was stopped after it still holds the lock.

flock works across processes and pid namespaces of one host, not on NFS (emulated there by locks that children do not
inherit): the data folder belongs on a local disk.
"""

from __future__ import annotations

import fcntl
import os

from interlock.domain.attempt_files import AttemptFiles


def take(files: AttemptFiles, *, create: bool = True) -> int | None:
    """Take the lock without waiting: its descriptor, or None while anyone else holds it.

    Raises OSError: FileNotFoundError when the folder is gone, also when it went, or was replaced, meanwhile; without
    ``create`` also when there is no lock file (then nothing can be said of who holds it).
    """
    fd = os.open(files.lock, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
    """Whether nobody holds the lock now. Raises OSError as :func:`take`."""
    fd = take(files, create=False)
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
