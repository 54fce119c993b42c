"""The runtime for agents that are async functions in this process.

They live and die with the interpreter: a dispatcher that is killed loses them, and recovery says so. Cancellation is all
there is to stop one with; processes that a function starts are its own to end.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.run import ProcessIdentity
from interlock.domain.settings import Agent
from interlock.ports.runtime import (
    Activity,
    Alive,
    CannotStart,
    Ending,
    Handle,
    Launch,
    Recovery,
    TreeSurvives,
)
from interlock.runtimes.command import take_for_launch
from interlock.runtimes.handle import PATIENCE_SECONDS
from interlock.runtimes.records import read_exit, write_in_process_mark
from interlock.runtimes.recovery import recover_folder

STOPPED = 143
"""Exit status of a function that was stopped: what a process would have that died of TERM."""


class AgentContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a function is called with."""

    run: int
    run_id: str
    fence: int
    prompt: str
    folder: Path
    cwd: Path
    env: dict[str, str]

    def log(self, text: str) -> None:
        """Append ``text`` to the attempt's log, as it is (no newline is added). Raises OSError."""
        _append(AttemptFiles(self.folder), text)


AgentFunction = Callable[[AgentContext], Awaitable[Any]]


class FunctionHandle:
    """A function at work. Costs one descriptor: the lock."""

    def __init__(self, name: str, files: AttemptFiles, lock: int) -> None:
        self._name = name
        self._files = files
        self._lock: int | None = lock
        self._scope = trio.CancelScope()
        self._over = trio.Event()
        self.begun = False

    @property
    def identity(self) -> ProcessIdentity | None:
        """None: there is no process to be found again."""
        return None

    async def wait(self) -> Ending:
        """Until the function has returned. ``exit_status`` is None when it was cancelled along with the nursery."""
        await self._over.wait()
        return Ending(exit_status=read_exit(self._files))

    async def stop(self, grace_ms: int) -> None:
        """Cancel the function and wait until it has returned.

        Raises :class:`TreeSurvives` when it has not ``grace_ms`` milliseconds and 10 s later: nothing can end it then.
        """
        self._scope.cancel()
        with trio.move_on_after(grace_ms / 1000 + PATIENCE_SECONDS):
            await self._over.wait()
            return
        raise TreeSurvives(f"the function {self._name!r} does not heed its cancellation")

    def activity(self) -> Activity:
        """Bytes of output. CPU time of a function is not known: 0."""
        try:
            return Activity(output_bytes=self._files.log.stat().st_size, cpu_ticks=0)
        except OSError:
            return Activity(output_bytes=0, cpu_ticks=0)

    def close(self) -> None:
        """Nothing to let go of: the lock is the function's."""

    async def run(
        self,
        function: AgentFunction,
        context: AgentContext,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """The life of the function, as a task."""
        try:
            write_in_process_mark(self._files)
            self.begun = True
            task_status.started()
            status = await self._call(function, context)
            try:
                self._files.exit.write_bytes(b"%d\n" % status)
            except OSError:
                # as for a process on a full disk: no exit status, so the attempt counts as lost
                self._files.exit.unlink(missing_ok=True)
        finally:
            self.release()

    def release(self) -> None:
        """Let go of the lock: the function is over, or never began."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self._over.set()

    async def _call(self, function: AgentFunction, context: AgentContext) -> int:
        try:
            with self._scope:
                result = await function(context)
                self._write_result({"outcome": "completed", "result": result})
                return 0
        except SystemExit as leaving:
            # sys.exit(75) says what it says from a process
            if leaving.code is None or isinstance(leaving.code, int):
                return (leaving.code or 0) & 0xFF
            return self._fail(leaving)
        except Exception as error:  # noqa: BLE001  a failing agent is an outcome, never the end of the nursery
            return self._fail(error)
        return STOPPED

    def _fail(self, error: BaseException) -> int:
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        try:
            _append(self._files, "".join(traceback.format_exception(error)))
            self._write_result({"outcome": "failed", "message": message})
        except OSError:
            # the exit status says the same, if the disk takes that
            return 1
        return 1

    def _write_result(self, result: dict[str, Any]) -> None:
        try:
            content = msgspec.json.encode(result)
        except TypeError as error:
            raise TypeError(f"the function {self._name!r} returned what JSON cannot hold: {error}") from error
        draft = self._files.result.with_suffix(".draft")
        draft.write_bytes(content)
        draft.replace(self._files.result)


class FunctionRuntime:
    """Runs async functions as agents. An agent's ``command`` (else its name) is the key into ``functions``.

    ``nursery`` is where they run: outside of what waits for them, and cancelled only when the process ends.
    """

    def __init__(self, functions: Mapping[str, AgentFunction], nursery: trio.Nursery) -> None:
        self._functions = dict(functions)
        self._nursery = nursery
        self._live: dict[Path, FunctionHandle] = {}

    def check(self, agent: Agent, cwd: Path) -> str | None:
        """Why ``agent`` could not be started now, or None."""
        name = _function_name(agent)
        if name not in self._functions:
            known = ", ".join(sorted(self._functions)) or "none"
            return f"there is no function {name!r} for agent {agent.name!r}; those registered: {known}."
        return None if cwd.is_dir() else f"the working folder {cwd} of agent {agent.name!r} does not exist."

    async def launch(self, launch: Launch) -> Handle:
        """Start the function. Raises :class:`CannotStart`, also when this attempt was launched before, or is void."""
        await trio.lowlevel.checkpoint()
        reason = self.check(launch.agent, launch.cwd)
        if reason:
            raise CannotStart(reason)
        name = _function_name(launch.agent)
        files = AttemptFiles(launch.folder.resolve())
        try:
            prompt = files.prompt.read_text(encoding="utf-8", errors="replace")
            lock = take_for_launch(files)
        except OSError as error:
            raise CannotStart(f"{error}.") from error
        context = AgentContext(
            run=launch.run,
            run_id=launch.run_id,
            fence=launch.fence,
            prompt=prompt,
            folder=files.folder,
            cwd=launch.cwd,
            env=dict(launch.env),
        )
        handle = FunctionHandle(name, files, lock)
        try:
            await self._nursery.start(self._run, handle, self._functions[name], context)
        except (OSError, RuntimeError) as error:
            raise CannotStart(f"{error}.") from error
        finally:
            if not handle.begun:
                handle.release()
        return handle

    async def recover(self, folder: Path, known: ProcessIdentity | None = None, *, started: bool = False) -> Recovery:
        """What became of the function of this folder: one that is not at work in some process was lost with it."""
        live = self._live.get(folder.resolve())
        if live is not None:
            await trio.lowlevel.checkpoint()
            return Alive(live)
        return await recover_folder(folder, known, started=started)

    async def _run(
        self,
        handle: FunctionHandle,
        function: AgentFunction,
        context: AgentContext,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        self._live[context.folder] = handle
        try:
            await handle.run(function, context, task_status)
        finally:
            del self._live[context.folder]


def _function_name(agent: Agent) -> str:
    command = agent.command if isinstance(agent.command, str) else " ".join(agent.command)
    return command.strip() or agent.name


def _append(files: AttemptFiles, text: str) -> None:
    fd = os.open(files.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
