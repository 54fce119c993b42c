"""The contract of :mod:`interlock.ports.runtime`, kept by every runtime."""

from __future__ import annotations

import sys

import pytest
import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.settings import Agent
from interlock.ports.runtime import CannotStart, Runtime
from interlock.runtimes import AgentContext, CommandRuntime, FunctionRuntime
from interlock.runtimes.cgroup import usable_parent
from interlock.testing import Deed, RuntimeConformance


async def fine(context: AgentContext) -> None:
    context.log("working\n")


async def failing(context: AgentContext) -> None:
    raise RuntimeError("no")


async def deferring(context: AgentContext) -> None:
    sys.exit(75)


async def repeating(context: AgentContext) -> None:
    context.log(context.prompt)


async def endless(context: AgentContext) -> None:
    context.log("working\n")
    await trio.sleep_forever()


async def waiting(context: AgentContext) -> None:
    context.log("working\n")
    while not (context.cwd / "go").exists():
        await trio.sleep(0.02)
    sys.exit(7)


FUNCTIONS = {
    Deed.FINE: fine,
    Deed.FAILING: failing,
    Deed.DEFERRING: deferring,
    Deed.REPEATING: repeating,
    Deed.ENDLESS: endless,
    Deed.WAITING: waiting,
}


class TestCommands(RuntimeConformance):
    async def make_runtime(self, nursery: trio.Nursery) -> Runtime:
        return CommandRuntime(cgroups=False)


@pytest.mark.skipif(usable_parent() is None, reason="cgroups cannot be made here")
class TestCommandsInCgroups(RuntimeConformance):
    async def make_runtime(self, nursery: trio.Nursery) -> Runtime:
        return CommandRuntime(cgroups=True)


class TestFunctions(RuntimeConformance):
    """They end processes of their own making themselves, and heed their cancellation."""

    async def make_runtime(self, nursery: trio.Nursery) -> Runtime:
        return FunctionRuntime({deed.name: function for deed, function in FUNCTIONS.items()}, nursery)

    def agent(self, deed: Deed) -> Agent | None:
        return Agent(name=deed.name) if deed in FUNCTIONS else None

    def agent_that_cannot_start(self) -> Agent:
        return Agent(name="no-such-thing")


@pytest.fixture(params=["command", "function"])
def runtime(request: pytest.FixtureRequest, nursery: trio.Nursery) -> Runtime:
    return CommandRuntime(cgroups=False) if request.param == "command" else FunctionRuntime({"true": fine}, nursery)


async def test_what_an_attempt_leaves_in_its_folder(runtime: Runtime, yard: object) -> None:
    """Not of the contract: the files by which these runtimes, and people, know an attempt."""
    launch = yard.launch("true")  # type: ignore[attr-defined]
    handle = await runtime.launch(launch)
    await handle.wait()
    await handle.stop(0)
    assert AttemptFiles(launch.folder).exit.read_bytes() == b"0\n"
    given_up = yard.launch("true")  # type: ignore[attr-defined]
    await runtime.recover(given_up.folder)
    assert AttemptFiles(given_up.folder).void.exists()
    with pytest.raises(CannotStart, match="void"):
        await runtime.launch(given_up)
