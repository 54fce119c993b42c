"""Leaving at once what does not end, and what the runtime is told when it is taken up again."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from interlock.actors import Ending
from interlock.domain.states import RunState


@pytest.mark.parametrize("steps", [*range(12), 1000])
async def test_a_kill_that_does_not_end_can_be_left(autojump_clock: Any, depot: Any, steps: int) -> None:
    (run,) = await depot.submit("one")
    async with depot.up() as dispatcher:
        await depot.until_state(run, "running")
        agent = await depot.until(lambda: depot.agent_of(run))
        agent.survives = 1_000_000
        dispatcher.end(Ending.KILL)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        dispatcher.end(Ending.DRAIN)
        dispatcher.end(Ending.DETACH)
        dispatcher.end(Ending.KILL)
        with trio.fail_after(5):
            await dispatcher.ended.wait()
    assert depot.get(run).state is RunState.RUNNING
    asked = depot.get(run).stop is not None
    assert asked or steps < 1000
    agent.survives = 0
    async with depot.up():
        if asked:
            await depot.until(lambda: agent.over.is_set() and depot.get(run).fence == 2)
            assert depot.attempts(run)[0].state == "interrupted"
        else:
            agent.end(0)
            await depot.until_state(run, "completed")
    assert depot.runtime.live == []


async def test_recovery_hears_what_the_database_knows(autojump_clock: Any, depot: Any) -> None:
    (run,) = await depot.submit("one")
    async with depot.up(end=Ending.DETACH):
        await depot.until_state(run, "running")
        agent = await depot.until(lambda: depot.agent_of(run))
    async with depot.up():
        await depot.until(lambda: depot.runtime.recoveries)
        agent.end(0)
        await depot.until_state(run, "completed")
    assert list(depot.runtime.known.values()) == [(agent.identity, True)]
