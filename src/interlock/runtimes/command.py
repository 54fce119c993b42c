"""The runtime for agents that are commands: a process each, which outlives the dispatcher.

How a launch is safe, step by step (the words are those of DESIGN 3.7; the launcher holds the lock in the wrapper's
stead, since flock(1) would cost a process):

1. Take the attempt's lock without waiting. Held: someone launches or runs here.
2. Under the lock: no void mark, no identity, no exit status; so nothing ran here and nobody gave this attempt up.
3. Record and make the cgroup, open prompt and log, spawn the wrapper. The lock's description is inherited across
   vfork and exec, without a gap: from here on it is the tree's.
4. Let go of the own copy.

Killed before 3, the launcher's lock is free and nothing runs. Killed after, the wrapper has it. Stopped anywhere, the
lock is held by it, or it finds the void mark when it comes to step 2.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.crashpoints import crashpoint
from interlock.domain.errors import Unavailable
from interlock.domain.run import ProcessIdentity
from interlock.domain.settings import Agent
from interlock.ports.runtime import CannotStart, Handle, Launch, Recovery
from interlock.runtimes import attempt_lock, cgroup
from interlock.runtimes.handle import ProcessHandle, adopt_child, reap_closed
from interlock.runtimes.process import identify
from interlock.runtimes.program import NoProgram, program_argv
from interlock.runtimes.recovery import recover_folder
from interlock.runtimes.snapshot import MARK
from interlock.runtimes.tree import Tree
from interlock.runtimes.wrapper import wrapper_argv

_ADVICE = {
    errno.EMFILE: "this process has no file descriptor left: raise its limit of open files (ulimit -n)",
    errno.ENFILE: "the system has no file descriptor left",
    errno.EAGAIN: "the system allows no further process here: look at ulimit -u and the pids limit of the cgroup",
    errno.ENOMEM: "there is no memory left for another process",
    errno.E2BIG: "command and environment together are longer than the system takes",
    errno.ENOSPC: "the disk is full",
    errno.EROFS: "the data folder is read-only",
}


class CommandRuntime:
    """Runs agents whose ``command`` is an argv list or a shell string.

    ``cgroups``: None uses cgroups where they can be made, False never, True insists on them (:class:`Unavailable` is
    raised where they cannot be). ``soft_fd_limit`` is the soft limit of open files that agents get: what
    :func:`interlock.runtimes.descriptors.raise_fd_limit` returned.
    """

    def __init__(self, *, cgroups: bool | None = None, soft_fd_limit: int | None = None) -> None:
        self._cgroup_parent = None if cgroups is False else cgroup.usable_parent()
        self._insists = cgroups is True
        self._soft_fd_limit = soft_fd_limit
        if self._insists and self._cgroup_parent is None:
            raise Unavailable(
                "cgroups cannot be made here",
                hint="run as a systemd unit with Delegate=yes, or leave the setting out",
            )

    @property
    def contained(self) -> bool:
        """Whether agents are held in cgroups, which nothing escapes from."""
        return self._cgroup_parent is not None

    def check(self, agent: Agent, cwd: Path) -> str | None:
        """Why ``agent`` could not be started in ``cwd`` now, as a sentence that says what to put right, or None.

        Of a shell string its first word is checked, if it is a plain one; that the rest works only the shell can tell.
        """
        try:
            program_argv(agent, cwd, {**os.environ, **agent.env})
        except NoProgram as reason:
            return str(reason)
        except OSError as error:
            return _why(error)
        return None

    async def launch(self, launch: Launch) -> Handle:
        """Start the agent. Blocks the loop for the time of a vfork and an exec (about 0.5 ms).

        Standard input is the prompt, standard output and error are appended to the log. The environment is
        ``launch.env`` with ``INTERLOCK_ATTEMPT_DIR``; variables whose names no shell can hold are lost on the way.
        Raises :class:`CannotStart`, and then nothing runs; also when this attempt was launched before, or is void.
        """
        await trio.lowlevel.checkpoint()
        reap_closed()
        return self._launch(launch)

    async def recover(self, folder: Path, known: ProcessIdentity | None = None, *, started: bool = False) -> Recovery:
        """What became of the agent of this folder; see :mod:`interlock.runtimes.recovery`."""
        return await recover_folder(folder, known, started=started)

    def close(self) -> None:
        """Remove what this runtime made beside attempts (the parent cgroup), if no agent is in it."""
        if self._cgroup_parent is not None:
            with suppress(OSError):
                self._cgroup_parent.rmdir()

    # A KeyboardInterrupt between the spawn and the handle would lose the agent.
    @trio.lowlevel.enable_ki_protection
    def _launch(self, launch: Launch) -> Handle:
        files = AttemptFiles(launch.folder.resolve())
        with ExitStack() as opened:
            try:
                program = program_argv(launch.agent, launch.cwd, launch.env)
                lock = take_for_launch(files)
                opened.callback(os.close, lock)
                crashpoint("launch.locked")
                stdin = os.open(files.prompt, os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, stdin)
                log = os.open(files.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                opened.callback(os.close, log)
                path = self._make_cgroup(files, lock)
            except NoProgram as reason:
                raise CannotStart(str(reason)) from None
            except OSError as error:
                raise CannotStart(_why(error)) from error
            crashpoint("launch.contained")
            try:
                pid, launched_at = self._spawn(launch, files, program, (lock, stdin, log), path)
            except (OSError, ValueError) as error:
                if path is not None:
                    cgroup.remove(path)
                raise CannotStart(_why(error)) from error
            crashpoint("launch.spawned")
        crashpoint("launch.released")
        tree = Tree(files, None, cgroup_path=path, launched_at=launched_at)
        try:
            identity = identify(pid)
        except OSError:
            identity = None
        if identity is None:
            # no descriptor left to look: the agent runs, and will be known from its files
            adopt_child(pid)
            return ProcessHandle(files, None, tree)
        return ProcessHandle(files, identity, tree, child=True)

    def _make_cgroup(self, files: AttemptFiles, lock: int) -> Path | None:
        # an earlier launch that failed may have left a name
        os.ftruncate(lock, 0)
        if self._cgroup_parent is None:
            return None
        name = cgroup.cgroup_name(files.folder)
        # recorded before it is made: whoever recovers knows what to remove
        os.pwrite(lock, os.fsencode(self._cgroup_parent / name) + b"\n", 0)
        path = cgroup.make(self._cgroup_parent, name)
        if path is None:
            os.ftruncate(lock, 0)
            if self._insists:
                raise OSError(errno.EPERM, "no cgroup can be made", str(self._cgroup_parent))
        return path

    def _spawn(
        self,
        launch: Launch,
        files: AttemptFiles,
        program: list[str],
        fds: tuple[int, int, int],
        path: Path | None,
    ) -> tuple[int, float]:
        lock, stdin, log = fds
        launched_at = time.monotonic()
        child = subprocess.Popen(
            wrapper_argv(files, program, cgroup=None if path is None else str(path), soft_fd_limit=self._soft_fd_limit),
            stdin=stdin,
            stdout=log,
            stderr=log,
            cwd=launch.cwd,
            env={**launch.env, MARK: str(files.folder)},
            start_new_session=True,
            pass_fds=(lock,),
        )
        # The handle reaps it, when the whole tree is gone: until then the zombie keeps its pid from being reused.
        child.returncode = 0
        return child.pid, launched_at


def take_for_launch(files: AttemptFiles) -> int:
    """Take the lock of an attempt that was never launched and is not void: its descriptor. Raises :class:`CannotStart`."""
    lock = attempt_lock.take(files)
    if lock is None:
        raise CannotStart("the attempt's lock is held: it is being launched or given up, or runs already.")
    for path, reason in (
        (files.void, "the attempt was given up (it is void): it never starts any more."),
        (files.identity, "the attempt was launched before."),
        (files.exit, "the attempt has ended already."),
    ):
        if os.path.lexists(path):
            os.close(lock)
            raise CannotStart(reason)
    return lock


def _why(error: OSError | ValueError) -> str:
    if not isinstance(error, OSError):
        return f"the command or its environment cannot be handed to the system: {error}."
    advice = _ADVICE.get(error.errno or 0)
    where = f" ({error.filename})" if error.filename else ""
    return f"{advice or error.strerror or error}{where}."
