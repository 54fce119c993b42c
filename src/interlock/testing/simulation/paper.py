"""Agents on paper: :class:`interlock.ports.runtime.Runtime` over the machine's trees. They outlive whoever started them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.run import ProcessIdentity
from interlock.domain.settings import Agent
from interlock.ports.runtime import (
    Activity,
    Alive,
    CannotStart,
    Ended,
    Ending,
    Launch,
    NeverStarted,
    Recovery,
    TreeSurvives,
    Unknown,
)
from interlock.testing.simulation.machine import KILLED, TERM, Machine, Tree
from interlock.testing.simulation.scenario import Conduct, Mishap, Plan

DYING_SECONDS = 0.2
PATIENCE_SECONDS = 10.0
"""How long the real runtime looks for a tree to be gone after KILL."""

_SAID: dict[Conduct, bytes] = {
    Conduct.FAIL_FOR_GOOD: msgspec.json.encode({"permanent": True, "message": "this can not be done"}),
    Conduct.ASK: msgspec.json.encode({"outcome": "blocked", "question": "which one?"}),
    Conduct.BABBLE: b"{it is done, I think}",
}


def write_files(machine: Machine, tree: Tree) -> None:
    """What an agent that has ended left in its folder: its result, and its exit status with the time of its end."""
    if tree.written or tree.ends_at is None:
        return
    tree.written = True
    files = AttemptFiles(tree.folder)
    if not tree.folder.is_dir():
        return
    if tree.of_itself and (said := _SAID.get(tree.plan.conduct)) is not None:
        files.result.write_bytes(said)
    if tree.status is not None:
        files.exit.write_text(f"{tree.status}\n")
        at = machine.wall_at(tree.ends_at)
        os.utime(files.exit, (at, at))


class PaperHandle:
    """A process's hold on a tree: :class:`interlock.ports.runtime.Handle`."""

    def __init__(self, machine: Machine, tree: Tree) -> None:
        self._machine = machine
        self._tree = tree

    @property
    def identity(self) -> ProcessIdentity:
        """The process to be found again."""
        return self._tree.identity

    async def wait(self) -> Ending:
        """Until the agent itself has ended."""
        tree = self._tree
        await trio.lowlevel.checkpoint()
        while not tree.ended:
            deadline = float("inf") if tree.ends_at is None else tree.ends_at
            with trio.move_on_at(deadline):
                await tree.changed.wait()
        write_files(self._machine, tree)
        return Ending(exit_status=tree.status)

    async def stop(self, grace_ms: int) -> None:
        """TERM, grace, KILL, confirmed; or :class:`TreeSurvives`."""
        tree = self._tree
        await trio.lowlevel.checkpoint()
        if tree.alive and not tree.plan.deaf and not tree.stones:
            tree.strike(TERM, after_seconds=DYING_SECONDS)
        if await self._gone(grace_ms / 1000):
            return
        if tree.stones:
            if not await self._gone(PATIENCE_SECONDS):
                tree.stones -= 1
                raise TreeSurvives(f"pid {tree.identity.pid} (stone, state D)")
            return
        tree.strike(KILLED, after_seconds=DYING_SECONDS)
        while not await self._gone(PATIENCE_SECONDS):
            pass

    async def _gone(self, within_seconds: float) -> bool:
        tree = self._tree
        until = trio.current_time() + within_seconds
        while tree.alive and trio.current_time() < until:
            with trio.move_on_at(until if tree.gone_at is None else min(until, tree.gone_at)):
                await tree.changed.wait()
        return not tree.alive

    def activity(self) -> Activity:
        """Output and CPU so far."""
        if self._tree.plan.quiet:
            return Activity(output_bytes=0, cpu_ticks=0)
        return Activity(output_bytes=int(trio.current_time() * 10), cpu_ticks=0)

    def close(self) -> None:
        """There is nothing to let go of."""


class PaperRuntime:
    """Starts agents on paper. ``plan_of``: how the agent of an attempt behaves; ``broken``: agents that cannot be started."""

    def __init__(
        self,
        machine: Machine,
        plan_of: Callable[[int, int], Plan],
        broken: Mapping[str, bool],
        can_act: Callable[[], bool],
    ) -> None:
        self._machine = machine
        self._plan_of = plan_of
        self._broken = broken
        self._can_act = can_act

    def check(self, agent: Agent, cwd: Path) -> str | None:  # noqa: ARG002 - the port's shape
        """Why ``agent`` could not be started now, where a look shows that."""
        return f"'{agent.name}' is not there" if self._broken.get(agent.name) else None

    async def launch(self, launch: Launch) -> PaperHandle:
        """Start the agent. Raises :class:`CannotStart`, and RuntimeError where the plan says so."""
        plan = self._plan_of(launch.run, launch.fence)
        await trio.sleep(plan.launch_ms / 1000)
        if not self._can_act():
            # Killed, and the news is under way to this task: a dead process starts nothing.
            await trio.sleep_forever()
        if launch.agent.name in self._broken:
            raise CannotStart(f"'{launch.agent.name}' cannot be executed")
        if launch.folder in self._machine.void:
            raise CannotStart("the attempt was given up (it is void): it never starts any more.")
        if (launch.run, launch.fence) in self._machine.trees:
            raise CannotStart("the attempt was launched before.")
        if plan.mishap is Mishap.BEFORE_SPAWN:
            raise RuntimeError("something went wrong before the agent was started")
        tree = self._machine.spawn(launch.run, launch.fence, plan, launch.folder)
        if plan.mishap is Mishap.AFTER_SPAWN:
            raise RuntimeError("something went wrong after the agent was started")
        # Killed here, it has an agent that it never heard of.
        await trio.lowlevel.checkpoint()
        return PaperHandle(self._machine, tree)

    async def recover(
        self,
        folder: Path,
        known: ProcessIdentity | None = None,  # noqa: ARG002 - the port's shape
        *,
        started: bool = False,
    ) -> Recovery:
        """What became of the agent of this attempt."""
        await trio.lowlevel.checkpoint()
        number, fence, _ = folder.name.split(".")
        tree = self._machine.trees.get((int(number), int(fence)))
        if tree is None:
            self._machine.void.add(folder)
            return Ended(Ending(exit_status=None)) if started else NeverStarted()
        if tree.riddles:
            tree.riddles -= 1
            return Unknown("another pid namespace")
        if tree.alive:
            return Alive(PaperHandle(self._machine, tree))
        write_files(self._machine, tree)
        return Ended(Ending(exit_status=tree.status))
