"""A dispatcher's whole life under a clock that jumps: adoption, endings, outages, agents that cannot start.

``autojump_clock`` stands in every signature: pytest-trio looks for a test's clock nowhere else.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

import interlock.actors.run as run_actor
from interlock.actors import Dispatcher, Ending
from interlock.actors.dispatcher import VIGIL_SECONDS
from interlock.domain.errors import Conflict, Unavailable
from interlock.domain.settings import Leases, Limits, OnTimeout, Role
from interlock.domain.states import RunState
from interlock.domain.task import Task
from interlock.service.operating import cancel


async def test_a_task_runs_from_submit_to_completed(autojump_clock: Any, depot: Any) -> None:
    async with depot.up():
        (run,) = await depot.submit("one")
        agent = await depot.until(lambda: depot.agent_of(run))
        assert agent.launch.env["INTERLOCK_RUN_ID"] == run.id
        assert agent.launch.env["INTERLOCK_FENCE"] == "1"
        assert "one" in (agent.launch.folder / "prompt.md").read_text()
        await depot.until_state(run, "running")
        agent.end(0)
        run = await depot.until_state(run, "completed")
    assert depot.events(run) == ["submit", "dispatch", "claim", "start", "complete"]
    assert depot.store.read_now(lambda tx: tx.instances()) == []


async def test_never_more_than_the_limit_and_a_freed_slot_is_taken_at_once(autojump_clock: Any, depot: Any) -> None:
    async with depot.up():
        runs = await depot.submit(*"abcdef")
        await depot.until(lambda: len(depot.runtime.live) == 4)
        await trio.sleep(60)
        assert len(depot.runtime.live) == 4
        before = trio.current_time()
        await depot.ended_agent(runs[0])
        await depot.until(lambda: depot.agent_of(runs[4]))
        assert trio.current_time() - before < 0.1
        for run in runs[1:]:
            await depot.ended_agent(run)
            await depot.until_state(run, "completed")


async def test_what_may_start_is_claimed_by_the_commit_that_accepts_it(autojump_clock: Any, depot: Any) -> None:
    async with depot.up() as dispatcher:
        await depot.submit("whose agent is looked at first")
        await depot.until(lambda: depot.runtime.live)
        (run,) = await depot.submit("one")
        assert depot.get(run).state is RunState.CLAIMED
        await depot.ended_agent(run)
        await depot.until_state(run, "completed")
        dispatcher.end(Ending.KILL)
        await dispatcher.ended.wait()
        (late,) = await depot.submit("late")
        assert depot.get(late).state is RunState.QUEUED


async def test_a_dispatcher_that_was_cancelled_claims_nothing(autojump_clock: Any, depot: Any) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(depot.dispatcher().run)
        nursery.cancel_scope.cancel()
    (run,) = await depot.submit("one")
    assert depot.get(run).state is RunState.QUEUED
    async with depot.up():
        await depot.ended_agent(run)
        await depot.until_state(run, "completed")


async def test_a_failure_is_tried_again_after_its_backoff_without_a_poll(autojump_clock: Any, depot: Any) -> None:
    async with depot.up():
        (run,) = await depot.submit("one")
        for _ in range(3):
            await depot.ended_agent(run, 3)
            await depot.until(lambda: depot.get(run).state in ("queued", "failed"))
        run = await depot.until_state(run, "failed")
    assert run.failures == 3
    assert run.reason == "retries_exhausted"
    assert [attempt.state for attempt in depot.attempts(run)] == ["failed"] * 3


async def test_an_agent_that_ends_before_its_start_is_recorded_still_completes(autojump_clock: Any, depot: Any) -> None:
    launch = depot.runtime.launch

    async def launch_and_end(what: Any) -> Any:
        handle = await launch(what)
        handle.end(0)
        return handle

    depot.runtime.launch = launch_and_end
    async with depot.up():
        (run,) = await depot.submit("one")
        await depot.until_state(run, "completed")
    assert depot.events(run) == ["submit", "dispatch", "claim", "start", "complete"]
    assert depot.attempts(run)[0].started_ms is not None


async def test_a_start_is_recorded_when_the_agent_has_not_ended_in_a_moment(autojump_clock: Any, depot: Any) -> None:
    async with depot.up():
        (run,) = await depot.submit("one")
        await depot.until(lambda: depot.agent_of(run))
        assert depot.get(run).state is RunState.CLAIMED
        await trio.sleep(run_actor.QUICK_SECONDS)
        await depot.until_state(run, "running", seconds=0.1)
        assert depot.attempts(run)[0].process == depot.agent_of(run).identity


async def test_a_stop_that_comes_in_the_first_moment_is_carried_out(autojump_clock: Any, depot: Any) -> None:
    async with depot.up():
        (run,) = await depot.submit("one")
        await depot.until(lambda: depot.agent_of(run))
        await depot.service.cancel(run)
        await depot.until_state(run, "cancelled")
        assert depot.runtime.live == []


async def test_detach_leaves_agents_and_the_next_dispatcher_adopts(autojump_clock: Any, depot: Any) -> None:
    """The next one may have the very id of the last: a process that opens twice, a container whose daemon is pid 1."""
    (run,) = await depot.submit("one")
    async with depot.up(end=Ending.DETACH) as first:
        await depot.until_state(run, "running")
        old = first.id
    assert depot.get(run).state is RunState.RUNNING
    async with depot.up() as second:
        assert second.id == old
        assert [one.number for one in second.active_runs()] == [run.number]
        await depot.ended_agent(run)
        await depot.until_state(run, "completed")
    assert depot.runtime.launches == 1
    assert depot.events(run).count("adopt") == 1
    assert [attempt.fence for attempt in depot.attempts(run)] == [1]


async def test_what_ended_while_no_dispatcher_lived_is_recorded_once(autojump_clock: Any, depot: Any) -> None:
    (run,) = await depot.submit("one")
    async with depot.up(end=Ending.DETACH):
        await depot.until_state(run, "running")
    await depot.ended_agent(run, 0)
    async with depot.up():
        await depot.until_state(run, "completed")
    assert depot.runtime.launches == 1


async def test_downtime_counts_for_no_timeout(autojump_clock: Any, make_depot: Any) -> None:
    depot = make_depot(timeout_ms=60_000)
    (run,) = await depot.submit("one")
    async with depot.up(end=Ending.DETACH):
        await depot.until_state(run, "running")
        await trio.sleep(30)
    await trio.sleep(3600)
    async with depot.up():
        await trio.sleep(20)
        assert depot.get(run).state is RunState.RUNNING
        run = await depot.until_state(run, "timed_out", seconds=30)
    assert run.reason == "timeout"


async def test_on_timeout_retry_counts_a_failure(autojump_clock: Any, make_depot: Any) -> None:
    depot = make_depot(timeout_ms=60_000, on_timeout=OnTimeout.RETRY)
    async with depot.up():
        (run,) = await depot.submit("one")
        await depot.until_state(run, "running")
        await depot.until(lambda: depot.get(run).failures == 1, 120)
        assert depot.attempts(run)[0].state == "timed_out"
        await depot.ended_agent(run)
        await depot.until_state(run, "completed")


async def test_a_stall_is_seen_and_output_prevents_it(autojump_clock: Any, make_depot: Any) -> None:
    depot = make_depot(stall_ms=10_000)
    async with depot.up():
        quiet, busy = await depot.submit("quiet", "busy")
        talker = await depot.until(lambda: depot.agent_of(busy))
        for _ in range(30):
            talker.output += 1
            await trio.sleep(1)
        assert depot.get(busy).failures == 0
        assert depot.attempts(quiet)[0].state == "stalled"
        assert depot.get(quiet).failures >= 1


async def test_leases_of_long_runs_are_renewed(autojump_clock: Any, make_depot: Any) -> None:
    depot = make_depot(leases=Leases(local_ms=30_000))
    async with depot.up():
        (run,) = await depot.submit("one")
        await depot.until_state(run, "running")
        for _ in range(10):
            await trio.sleep(20)
            lease = depot.get(run).lease_expires_ms
            assert lease is not None
            assert lease > depot.clock.now_ms()


async def test_a_second_dispatcher_is_refused_and_leaves_the_first_alone(autojump_clock: Any, depot: Any) -> None:
    async with depot.up() as first:
        with pytest.raises(Conflict, match="up for this data folder already"):
            await depot.dispatcher().run()
        assert [one.id for one in depot.store.read_now(lambda tx: tx.instances())] == [first.id]


async def test_a_peer_takes_over_while_commits_never_cease(autojump_clock: Any, depot: Any) -> None:
    """Takeover must not wait for a quiet moment: under load there is none."""
    runs = await depot.submit("long", "other long")
    async with trio.open_nursery() as nursery:
        lost = depot.dispatcher(alone=False)
        dying = trio.CancelScope()

        async def live() -> None:
            with dying:
                await lost.run()

        nursery.start_soon(live)
        await depot.until(lambda: all(depot.get(run).state == "running" for run in runs))
        async with depot.up(alone=False) as peer:

            async def chatter() -> None:
                while True:
                    await depot.service.set_priority(runs[0], 1)
                    await trio.sleep(0.5)

            nursery.start_soon(chatter)
            dying.cancel()
            await depot.until(lambda: len(peer.active_runs()) == 2, 3 * VIGIL_SECONDS)
            assert {depot.get(run).owner for run in runs} == {peer.id}
            for run in runs:
                await depot.ended_agent(run)
                await depot.until_state(run, "completed")
            nursery.cancel_scope.cancel()


async def test_drain_waits_for_agents_and_starts_nothing_new(autojump_clock: Any, depot: Any) -> None:
    runs = await depot.submit(*"abcdef")
    async with depot.up(end=Ending.DRAIN) as dispatcher:
        await depot.until(lambda: len(depot.runtime.live) == 4)
        dispatcher.end(Ending.DRAIN)
        await trio.sleep(100)
        assert not dispatcher.ended.is_set()
        for run in runs[:4]:
            await depot.ended_agent(run)
    assert [depot.get(run).state for run in runs] == ["completed"] * 4 + ["queued"] * 2
    assert depot.runtime.launches == 4


async def test_a_cancel_during_a_drain_is_carried_out(autojump_clock: Any, depot: Any) -> None:
    (run,) = await depot.submit("one")
    async with depot.up(end=Ending.DRAIN) as dispatcher:
        await depot.until_state(run, "running")
        dispatcher.end(Ending.DRAIN)
        await trio.sleep(1)
        await depot.service.cancel(run)
    assert depot.get(run).state is RunState.CANCELLED


async def test_kill_stops_and_requeues_at_no_cost(autojump_clock: Any, depot: Any) -> None:
    runs = await depot.submit(*"abcdef")
    async with depot.up():
        await depot.until(lambda: len(depot.runtime.live) == 4)
    for run in runs:
        now = depot.get(run)
        assert (now.state, now.failures, now.losts) == ("queued", 0, 0)
    assert depot.runtime.live == []
    assert {attempt.state for run in runs[:4] for attempt in depot.attempts(run)} == {"interrupted"}


@pytest.mark.parametrize("harder", [Ending.KILL, Ending.DETACH])
@pytest.mark.parametrize("steps", range(12))
async def test_a_drain_can_be_made_harder_at_any_moment(
    autojump_clock: Any, depot: Any, harder: Ending, steps: int
) -> None:
    (run,) = await depot.submit("one")
    async with depot.up() as dispatcher:
        await depot.until_state(run, "running")
        dispatcher.end(Ending.DRAIN)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        dispatcher.end(harder)
        with trio.fail_after(30):
            await dispatcher.ended.wait()
    assert depot.get(run).state == ("queued" if harder is Ending.KILL else "running")
    for agent in depot.runtime.live:
        agent.end(0)


@pytest.mark.parametrize("steps", range(25))
@pytest.mark.parametrize("how", [Ending.KILL, Ending.DRAIN])
async def test_nothing_is_left_unwatched_by_an_end_in_the_middle_of_dispatching(
    autojump_clock: Any, depot: Any, how: Ending, steps: int
) -> None:
    async with depot.up() as dispatcher:
        await trio.testing.wait_all_tasks_blocked()
        runs = await depot.submit(*"abcd")
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        dispatcher.end(how)
        with trio.move_on_after(30):
            await dispatcher.ended.wait()
        if how is Ending.KILL:
            assert dispatcher.ended.is_set()
            assert depot.runtime.live == []
        elif not dispatcher.ended.is_set():
            await depot.service.cancel(runs[0])
            await depot.until_state(runs[0], "cancelled", seconds=30)
            dispatcher.end(Ending.KILL)


async def test_a_command_left_by_another_process_is_obeyed(autojump_clock: Any, depot: Any) -> None:
    async with depot.up() as dispatcher:
        await depot.service.write(lambda tx, _: tx.set_instance_wanted(dispatcher.id, "drain"))
        with trio.fail_after(1):
            await dispatcher.ended.wait()


async def test_a_cancel_stops_the_agent_first(autojump_clock: Any, depot: Any) -> None:
    async with depot.up():
        (run,) = await depot.submit("one")
        agent = await depot.until(lambda: depot.agent_of(run))
        agent.survives = 1
        await depot.service.cancel(run)
        await depot.until(lambda: len(agent.stops) == 1)
        assert depot.get(run).state in ("claimed", "running")
        await depot.until_state(run, "cancelled")
        assert len(agent.stops) == 2
    assert "its processes do not end" in str(depot.store.read_now(lambda tx: tx.events_of(run.number)))


@pytest.mark.parametrize(("status", "ended"), [(3, "failed"), (75, "deferred"), (None, "lost"), (0, "succeeded")])
async def test_a_cancel_that_was_acknowledged_is_never_lost_to_a_retry(
    autojump_clock: Any, depot: Any, monkeypatch: pytest.MonkeyPatch, status: int | None, ended: str
) -> None:
    """The agent has ended, the actor has decided what that means, and then, before it is recorded, the operator cancels."""
    (run,) = await depot.submit("one")

    def cancel_now(point: str) -> None:
        if point == "before_finish":
            assert depot.store.write_now(lambda tx: cancel(tx, depot.service.context(), tx.run(run.number))).stop

    async with depot.up():
        agent = await depot.until(lambda: depot.agent_of(run))
        await depot.until_state(run, "running")
        monkeypatch.setattr(run_actor, "crashpoint", cancel_now)
        agent.end(status)
        await depot.until(lambda: depot.get(run).state != "running")
    assert depot.get(run).state in (("cancelled", "completed") if status == 0 else ("cancelled",))
    assert len(depot.attempts(run)) == 1


async def test_an_agent_that_cannot_start_costs_nothing_and_is_tried_again(autojump_clock: Any, depot: Any) -> None:
    """As many runs as there are slots find it missing at once: that is one try, not four."""
    depot.runtime.missing["worker"] = "worker is not on the PATH"
    runs = await depot.submit(*"abcd")
    async with depot.up():
        await depot.until(lambda: "worker" in depot.healths())
        await trio.sleep(1)
        health = depot.healths()["worker"]
        assert health.reason == "worker is not on the PATH"
        assert health.tries == 1
        assert depot.runtime.launches == 0
        for run in runs:
            now = depot.get(run)
            assert (now.state, now.failures, now.losts) == ("queued", 0, 0)
            assert depot.attempts(run) == [], "a command that cannot be started is no attempt"
        depot.runtime.missing.clear()
        await depot.until(lambda: len(depot.runtime.live) == 4, 15)
        await depot.until(lambda: depot.healths() == {}, 1)


async def test_the_retries_of_a_missing_agent_grow_apart(autojump_clock: Any, depot: Any) -> None:
    depot.runtime.missing["worker"] = "gone"
    await depot.submit("a")
    async with depot.up():
        await trio.sleep(300)
        assert 3 <= depot.healths()["worker"].tries <= 8
        assert depot.runtime.launches == 0


async def test_an_agent_that_fails_to_launch_though_nothing_is_seen_to_be_wrong(
    autojump_clock: Any, depot: Any
) -> None:
    """E2BIG, EMFILE, a folder that cannot be entered: after the first failure one run at a time tries, less and less often."""
    depot.runtime.refusing["worker"] = "argument list too long"
    runs = await depot.submit(*"abcdef")
    async with depot.up():
        await trio.sleep(300)
        assert 3 <= depot.healths()["worker"].tries <= 8
        assert depot.runtime.launches <= 4 + 8
        depot.runtime.refusing.clear()
        await depot.until(lambda: len(depot.runtime.live) == 4, 600)
        await depot.until(lambda: depot.healths() == {}, 1)
        assert all(depot.get(run).failures == 0 for run in runs)
        await depot.until(lambda: [depot.get(run).misfires for run in runs if depot.agent_of(run)] == [0] * 4, 1)


async def test_what_went_missing_is_noticed_before_the_next_claim(autojump_clock: Any, depot: Any) -> None:
    async with depot.up():
        (first,) = await depot.submit("a")
        await depot.until_state(first, "running")
        await trio.sleep(5)
        depot.runtime.missing["worker"] = "gone"
        (second,) = await depot.submit("b")
        await depot.until(lambda: "worker" in depot.healths(), 1)
        assert depot.attempts(second) == []


async def test_nobody_waits_for_a_check_of_an_agent_of_lower_priority(autojump_clock: Any, make_depot: Any) -> None:
    depot = make_depot(limits=Limits(total=1))
    depot.runtime.missing["worker"] = "gone"
    async with depot.up():
        await depot.service.submit_all(
            [Task(title="low", agent="other"), Task(title="high", priority=1), Task(title="middle", agent="other")]
        )
        await depot.until(lambda: depot.runtime.live, 1)
        assert "worker" in depot.healths()
        assert depot.runtime.live[0].launch.agent.name == "other"


async def test_an_attempt_that_cannot_be_prepared_backs_off(autojump_clock: Any, make_depot: Any) -> None:
    depot = make_depot(roles={"r": Role(name="r", prompt="missing.md")})
    async with depot.up():
        (run,) = await depot.submit("a", role="r")
        await trio.sleep(600)
        tries = len(depot.attempts(run))
        assert 4 <= tries <= 10
        now = depot.get(run)
        assert (now.state, now.misfires, now.failures) == ("queued", tries, 0)
        assert "missing.md" in (now.not_before_why or "")
        (depot.data / "missing.md").write_text("be brief")
        await depot.until(lambda: depot.agent_of(run), 301)
        await depot.until_state(run, "running")
        assert depot.get(run).misfires == 0


async def test_one_bad_row_is_in_nobodys_way(autojump_clock: Any, depot: Any, caplog: pytest.LogCaptureFixture) -> None:
    bad, good = await depot.submit("bad", "good")
    depot.store.write_now(
        lambda tx: tx.connection.execute(
            "UPDATE runs SET task = json_set(task, '$.priority', 'high') WHERE number = ?", (bad.number,)
        )
    )
    async with depot.up() as dispatcher:
        await depot.until_state(good, "running")
        await trio.sleep(600)
        assert not dispatcher.ended.is_set()
        assert (depot.get(bad).state, depot.get(bad).held) == ("queued", True)
        await depot.ended_agent(good)
        await depot.until_state(good, "completed")
    assert len([record for record in caplog.records if "put on hold" in record.message]) == 1
    assert depot.events(bad) == ["submit", "hold"]


async def test_where_memory_is_looked_at_only_a_few_start_at_once(autojump_clock: Any, make_depot: Any) -> None:
    depot = make_depot(min_free_memory_bytes=1000, limits=Limits(total=32))
    depot.free_memory = 1000

    def launched(launch: Any) -> None:
        depot.free_memory = 999

    depot.runtime.on_launch = launched
    async with depot.up():
        await depot.submit(*"abcdefghijkl")
        await trio.sleep(30)
        assert 1 <= depot.runtime.launches <= 8


async def test_another_agent_goes_on_beside_one_that_cannot_start(autojump_clock: Any, depot: Any) -> None:
    depot.runtime.missing["worker"] = "gone"
    async with depot.up():
        await depot.submit("a", "b")
        (run,) = await depot.submit("c", agent="other")
        await depot.ended_agent(run)
        await depot.until_state(run, "completed", seconds=5)


async def test_a_runtime_that_fails_oddly_is_asked_what_became_of_the_agent(autojump_clock: Any, depot: Any) -> None:
    """An OSError from a launch proves nothing: the process may be there. Only recovery may say so."""
    launch = depot.runtime.launch

    async def launch_and_fail(what: Any) -> Any:
        await launch(what)
        depot.runtime.launch = launch
        raise OSError(24, "Too many open files", "somewhere")

    depot.runtime.launch = launch_and_fail
    async with depot.up():
        (run,) = await depot.submit("a")
        agent = await depot.until(lambda: depot.agent_of(run))
        await trio.sleep(30)
        assert depot.get(run).state is RunState.RUNNING
        agent.end(0)
        await depot.until_state(run, "completed")
    assert len(depot.attempts(run)) == 1


async def test_an_actor_that_crashes_harms_nobody_else(autojump_clock: Any, depot: Any) -> None:
    def crash(launch: Any) -> None:
        if launch.fence == 1 and launch.run == 1:
            raise RuntimeError("a bug")

    depot.runtime.on_launch = crash
    async with depot.up():
        runs = await depot.submit("a", "b")
        for run in runs:
            await depot.ended_agent(run)
            await depot.until_state(run, "completed")
    assert depot.get(runs[0]).failures == 0


async def test_too_little_memory_holds_dispatching_back(autojump_clock: Any, make_depot: Any) -> None:
    depot = make_depot(min_free_memory_bytes=1000)
    depot.free_memory = 999
    async with depot.up() as dispatcher:
        (run,) = await depot.submit("a")
        await trio.sleep(60)
        assert depot.runtime.launches == 0
        (instance,) = depot.store.read_now(lambda tx: tx.instances())
        assert "under the floor" in (instance.note or "")
        depot.free_memory = 1000
        await depot.until(lambda: depot.agent_of(run), 2)
        assert dispatcher.tracker.hold_reason() is None


async def test_an_outage_of_the_store_pauses_and_nothing_acknowledged_is_lost(
    autojump_clock: Any, depot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with depot.up() as dispatcher:
        runs = await depot.submit(*"abcdef")
        agents = [await depot.until(lambda run=run: depot.agent_of(run)) for run in runs[:4]]
        await depot.until(lambda: depot.get(runs[3]).state == "running")
        write_now = depot.store.write_now

        def refuse(work: Any) -> Any:
            raise Unavailable("the disk is full")

        monkeypatch.setattr(depot.store, "write_now", refuse)
        for agent in agents:
            agent.end(0)
        await trio.sleep(600)
        assert not dispatcher.ended.is_set()
        assert depot.runtime.launches == 4
        monkeypatch.setattr(depot.store, "write_now", write_now)
        for run in runs[:4]:
            await depot.until_state(run, "completed", seconds=30)
        for run in runs[4:]:
            await depot.ended_agent(run)
            await depot.until_state(run, "completed")
    assert depot.runtime.launches == 6


async def test_an_outage_cannot_be_read_from_either(
    autojump_clock: Any, depot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with depot.up() as dispatcher:
        runs = await depot.submit(*"ab")
        await depot.until(lambda: len(depot.runtime.live) == 2)

        def refuse(work: Any) -> Any:
            raise Unavailable("the folder is gone")

        with monkeypatch.context() as broken:
            broken.setattr(depot.store, "write_now", refuse)
            broken.setattr(depot.store, "read_now", refuse)
            for agent in list(depot.runtime.live):
                agent.end(0)
            await trio.sleep(300)
            assert not dispatcher.ended.is_set()
        for run in runs:
            await depot.until_state(run, "completed", seconds=60)
    assert depot.runtime.launches == 2


async def test_a_store_that_cannot_serve_at_the_start_is_waited_for(
    autojump_clock: Any, depot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt = Dispatcher._adopt
    tries: list[float] = []

    async def refuse_twice(self: Dispatcher, *args: Any, **more: Any) -> None:
        tries.append(trio.current_time())
        if len(tries) <= 2:
            raise Unavailable("the database is busy")
        await adopt(self, *args, **more)

    monkeypatch.setattr(Dispatcher, "_adopt", refuse_twice)
    async with depot.up():
        (run,) = await depot.submit("a")
        await depot.ended_agent(run)
        await depot.until_state(run, "completed")


async def test_a_clock_step_moves_deadlines(autojump_clock: Any, make_depot: Any) -> None:
    depot = make_depot(timeout_ms=60_000)
    clock = depot.clock
    async with depot.up():
        (run,) = await depot.submit("a")
        await depot.until_state(run, "running")
        before = depot.get(run)
        step = 3_600_000
        clock.epoch = lambda: ("trio", step)
        clock.start_ms += step
        await trio.sleep(VIGIL_SECONDS + 1)
        now = depot.get(run)
        assert now.state is RunState.RUNNING
        assert now.timeout_at_ms - before.timeout_at_ms == step
        await depot.until_state(run, "timed_out", seconds=60)


async def test_a_crash_loop_ends_the_dispatcher_with_the_error(
    autojump_clock: Any, depot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Dispatcher, *args: Any) -> None:
        raise ZeroDivisionError("a bug in the vigil")

    monkeypatch.setattr(Dispatcher, "_vigil", broken)
    with pytest.raises(BaseExceptionGroup) as caught:
        await depot.dispatcher().run()
    assert caught.group_contains(ZeroDivisionError, match="a bug in the vigil")
    with trio.fail_after(1):
        async with depot.up():
            pass


async def test_a_pause_stops_dispatching_and_running_agents_go_on(autojump_clock: Any, depot: Any) -> None:
    async with depot.up():
        (first,) = await depot.submit("a")
        await depot.until_state(first, "running")
        await depot.service.pause()
        (second,) = await depot.submit("b")
        await trio.sleep(60)
        assert depot.get(first).state is RunState.RUNNING
        assert depot.get(second).state is RunState.QUEUED
        await depot.service.resume()
        await depot.until(lambda: depot.agent_of(second), 1)


async def test_a_delayed_run_starts_at_its_time(autojump_clock: Any, depot: Any) -> None:
    async with depot.up():
        at = depot.clock.now_ms() + 100_000
        (run,) = await depot.submit("later", not_before_ms=at)
        await depot.until(lambda: depot.agent_of(run), 200)
        assert 0 <= depot.clock.now_ms() - at <= 100


async def test_nothing_spins_while_nothing_happens(
    autojump_clock: Any, depot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = 0
    write_now = depot.store.write_now

    def count(work: Any) -> Any:
        nonlocal writes
        writes += 1
        return write_now(work)

    async with depot.up():
        (run,) = await depot.submit("a")
        await depot.until_state(run, "running")
        monkeypatch.setattr(depot.store, "write_now", count)
        await trio.sleep(600)
    assert writes < 600 / VIGIL_SECONDS * 3
