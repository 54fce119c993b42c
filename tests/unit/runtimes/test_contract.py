"""The contract of :mod:`interlock.ports.runtime`, kept by every runtime: one suite over all of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.settings import Agent
from interlock.ports.runtime import Alive, CannotStart, Ended, Ending, Handle, Launch, NeverStarted, Runtime
from interlock.runtimes import AgentContext, CommandRuntime, FunctionRuntime
from interlock.runtimes.cgroup import usable_parent

COMMANDS = {
    "fine": "echo working; exit 0",
    "failing": "exit 1",
    "deferring": "exit 75",
    "repeating the prompt": "cat; exit 0",
    "endless": "echo working; while :; do sleep 1; done",
}


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


FUNCTIONS = {
    "fine": fine,
    "failing": failing,
    "deferring": deferring,
    "repeating the prompt": repeating,
    "endless": endless,
}


class Kind:
    """A runtime under test, and how to ask it for an agent that does one of the things above."""

    def __init__(self, yard: Any, runtime: Runtime, commands: dict[str, str]) -> None:
        self.yard = yard
        self.runtime = runtime
        self.commands = commands

    def order(self, what: str, **more: Any) -> Launch:
        launch: Launch = self.yard.launch(self.commands[what], **more)
        return launch

    async def working(self, launch: Launch) -> Handle:
        """Launched, and seen to work."""
        handle = await self.runtime.launch(launch)
        with trio.fail_after(20):
            while handle.activity().output_bytes == 0:
                await trio.sleep(0.005)
        return handle


@pytest.fixture(params=["cgroup", "plain", "function"])
async def kind(request: pytest.FixtureRequest, yard: Any, nursery: trio.Nursery) -> AsyncIterator[Kind]:
    if request.param == "function":
        yield Kind(yard, FunctionRuntime(FUNCTIONS, nursery), {name: name for name in FUNCTIONS})
        return
    if request.param == "cgroup" and usable_parent() is None:
        pytest.skip("cgroups cannot be made here")
    runtime = CommandRuntime(cgroups=request.param == "cgroup")
    yield Kind(yard, runtime, COMMANDS)
    runtime.close()


@pytest.mark.parametrize(("what", "status"), [("fine", 0), ("failing", 1), ("deferring", 75)])
async def test_an_agent_that_ends_leaves_its_status(kind: Kind, what: str, status: int) -> None:
    launch = kind.order(what)
    handle = await kind.runtime.launch(launch)
    assert await handle.wait() == Ending(exit_status=status)
    assert await handle.wait() == Ending(exit_status=status), "asked again, it says the same"
    await handle.stop(1000)
    await handle.stop(1000)
    handle.close()
    assert await kind.runtime.recover(launch.folder) == Ended(Ending(exit_status=status))
    assert AttemptFiles(launch.folder).exit.read_bytes() == b"%d\n" % status


async def test_the_agent_gets_the_prompt_and_its_output_is_the_log(kind: Kind) -> None:
    folder = kind.yard.folder("dö it\n\twell\n")
    launch = kind.order("repeating the prompt", folder=folder)
    handle = await kind.runtime.launch(launch)
    await handle.wait()
    await handle.stop(0)
    assert AttemptFiles(folder).log.read_text() == "dö it\n\twell\n"
    assert handle.activity().output_bytes == len("dö it\n\twell\n".encode())


async def test_stop_ends_an_agent_and_wait_returns(kind: Kind) -> None:
    launch = kind.order("endless")
    handle = await kind.working(launch)
    with trio.fail_after(20):
        async with trio.open_nursery() as waiters:
            waiters.start_soon(handle.wait)
            waiters.start_soon(handle.wait)
            await handle.stop(5000)
    assert await handle.wait() == Ending(exit_status=128 + signal.SIGTERM)
    assert await kind.runtime.recover(launch.folder) == Ended(Ending(exit_status=143))


async def test_two_stops_at_once_agree(kind: Kind) -> None:
    handle = await kind.working(kind.order("endless"))
    with trio.fail_after(20):
        async with trio.open_nursery() as stops:
            stops.start_soon(handle.stop, 5000)
            stops.start_soon(handle.stop, 0)


async def test_a_launched_attempt_is_not_launched_again(kind: Kind) -> None:
    launch = kind.order("endless")
    handle = await kind.working(launch)
    with pytest.raises(CannotStart):
        await kind.runtime.launch(launch)
    await handle.stop(5000)
    with pytest.raises(CannotStart):
        await kind.runtime.launch(launch)


async def test_a_running_agent_is_recovered_alive(kind: Kind) -> None:
    launch = kind.order("endless")
    handle = await kind.working(launch)
    recovery = await kind.runtime.recover(launch.folder)
    assert isinstance(recovery, Alive)
    assert recovery.handle.identity == handle.identity
    with trio.fail_after(20):
        await recovery.handle.stop(5000)
        assert (await handle.wait()).exit_status == 143
        await handle.stop(0)


async def test_recovering_what_never_started_makes_it_void(kind: Kind) -> None:
    launch = kind.order("fine")
    assert await kind.runtime.recover(launch.folder) == NeverStarted()
    assert AttemptFiles(launch.folder).void.exists()
    with pytest.raises(CannotStart, match="void"):
        await kind.runtime.launch(launch)
    assert await kind.runtime.recover(launch.folder) == NeverStarted()


async def test_a_folder_that_is_missing_is_void_afterwards(kind: Kind) -> None:
    folder = kind.yard.base / "attempts" / "never made"
    assert await kind.runtime.recover(folder) == NeverStarted()
    (folder / "prompt.md").write_text("late")
    with pytest.raises(CannotStart, match="void"):
        await kind.runtime.launch(kind.order("fine", folder=folder))


async def test_a_launch_into_a_missing_folder_is_refused(kind: Kind) -> None:
    launch = kind.order("fine", folder=kind.yard.base / "attempts" / "nowhere")
    with pytest.raises(CannotStart):
        await kind.runtime.launch(launch)
    assert not launch.folder.exists()


async def test_a_launch_that_fails_leaves_nothing(kind: Kind) -> None:
    launch = kind.order("fine")
    broken = msgspec.structs.replace(launch, agent=Agent(name="tester", command="no-such-thing"))
    assert kind.runtime.check(broken.agent, broken.cwd)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CannotStart, match="no-such-thing"):
        await kind.runtime.launch(broken)
    assert len(os.listdir("/proc/self/fd")) == before
    handle = await kind.runtime.launch(launch)
    assert (await handle.wait()).exit_status == 0
    await handle.stop(0)


async def test_no_descriptor_and_no_zombie_is_left(kind: Kind) -> None:
    async def once() -> None:
        handle = await kind.runtime.launch(kind.order("fine"))
        await handle.wait()
        await handle.stop(1000)
        handle.close()

    await once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await once()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


async def test_a_working_folder_that_is_missing(kind: Kind) -> None:
    launch = kind.order("fine")
    nowhere = msgspec.structs.replace(launch, cwd=kind.yard.base / "nowhere")
    reason = kind.runtime.check(nowhere.agent, nowhere.cwd)
    assert reason is not None
    assert "nowhere" in reason
    with pytest.raises(CannotStart, match="nowhere"):
        await kind.runtime.launch(nowhere)
    assert kind.runtime.check(launch.agent, launch.cwd) is None
