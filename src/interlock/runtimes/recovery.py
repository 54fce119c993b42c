"""What became of an attempt, read from its folder: the same for every runtime that keeps to the lock and the void mark."""

from __future__ import annotations

import os
from pathlib import Path

import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.crashpoints import crashpoint
from interlock.domain.run import ProcessIdentity
from interlock.ports.runtime import Alive, Ended, Ending, NeverStarted, Recovery, Unknown
from interlock.runtimes import attempt_lock, process
from interlock.runtimes.cgroup import remove
from interlock.runtimes.handle import ProcessHandle
from interlock.runtimes.tree import Tree, recorded_cgroup
from interlock.runtimes.wrapper import read_exit, read_identity

_LOOKS = 4
_BETWEEN_LOOKS_SECONDS = 0.003


async def recover_folder(folder: Path) -> Recovery:
    """Find out, and make it final: what is not alive is void afterwards, a folder that did not exist included.

    ``Unknown`` when the folder cannot be read, or the process belongs to another pid namespace of this boot.
    """
    await trio.lowlevel.checkpoint()
    files = AttemptFiles(folder.resolve())
    try:
        files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = attempt_lock.take(files)
        if lock is None:
            return _held(files)
        try:
            crashpoint("recover.locked")
            attempt_lock.write_void(files)
            crashpoint("recover.voided")
            return await _let_go(files)
        finally:
            os.close(lock)
    except OSError as error:
        return Unknown(f"the attempt's folder cannot be examined: {error}")


def _foreign(identity: ProcessIdentity) -> Unknown | None:
    if identity.boot_id != process.boot_id() or identity.pid_namespace == process.pid_namespace():
        return None
    return Unknown(
        f"it was started in another pid namespace ({identity.pid_namespace}, pid {identity.pid} there), which cannot be"
        " seen from here: a container that was replaced, or one that still runs"
    )


def _held(files: AttemptFiles) -> Recovery:
    identity = read_identity(files)
    if not isinstance(identity, ProcessIdentity) or identity.boot_id != process.boot_id():
        return Alive(ProcessHandle(files, None))
    return _foreign(identity) or Alive(ProcessHandle(files, identity))


async def _let_go(files: AttemptFiles) -> Recovery:
    identity, status = read_identity(files), read_exit(files)
    path = recorded_cgroup(files)
    if isinstance(identity, ProcessIdentity) and identity.boot_id == process.boot_id():
        unknown = _foreign(identity)
        if unknown:
            return unknown
        tree = Tree(files, identity)
        for _ in range(_LOOKS):
            if await tree.find_any():
                return Alive(ProcessHandle(files, identity, tree))
            if not tree.undecided:
                break
            await trio.sleep(_BETWEEN_LOOKS_SECONDS)
    if path is not None:
        remove(path)
    if identity is None and status is None:
        return NeverStarted()
    return Ended(Ending(exit_status=status))
