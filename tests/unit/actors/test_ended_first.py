"""Work that was done counts as done: a stop that is asked for after the agent's own end changes nothing about it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.service.operating import cancel


def cancel_now(depot: Any, run: Any) -> None:
    stopped = depot.store.write_now(lambda tx: cancel(tx, depot.service.context(), tx.run(run.number)))
    assert stopped.stop is not None


@pytest.mark.parametrize(("status", "state"), [(0, "completed"), (3, "cancelled"), (75, "cancelled")])
async def test_a_cancel_while_leftovers_have_their_grace(
    autojump_clock: Any, depot: Any, monkeypatch: pytest.MonkeyPatch, status: int, state: str
) -> None:
    (run,) = await depot.submit("one")
    async with depot.up():
        agent = await depot.until(lambda: depot.agent_of(run))
        await depot.until_state(run, "running")
        in_grace = trio.Event()
        over = trio.Event()

        async def slow_stop(_: int) -> None:
            in_grace.set()
            await over.wait()

        monkeypatch.setattr(agent, "stop", slow_stop)
        agent.end(status)
        await in_grace.wait()
        cancel_now(depot, run)
        over.set()
        await depot.until(lambda: depot.get(run).state != "running")
    assert depot.get(run).state == state


async def test_a_cancel_before_the_end_wins_also_over_a_clean_exit(autojump_clock: Any, depot: Any) -> None:
    (run,) = await depot.submit("one")
    async with depot.up():
        agent = await depot.until(lambda: depot.agent_of(run))
        await depot.until_state(run, "running")

        async def ends_well(_: int) -> None:
            agent.end(0)

        agent.stop = ends_well
        cancel_now(depot, run)
        await depot.until(lambda: depot.get(run).state != "running")
    assert depot.get(run).state == "cancelled"


@pytest.mark.parametrize(
    ("shift", "state"), [(lambda at: at - 60_000, "completed"), (lambda at: at + 60_000, "cancelled")]
)
async def test_after_a_restart_the_exit_file_says_which_came_first(
    autojump_clock: Any, depot: Any, shift: Callable[[int], int], state: str
) -> None:
    from interlock.actors import Ending

    (run,) = await depot.submit("one")
    async with depot.up(end=Ending.DETACH):
        agent = await depot.until(lambda: depot.agent_of(run))
        await depot.until_state(run, "running")
    agent.end(0)
    cancel_now(depot, run)
    files = AttemptFiles(agent.launch.folder)
    files.exit.write_text("0\n")
    at = shift(depot.get(run).stop.at_ms) / 1000
    os.utime(files.exit, (at, at))
    async with depot.up():
        await depot.until(lambda: depot.get(run).state != "running")
    assert depot.get(run).state == state
