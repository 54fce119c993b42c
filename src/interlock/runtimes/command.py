"""The runtime for agents that are commands: a process each, which outlives the dispatcher.

How a launch is safe, step by step (the words are those of DESIGN 3.7; the launcher takes the lock, and hands it on):

1. Take the attempt's lock without waiting. Held: someone launches or runs here.
2. Under the lock: no void mark, no identity, no exit status; so nothing ran here and nobody gave this attempt up.
3. Record and make the cgroup, open prompt and log, send the order to the keeper, the lock's description with it. Its child
   looks for the void mark once more, writes who it is, and becomes the agent: the lock is the tree's, without a gap.
4. When the keeper has said that the child is there, let go of the own copy.

Killed before 3, the launcher's lock is free and nothing runs. Killed after, the order holds the lock, then the keeper and
its child. Stopped anywhere, the lock is held by it, or it finds the void mark when it comes to step 2. A keeper that is
killed before it has answered: the lock says whether there is a child, and only when there is none is the order given
once more, to another keeper. A keeper that does not answer (stopped, or in a machine that stands still) is left with the
order, and the handle is one that does not know its process yet: as for a launch by another dispatcher that is found on
its way.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.crashpoints import crashpoint
from interlock.domain.errors import Unavailable
from interlock.domain.run import ProcessIdentity
from interlock.domain.settings import Agent
from interlock.ports.runtime import CannotStart, Handle, Launch, Recovery
from interlock.runtimes import attempt_lock, cgroup
from interlock.runtimes.handle import ProcessHandle
from interlock.runtimes.keeper import Charge, Keeper, order_for, reap
from interlock.runtimes.process import boot_id, pid_namespace
from interlock.runtimes.program import NoProgram, program_argv
from interlock.runtimes.recovery import recover_folder
from interlock.runtimes.snapshot import MARK
from interlock.runtimes.tree import Tree

_ADVICE = {
    errno.EMFILE: "this process has no file descriptor left: raise its limit of open files (ulimit -n)",
    errno.ENFILE: "the system has no file descriptor left",
    errno.EAGAIN: "the system allows no further process here: look at ulimit -u and the pids limit of the cgroup",
    errno.ENOMEM: "there is no memory left for another process",
    errno.E2BIG: "command and environment together are longer than the system takes",
    errno.ENOSPC: "the disk is full",
    errno.EROFS: "the data folder is read-only",
    errno.ECANCELED: "the attempt was given up (it is void): it never starts any more",
    errno.ETIMEDOUT: "the process that starts agents (interlock's keeper) does not answer: was it stopped?",
}

ANSWER_SECONDS = 10.0
"""How long the keeper may take to answer."""

_FREE_SECONDS = 0.2


class _Order(msgspec.Struct, frozen=True):
    """A launch on its way."""

    files: AttemptFiles
    words: tuple[object, ...]
    fds: tuple[int, int, int]
    cgroup: Path | None

    def discard_cgroup(self) -> None:
        """Remove what was made for it: nothing runs."""
        if self.cgroup is not None:
            cgroup.remove(self.cgroup)


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
        self._keeper: Keeper | None = None
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

    def prepare(self) -> None:
        """Start the keeper, if there is none, so that the first launch need not wait for it. Raises OSError."""
        self._ready_keeper()

    def _ready_keeper(self) -> Keeper:
        reap()
        if self._keeper is None or not self._keeper.usable:
            if self._keeper is not None:
                self._keeper.close()
            self._keeper = Keeper()
        return self._keeper

    # A KeyboardInterrupt between the start and the handle would lose the agent.
    @trio.lowlevel.enable_ki_protection
    async def launch(self, launch: Launch) -> Handle:
        """Start the agent. The loop is not blocked by it.

        Standard input is the prompt, standard output and error are appended to the log. The environment is
        ``launch.env`` with ``INTERLOCK_ATTEMPT_DIR``. All else that a process inherits (umask, limits, priority) is what
        this process had when its keeper was started. Raises :class:`CannotStart`, and then nothing runs; also when this
        attempt was launched before, or is void. When it is cancelled, only recovery can tell.
        """
        await trio.lowlevel.checkpoint()
        another = True
        while True:
            launched_at = time.monotonic()
            order, charge = await self._have_started(launch)
            if not charge.lost or charge.answered or not await _is_proven_unstarted(order.files):
                break
            if not another:
                order.discard_cgroup()
                raise CannotStart(
                    "the process that starts agents (interlock's keeper) ended before it could start this one."
                )
            another = False
        tree = Tree(order.files, None, cgroup_path=order.cgroup, launched_at=launched_at)
        return ProcessHandle(order.files, _identity(charge), tree, charge=charge)

    async def recover(self, folder: Path, known: ProcessIdentity | None = None, *, started: bool = False) -> Recovery:
        """What became of the agent of this folder; see :mod:`interlock.runtimes.recovery`."""
        return await recover_folder(folder, known, started=started)

    def close(self) -> None:
        """Let go of the keeper, which stays while its agents live, and remove the parent cgroup, if no agent is in it."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        if self._cgroup_parent is not None:
            with suppress(OSError):
                self._cgroup_parent.rmdir()

    async def _have_started(self, launch: Launch) -> tuple[_Order, Charge]:
        """Give the order, and wait for the keeper's answer. Raises :class:`CannotStart`."""
        with ExitStack() as opened:
            try:
                order = self._prepare_order(launch, opened)
                crashpoint("launch.contained")
                charge = self._give(order)
            except NoProgram as reason:
                raise CannotStart(str(reason)) from None
            except (OSError, ValueError) as error:
                raise CannotStart(_why(error)) from error
            crashpoint("launch.sent")
            withdrawn = False
            try:
                await charge.until_answered(ANSWER_SECONDS)
            except BaseException:
                # nobody will have a handle of it
                charge.let_go()
                raise
            finally:
                withdrawn = not charge.answered and charge.keeper.withdraw(charge, order.fds)
            refusal = OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) if withdrawn else charge.refused
            if refusal is not None:
                order.discard_cgroup()
                raise CannotStart(_why(refusal))
            crashpoint("launch.spawned")
        crashpoint("launch.released")
        return order, charge

    def _prepare_order(self, launch: Launch, opened: ExitStack) -> _Order:
        files = AttemptFiles(Path(os.path.realpath(launch.folder)))
        program = program_argv(launch.agent, launch.cwd, launch.env)
        env = {**launch.env, MARK: str(files.folder)}
        words = order_for(files, program, env, os.path.abspath(launch.cwd))
        lock = take_for_launch(files)
        opened.callback(os.close, lock)
        crashpoint("launch.locked")
        stdin = os.open(files.prompt, os.O_RDONLY | os.O_CLOEXEC)
        opened.callback(os.close, stdin)
        log = os.open(files.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        opened.callback(os.close, log)
        return _Order(files, words, (lock, stdin, log), self._make_cgroup(files, lock))

    def _give(self, order: _Order) -> Charge:
        words = (*order.words, None if order.cgroup is None else os.fsencode(order.cgroup), self._soft_fd_limit)
        try:
            keeper = self._ready_keeper()
            try:
                return keeper.launch(words, order.fds)
            except (BrokenPipeError, ConnectionResetError):
                # it is gone, and has not had the order
                keeper.close()
                return self._ready_keeper().launch(words, order.fds)
        except BaseException:
            order.discard_cgroup()
            raise

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


async def _is_proven_unstarted(files: AttemptFiles) -> bool:
    """Whether an order went down with the keeper: nobody has its lock, and nobody ever wrote who it is.

    Its lock may be free a moment after the socket's end.
    """
    with trio.move_on_after(_FREE_SECONDS), suppress(OSError):
        while not attempt_lock.is_free(files):
            await trio.sleep(_FREE_SECONDS / 40)
        return not os.path.lexists(files.identity)
    return False


def _identity(charge: Charge) -> ProcessIdentity | None:
    if charge.pid is None or charge.start_ticks is None:
        # the agent runs, and will be known from its files
        return None
    return ProcessIdentity(
        boot_id=boot_id(), pid_namespace=pid_namespace(), pid=charge.pid, start_ticks=charge.start_ticks
    )


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
