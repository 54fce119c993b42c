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
from interlock.runtimes.handle import ProcessHandle
from interlock.runtimes.records import InProcess, read_exit, read_identity
from interlock.runtimes.tree import Tree

_LOOKS = 4
_BETWEEN_LOOKS_SECONDS = 0.003


async def recover_folder(folder: Path, known: ProcessIdentity | None, *, started: bool) -> Recovery:
    """Find out, and make it final: what is not alive is void afterwards, a folder that did not exist included.

    A folder that was removed and made anew knows nothing, and the agent may run all the same: ``known`` and ``started``
    are what the database says, and the processes and cgroups of the system are looked through.

    ``Unknown`` when the folder cannot be read, or the process belongs to another pid namespace of this boot.
    """
    await trio.lowlevel.checkpoint()
    files = AttemptFiles(folder.resolve())
    try:
        files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = attempt_lock.share(files)
        if lock is None:
            return _held(files, known)
        try:
            crashpoint("recover.locked")
            attempt_lock.write_void(files)
            crashpoint("recover.voided")
            return await _let_go(files, known, started=started)
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


def _held(files: AttemptFiles, known: ProcessIdentity | None) -> Recovery:
    # an agent can write to its folder, not to the database
    identity = known or read_identity(files)
    if not isinstance(identity, ProcessIdentity) or identity.boot_id != process.boot_id():
        return Alive(ProcessHandle(files, None))
    return _foreign(identity) or Alive(ProcessHandle(files, identity))


async def _let_go(files: AttemptFiles, known: ProcessIdentity | None, *, started: bool) -> Recovery:
    recorded, status = read_identity(files), read_exit(files)
    identity = known or recorded
    if isinstance(identity, ProcessIdentity):
        unknown = _foreign(identity)
        if unknown:
            return unknown
    elsewhere = isinstance(identity, ProcessIdentity) and identity.boot_id != process.boot_id()
    tree = Tree(files, None if elsewhere or isinstance(identity, InProcess) else identity)
    if not elsewhere and not isinstance(identity, InProcess):
        found = await _search(tree)
        if found is not None:
            return found
    # so that the name in the lock file is known, too
    _ = tree.contained
    tree.remove_cgroup()
    if identity is None and status is None and not started:
        return NeverStarted()
    return Ended(Ending(exit_status=status))


async def _search(tree: Tree) -> Recovery | None:
    for _ in range(_LOOKS):
        if await tree.find_any():
            root = tree.root or await tree.find_root()
            return Alive(ProcessHandle(tree.files, root, tree))
        if not tree.undecided:
            break
        await trio.sleep(_BETWEEN_LOOKS_SECONDS)
    if tree.strangers:
        who = ", ".join(stat.describe() for stat in tree.strangers)
        return Unknown(f"its folder was removed, and the lock that was in it is still held by: {who}")
    return None
