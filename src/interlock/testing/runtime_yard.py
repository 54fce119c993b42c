"""Where the suite for runtimes starts its agents: what they do, and where they do it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.settings import Agent
from interlock.ports.runtime import Handle, Launch, Runtime
from interlock.testing.conformance import skip


class Deed(StrEnum):
    """What agents of the suite do. ``go`` and ``beat`` are files in the agent's working folder."""

    FINE = "writes the line 'working' and ends with status 0"
    FAILING = "ends with status 1"
    DEFERRING = "ends with status 75"
    REPEATING = "writes its prompt, as it is, and ends with status 0"
    ENDLESS = "writes the line 'working' and goes on until it is stopped"
    DEAF = "the same, and heeds nothing but KILL"
    WAITING = "writes the line 'working' and ends with status 7 once the file 'go' is there"
    LEAVING = "leaves something behind that appends to the file 'beat' again and again, and ends with status 0"


SHELL: dict[Deed, str] = {
    Deed.FINE: "echo working; exit 0",
    Deed.FAILING: "exit 1",
    Deed.DEFERRING: "exit 75",
    Deed.REPEATING: "cat; exit 0",
    Deed.ENDLESS: "echo working; while :; do sleep 1; done",
    Deed.DEAF: "trap '' TERM; echo working; while :; do sleep 0.1; done",
    Deed.WAITING: "echo working; while [ ! -e go ]; do sleep 0.02; done; exit 7",
    Deed.LEAVING: "(while :; do echo x >> beat; sleep 0.02; done) & exit 0",
}
"""The deeds as shell commands."""


class Agents(Protocol):
    """What a yard asks of its suite."""

    @property
    def folder(self) -> Path:
        """The check's temporary folder."""
        ...

    @property
    def patience_seconds(self) -> float:
        """How long to wait for what must come."""
        ...

    def agent(self, deed: Deed) -> Agent | None:
        """An agent that does this, if there is one."""
        ...


class Yard:
    """Attempt folders, two runtimes that stand for two processes, and the agents that were started."""

    def __init__(self, suite: Agents, runtime: Runtime, other: Runtime) -> None:
        self.suite = suite
        self.runtime = runtime
        self.other = other
        self.cwd = suite.folder / "work tree ü"
        self.cwd.mkdir()
        self.handles: list[Handle] = []
        self.count = 0

    def launch_of(self, deed: Deed, prompt: str = "do it\n") -> Launch:
        """What a dispatcher would hand to a runtime, in a fresh attempt folder."""
        agent = self.suite.agent(deed)
        if agent is None:
            raise skip(f"there is no agent here that {deed}")
        self.count += 1
        folder = self.suite.folder / "data" / "attempts" / f"{self.count}.1.g"
        folder.mkdir(parents=True)
        AttemptFiles(folder).prompt.write_text(prompt, "utf-8")
        run_id = f"run-{self.count}"
        env = {**os.environ, "INTERLOCK_RUN_ID": run_id}
        return Launch(run=self.count, run_id=run_id, fence=1, agent=agent, folder=folder, cwd=self.cwd, env=env)

    async def launched(self, launch: Launch, runtime: Runtime | None = None) -> Handle:
        """Start the agent; it is stopped at the end, whatever happens."""
        handle = await (runtime or self.runtime).launch(launch)
        self.handles.append(handle)
        return handle

    async def working(self, launch: Launch) -> Handle:
        """Start the agent, and wait until it has written something."""
        handle = await self.launched(launch)
        await self.until(lambda: handle.activity().output_bytes > 0)
        return handle

    @staticmethod
    async def until(condition: Callable[[], object]) -> None:
        """Wait for a condition; the check's patience bounds it."""
        while not condition():
            await trio.sleep(0.005)

    @staticmethod
    async def until_async(ask: Callable[[], Awaitable[Any]], kind: type) -> Any:
        """Wait until an answer is of this kind."""
        while not isinstance(answer := await ask(), kind):
            await trio.sleep(0.01)
        return answer

    async def stop_all(self, *, quietly: bool = False) -> None:
        """Stop what was started. ``quietly``: something else has gone wrong already."""
        handles, self.handles = self.handles, []
        for handle in handles:
            try:
                with trio.move_on_after(self.suite.patience_seconds):
                    await handle.stop(0)
                handle.close()
            except Exception:
                if not quietly and handle.identity is not None:
                    raise


def open_descriptors() -> int:
    """How many descriptors this process has open; 0 where nobody can tell."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def zombies() -> list[int]:
    """Children of this process that have ended and were not waited for."""
    found = []
    try:
        children = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split()
    except OSError:
        return []
    for pid in children:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state == "Z":
            found.append(int(pid))
    return found
