"""The service as one object: many tasks, the writer's thread, hints to whoever waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
import trio
from yard import OWNER, SETTINGS

from interlock.domain.errors import Conflict, NotFound, StaleClaim
from interlock.domain.run import Route, Usage
from interlock.domain.settings import Limits, Mode, Settings
from interlock.domain.states import Reason, RunState, StopKind
from interlock.domain.task import Task
from interlock.service import Service
from interlock.service.claims import claim_of
from interlock.service.reads import Filter, Surroundings
from interlock.store.clock import SystemClock
from interlock.store.sqlite import SqliteStore
from interlock.store.sqlite.listening import Listening


def configured(settings: Settings, **changes: object) -> Settings:
    from msgspec.structs import replace

    return replace(settings, **changes)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """On the store as the daemon has it, with its threads."""
    store = SqliteStore(tmp_path, create=True)
    yield Service(store, SystemClock(), SETTINGS, rng=Random(1))
    store.close()


async def test_full_lives_side_by_side(service: Service) -> None:
    """Limits hold at every moment, everything ends, nothing is left behind."""
    service.settings = configured(SETTINGS, limits=Limits(total=5, per_tag={"gpu": 2}))
    await service.rekey_lanes()
    done: list[int] = []
    most = {"global": 0, "tag:gpu": 0}

    async def live(n: int) -> None:
        run = (await service.submit(Task(title=str(n), tags=("gpu",) if n % 3 == 0 else ()))).run
        while True:
            for claimed, _ in (await service.dispatch(owner=OWNER)).claimed:
                nursery.start_soon(work, claimed.number)
            for use in await service.limits():
                if use.key in most:
                    most[use.key] = max(most[use.key], use.used)
            if (await service.get(run)).terminal:
                return
            await trio.lowlevel.checkpoint()

    async def work(number: int) -> None:
        claim = claim_of(await service.get(number))
        await service.start(claim)
        await service.complete(claim)
        done.append(number)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for n in range(24):
                nursery.start_soon(live, n)
    assert sorted(done) == list(range(1, 25))
    assert most["global"] <= 5
    assert most["tag:gpu"] <= 2
    assert await service.store.read(lambda tx: (tx.used(), tx.recount())) == ({}, {})
    assert (await service.stats(10**9)).states == {"completed": 24}


async def _pause(service: Service) -> None:
    await service.pause()


async def _resume(service: Service) -> None:
    await service.resume()


async def _route(service: Service) -> None:
    await service.put_route(Route(workflow_type="x", agent_id="a"))


async def _agent(service: Service) -> None:
    await service.agent_started("a")


async def _unhold(service: Service) -> None:
    await service.unhold(1)


async def _submit(service: Service) -> None:
    await service.submit(Task(title="t"))


async def _cancel(service: Service) -> None:
    await service.cancel(1)


@pytest.mark.parametrize("command", [_pause, _resume, _route, _agent, _unhold, _submit, _cancel])
async def test_what_may_let_a_run_start_is_heard_at_once(
    service: Service, command: Callable[[Service], Awaitable[None]]
) -> None:
    await service.submit(Task(title="held"), held=True)
    async with service.changes() as changes:
        await command(service)
        with trio.fail_after(10):
            await changes.wait()


async def test_a_heartbeat_wakes_nobody(service: Service) -> None:
    await service.submit(Task(title="t"))
    await service.dispatch(owner=OWNER)
    claim = claim_of(await service.get(1))
    async with service.changes() as changes:
        await service.renew(claim)
        await service.renew_owned(OWNER)
        # A commit is announced before the next one is answered.
        await service.renew_owned(OWNER)
        assert isinstance(changes, Listening)
        assert not changes._heard.is_set()


async def test_a_remote_agents_day(service: Service) -> None:
    service.settings = configured(SETTINGS, mode=Mode.PULL)
    await service.submit_all([Task(title="a", id="a", type="review"), Task(title="b", needs=("a",))])
    await service.dispatch(owner=OWNER)
    assert await service.offers(holder="h", types=["build"]) == []
    assert await service.offers(holder="h", agent="other") == []
    (offer,) = await service.offers(holder="h", agent="a", types=["review"])
    claim = await service.claim(offer, holder="h", request_id="q", offer=offer.dispatch_count)
    assert (await service.renew(claim)).go_on
    await service.request_stop(offer, StopKind.INTERRUPT, reason="interrupted", message="enough", by="me")
    assert (await service.renew(claim)).reason == "enough"
    assert (await service.release(claim)).state is RunState.QUEUED
    with pytest.raises(StaleClaim):
        await service.fail(claim, "too late")
    await service.dispatch(owner=OWNER)
    claim = await service.claim("#1", holder="h")
    await service.block(claim, "which?")
    await service.answer(1, "that one")
    await service.dispatch(owner=OWNER)
    claim = await service.claim(1, holder="h")
    await service.defer(claim, "later", delay_ms=0)
    await service.dispatch(owner=OWNER)
    claim = await service.claim(1, holder="h")
    await service.fail(claim, "broken", permanent=True)
    assert [run.state for run in await service.find(Filter())] == ["failed", "failed"]
    assert (await service.why(2, Surroundings()))[0].kind == "ended"
    story = await service.story(1)
    assert [attempt.state for attempt in story.attempts] == ["interrupted", "blocked", "deferred", "failed"]
    assert len(await service.events(0)) == len(story.events) + 2
    again = await service.retry(1)
    assert again.retry_of == 1
    assert await service.withdraw_offers(Reason.DRAINING, "the end") == 0


async def test_refusals_reach_whoever_asked(service: Service) -> None:
    with pytest.raises(NotFound):
        await service.get("#1")
    with pytest.raises(NotFound):
        await service.cancel("nobody")
    run = (await service.submit(Task(title="t"))).run
    await service.cancel(run)
    with pytest.raises(Conflict):
        await service.cancel(run)


async def test_a_clock_that_was_not_set_is_not_anchored_anew(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time it would be by a fraction of a millisecond elsewhere: commands of one commit would be out of order."""
    monkeypatch.setattr(service.clock, "reanchor", lambda: pytest.fail("it was not set"))
    async with trio.open_nursery() as nursery:
        for n in range(3):
            nursery.start_soon(service.submit, Task(title=str(n)))
    await service.catch_up(1_000)


async def test_the_time_is_that_of_the_transaction(service: Service) -> None:
    """Commands that waited for each other are in the order of their times."""
    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(service.submit, Task(title=str(n)))
    created = [run.created_ms for run in await service.find(Filter(limit=100))]
    assert created == sorted(created, reverse=True)


async def test_what_an_attempt_used_is_kept_as_it_was_said_last(service: Service) -> None:
    run = (await service.submit(Task(title="one"))).run
    await service.dispatch(owner=OWNER)
    claim = claim_of(await service.get(run))
    for tokens in (10, 7):
        await service.report_usage(claim, Usage(input_tokens=tokens))
    (attempt,) = (await service.story(run)).attempts
    assert attempt.usage == Usage(input_tokens=7)
    await service.complete(claim)
    with pytest.raises(StaleClaim):
        await service.report_usage(claim, Usage(input_tokens=99))


async def test_what_was_done_elsewhere_is_done(service: Service) -> None:
    planned = await service.reconcile_batch("b", [("k", Task(title="one"))])
    (run,) = await service.batch("b")
    assert run == planned[0].run
    closed = await service.close(run, message="merged by hand")
    assert (closed.state, closed.message) == (RunState.COMPLETED, "merged by hand")
    await service.repair_slots()
    assert await service.store.read(lambda tx: tx.slot_faults()) == []
