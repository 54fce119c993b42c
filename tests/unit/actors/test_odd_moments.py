"""A dispatcher in moments that seldom come: answers that were lost, claims that are over, runs that nobody can tell of.

``autojump_clock`` stands in every signature: pytest-trio looks for a test's clock nowhere else.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio

from interlock.actors import Ending
from interlock.actors.dispatcher import VIGIL_SECONDS
from interlock.actors.run import CONFIRM_AGAIN_SECONDS
from interlock.domain.errors import Unavailable
from interlock.domain.states import DispatcherState
from interlock.domain.task import Task
from interlock.ports import runtime as port
from interlock.service import dispatching, submitting


async def test_a_claim_whose_commit_was_not_heard_of_is_taken_up(
    autojump_clock: Any, depot: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with depot.up() as dispatcher:

        def behind_its_back(tx: Any) -> Any:
            ctx = depot.service.context()
            (made,) = submitting.submit(tx, ctx, [submitting.Item(task=Task(title="one"))])
            done = dispatching.dispatch(tx, ctx, owner=dispatcher.id, scope=None, bound=10)
            assert [run.number for run, _ in done.claimed] == [made.run.number]
            return made.run

        run = depot.store.write_now(behind_its_back)
        await depot.until(lambda: depot.agent_of(run), 10 * VIGIL_SECONDS)
        await depot.ended_agent(run)
        await depot.until_state(run, "completed")
    assert "nobody looks after it; taking it up" in caplog.text
    assert depot.get(run).failures == 0


async def test_one_that_is_to_end_takes_nothing_up(autojump_clock: Any, depot: Any) -> None:
    (run,) = await depot.submit("one")
    async with depot.up(end=Ending.DETACH):
        await depot.until_state(run, "running")
    late = depot.dispatcher()
    late.end(Ending.DETACH)
    async with trio.open_nursery() as nursery:
        await nursery.start(late.run)
        await late.ended.wait()
    assert depot.events(run).count("adopt") == 0
    assert late.active_runs() == []
    async with depot.up():
        await depot.ended_agent(run)
        await depot.until_state(run, "completed")


async def test_a_store_that_fails_at_the_very_end_keeps_nobody(
    autojump_clock: Any, depot: Any, caplog: pytest.LogCaptureFixture
) -> None:
    write = depot.service.write
    async with depot.up(end=Ending.DRAIN) as dispatcher:

        async def fail_at_last(*words: Any, **more: Any) -> Any:
            if dispatcher.state is DispatcherState.STOPPED:
                raise Unavailable("the disk is full")
            return await write(*words, **more)

        depot.service.write = fail_at_last
    depot.service.write = write
    assert "could not sign off: the disk is full" in caplog.text
    async with depot.up():
        assert len(depot.store.read_now(lambda tx: tx.instances())) == 1, "the next one tidies up"


async def test_a_run_of_which_nobody_can_tell_keeps_its_slot(
    autojump_clock: Any, depot: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (run,) = await depot.submit("one")
    async with depot.up(end=Ending.DETACH):
        await depot.until_state(run, "running")
    recover = depot.runtime.recover
    asked = []

    async def riddle(*words: Any, **more: Any) -> Any:
        asked.append(trio.current_time())
        return port.Unknown("another pid namespace") if len(asked) < 3 else await recover(*words, **more)

    depot.runtime.recover = riddle
    async with depot.up():
        await depot.until(lambda: len(asked) == 2, 3 * CONFIRM_AGAIN_SECONDS)
        assert depot.get(run).state == "running"
        await depot.ended_agent(run)
        await depot.until_state(run, "completed", seconds=3 * CONFIRM_AGAIN_SECONDS)
    assert asked[2] - asked[1] >= CONFIRM_AGAIN_SECONDS
    assert depot.events(run).count("note") >= 1
    assert "its slot stays taken" in caplog.text


async def test_what_a_person_gave_up_while_it_started_changes_nothing(
    autojump_clock: Any, depot: Any, caplog: pytest.LogCaptureFixture
) -> None:
    launch = depot.runtime.launch

    async def forgotten_meanwhile(what: Any) -> Any:
        handle = await launch(what)
        if what.fence == 1:
            await depot.service.forget(what.run)
            handle.end(0)
        return handle

    depot.runtime.launch = forgotten_meanwhile
    async with depot.up():
        (run,) = await depot.submit("one")
        await depot.until(lambda: (agent := depot.agent_of(run)) is not None and agent.launch.fence == 2)
        await depot.ended_agent(run)
        run = await depot.until_state(run, "completed")
    assert [str(attempt.state) for attempt in depot.attempts(run)] == ["lost", "succeeded"]
    assert "its end changes nothing" in caplog.text


async def test_processes_that_do_not_end_are_told_of_once(autojump_clock: Any, depot: Any) -> None:
    async with depot.up():
        (run,) = await depot.submit("one")
        await depot.until_state(run, "running")
        agent = await depot.until(lambda: depot.agent_of(run))
        agent.survives = 3
        await depot.service.cancel(run)
        run = await depot.until_state(run, "cancelled", seconds=10 * CONFIRM_AGAIN_SECONDS)
    assert len(agent.stops) == 4
    assert depot.events(run).count("note") == 1


async def test_a_round_that_fails_behind_a_command_is_left_to_the_next(
    autojump_clock: Any, depot: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with depot.up() as dispatcher:
        await depot.submit("whose agent is looked at first")
        await depot.until(lambda: depot.runtime.live)
        admission = dispatcher._admission
        behind, whole = admission._behind, admission._round

        def fail(tx: Any, ctx: Any) -> Any:
            whole(tx, ctx)
            raise LookupError("a bug")

        def failing(tx: Any, ctx: Any) -> Any:
            admission._round = fail
            try:
                return behind(tx, ctx)
            finally:
                admission._round = whole

        admission._behind = failing
        (run,) = await depot.submit("one")
        admission._behind = behind
        await depot.ended_agent(run)
        await depot.until_state(run, "completed")
    assert "a round of dispatching was undone: a bug" in caplog.text
    assert depot.events(run).count("dispatch") == 1


async def test_what_was_wrong_with_an_agent_that_is_gone_is_forgotten(autojump_clock: Any, depot: Any) -> None:
    await depot.service.agent_cannot_start("gone", "no such program")
    assert "gone" in depot.healths()
    async with depot.up():
        await depot.until(lambda: "gone" not in depot.healths(), 3600)


async def test_a_stop_of_an_attempt_that_is_over_is_not_handed_on(autojump_clock: Any, depot: Any) -> None:
    """The actor is of another attempt than the stop: its own end is under way."""
    async with depot.up() as dispatcher:
        (run,) = await depot.submit("one")
        await depot.until_state(run, "running")
        (actor,) = dispatcher.tracker.actors.values()
        whole = depot.service.stopping
        later = partial(_as_of_the_next_attempt, whole)
        depot.service.stopping = later
        await depot.service.cancel(run)
        await trio.sleep(10 * VIGIL_SECONDS)
        assert actor.stop_intent is None
        depot.service.stopping = whole
        await depot.until_state(run, "cancelled")


def _as_of_the_next_attempt(whole: Any, owner: str) -> Any:
    import msgspec

    return [msgspec.structs.replace(run, fence=run.fence + 1) for run in whole(owner)]
