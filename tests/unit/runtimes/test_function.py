"""Functions as agents: what their end, their errors and their results become."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.ports.runtime import Activity, Alive, Ended, Ending, TreeSurvives
from interlock.runtimes import AgentContext, CommandRuntime, FunctionRuntime, function


async def result_of(yard: Any, nursery: trio.Nursery, agent: Any) -> tuple[int | None, Any, str]:
    launch = yard.launch("agent", A="1")
    handle = await FunctionRuntime({"agent": agent}, nursery).launch(launch)
    ending = await handle.wait()
    await handle.stop(0)
    files = AttemptFiles(launch.folder)
    result = json.loads(files.result.read_text()) if files.result.exists() else None
    return ending.exit_status, result, files.log.read_text() if files.log.exists() else ""


async def test_it_is_told_everything(yard: Any, nursery: trio.Nursery) -> None:
    async def agent(context: AgentContext) -> dict[str, Any]:
        context.log("half a ")
        context.log("line")
        return {
            "told": [context.run, context.run_id, context.fence, context.prompt],
            "cwd": str(context.cwd),
            "folder": str(context.folder),
            "env": context.env["A"],
        }

    status, result, log = await result_of(yard, nursery, agent)
    assert (status, log) == (0, "half a line")
    assert result["outcome"] == "completed"
    assert result["result"]["told"] == [1, "run-1", 1, "do it\n"]
    assert result["result"]["env"] == "1"
    assert Path(result["result"]["folder"]).is_dir()


async def test_none_is_a_result(yard: Any, nursery: trio.Nursery) -> None:
    async def agent(context: AgentContext) -> None:
        pass

    assert await result_of(yard, nursery, agent) == (0, {"outcome": "completed", "result": None}, "")


async def test_an_exception_is_a_failure(yard: Any, nursery: trio.Nursery) -> None:
    async def agent(context: AgentContext) -> None:
        raise ValueError("no such thing")

    status, result, log = await result_of(yard, nursery, agent)
    assert (status, result) == (1, {"outcome": "failed", "message": "ValueError: no such thing"})
    assert "Traceback" in log


async def test_errors_of_its_nursery_are_one_failure(yard: Any, nursery: trio.Nursery) -> None:
    async def agent(context: AgentContext) -> None:
        async with trio.open_nursery() as inner:
            inner.start_soon(trio.sleep_forever)
            raise KeyError("x")

    status, result, log = await result_of(yard, nursery, agent)
    assert status == 1
    assert result["outcome"] == "failed"
    assert "KeyError" in log


async def test_what_json_cannot_hold_is_a_failure(yard: Any, nursery: trio.Nursery) -> None:
    async def agent(context: AgentContext) -> object:
        return object()

    status, result, _ = await result_of(yard, nursery, agent)
    assert status == 1
    assert "JSON" in result["message"]


async def test_exits_are_statuses(yard: Any, nursery: trio.Nursery) -> None:
    async def deferring(context: AgentContext) -> None:
        sys.exit(75)

    async def saying(context: AgentContext) -> None:
        sys.exit("words")

    assert (await result_of(yard, nursery, deferring))[:2] == (75, None)
    assert (await result_of(yard, nursery, saying))[0] == 1


async def test_stopped_with_the_nursery_it_is_lost(yard: Any) -> None:
    async def agent(context: AgentContext) -> None:
        await trio.sleep_forever()

    launch = yard.launch("agent")
    async with trio.open_nursery() as own:
        runtime = FunctionRuntime({"agent": agent}, own)
        handle = await runtime.launch(launch)
        own.cancel_scope.cancel()
    assert await handle.wait() == Ending(exit_status=None)
    assert await runtime.recover(launch.folder) == Ended(Ending(exit_status=None))
    assert await CommandRuntime(cgroups=False).recover(launch.folder) == Ended(Ending(exit_status=None))


async def test_one_that_does_not_heed_its_cancellation(
    yard: Any, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = trio.Event()

    async def agent(context: AgentContext) -> None:
        with trio.CancelScope(shield=True):
            await release.wait()

    handle = await FunctionRuntime({"agent": agent}, nursery).launch(yard.launch("agent"))
    monkeypatch.setattr(function, "PATIENCE_SECONDS", 0.02)
    with pytest.raises(TreeSurvives, match="agent"):
        await handle.stop(10)
    release.set()
    await handle.stop(5000)


async def test_a_closed_nursery_cannot_start_it(yard: Any) -> None:
    async def agent(context: AgentContext) -> None:
        pass

    async with trio.open_nursery() as own:
        pass
    from interlock.ports.runtime import CannotStart, NeverStarted

    runtime = FunctionRuntime({"agent": agent}, own)
    launch = yard.launch("agent")
    with pytest.raises(CannotStart):
        await runtime.launch(launch)
    assert await runtime.recover(launch.folder) == NeverStarted()


async def test_a_failure_that_cannot_be_written_down_is_still_one(yard: Any, nursery: trio.Nursery) -> None:
    async def agent(context: AgentContext) -> None:
        files = AttemptFiles(context.folder)
        files.log.symlink_to("/dev/full")
        raise LookupError("nothing there")

    launch = yard.launch("agent")
    handle = await FunctionRuntime({"agent": agent}, nursery).launch(launch)
    assert await handle.wait() == Ending(exit_status=1)
    await handle.stop(0)
    assert not AttemptFiles(launch.folder).result.exists()


async def test_its_activity_is_its_output(yard: Any, nursery: trio.Nursery) -> None:
    release = trio.Event()

    async def agent(context: AgentContext) -> None:
        await release.wait()
        context.log("four")

    launch = yard.launch("agent")
    handle = await FunctionRuntime({"agent": agent}, nursery).launch(launch)
    assert handle.activity() == Activity(output_bytes=0, cpu_ticks=0), "there is no log yet"
    release.set()
    await handle.wait()
    assert handle.activity() == Activity(output_bytes=4, cpu_ticks=0)


async def test_it_dies_with_its_interpreter(yard: Any, nursery: trio.Nursery, until: Callable[..., Any]) -> None:
    launch = yard.launch("agent")
    code = """
        import os, sys, trio
        from pathlib import Path
        from interlock.domain.settings import Agent
        from interlock.ports.runtime import Launch
        from interlock.runtimes import FunctionRuntime

        async def agent(context):
            print("working", flush=True)
            await trio.sleep_forever()

        async def main():
            async with trio.open_nursery() as nursery:
                await FunctionRuntime({"agent": agent}, nursery).launch(Launch(
                    run=1, run_id="r", fence=1, agent=Agent(name="agent"), folder=Path(sys.argv[1]),
                    cwd=Path("."), env={}))

        trio.run(main)
    """
    runtime = FunctionRuntime({}, nursery)
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), launch.folder], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert await trio.to_thread.run_sync(child.stdout.readline) == "working\n"
        for other in (runtime, CommandRuntime(cgroups=False)):
            recovered = await other.recover(launch.folder)
            assert isinstance(recovered, Alive)
            assert recovered.handle.identity is None
        os.kill(child.pid, signal.SIGKILL)
    with trio.fail_after(20):
        assert await recovered.handle.wait() == Ending(exit_status=None)
        await recovered.handle.stop(0)
    assert await runtime.recover(launch.folder) == Ended(Ending(exit_status=None))
