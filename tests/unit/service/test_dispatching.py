"""What is admitted, in which order, and that no limit is passed by any door."""

from __future__ import annotations

import pytest
from yard import OWNER, SETTINGS, START, Yard

from interlock.decide.outcome import OutcomeKind
from interlock.domain.run import Route, Run
from interlock.domain.settings import MINUTE, Agent, Limits, Mode, Settings
from interlock.domain.states import Reason, RunState
from interlock.service import claims, dispatching, filing, operating
from interlock.service.claims import claim_of
from interlock.service.dispatching import attempt_timeout_ms, stall_limit_ms


def limit(yard: Yard, **limits: object) -> None:
    yard.configure(limits=Limits(**{"total": 100, **limits}))  # type: ignore[arg-type]
    after = yard.do(filing.begin_rekeying)
    while after is not None:
        after = yard.do(filing.rekey, after, 2)


def test_the_order(yard: Yard) -> None:
    low, high = yard.submit("low"), yard.submit("high", priority=9)
    middle = [yard.submit(f"middle {n}", priority=5, tags=("x",) if n % 2 else ()) for n in range(4)]
    limit(yard, per_tag={"x": 5})
    assert yard.started() == [high.number, *(run.number for run in middle), low.number]


def test_the_bound_is_reached_or_nothing_is_left(yard: Yard) -> None:
    for n in range(5):
        yard.submit(str(n))
    assert [yard.dispatch(bound=2).more for _ in range(3)] == [True, True, False]
    assert yard.dispatch(bound=2).more is False


def test_a_saturated_lane_holds_nobody_else_back(yard: Yard) -> None:
    limit(yard, per_tag={"gpu": 1})
    gpus = [yard.submit(f"gpu {n}", tags=("gpu",), priority=9) for n in range(300)]
    behind = yard.submit("behind")
    assert yard.started() == [gpus[0].number, behind.number]


def test_more_lanes_than_are_read_at_once(yard: Yard) -> None:
    tags = {f"t{n}": 1 for n in range(200)}
    limit(yard, per_tag=tags, total=1000)
    runs = [yard.submit(tag, tags=(tag,), priority=n % 7) for n, tag in enumerate([*tags, *tags])]
    wanted = sorted(runs[:200], key=lambda run: (-run.priority, run.number))
    # Of the second run of a tag the higher priority may come first.
    best = {tag: min((r for r in runs if r.task.tags == (tag,)), key=lambda r: (-r.priority, r.number)) for tag in tags}
    wanted = sorted(best.values(), key=lambda run: (-run.priority, run.number))
    assert yard.started() == [run.number for run in wanted]


@pytest.mark.parametrize(
    ("limits", "fields"),
    [
        ({"total": 2}, {}),
        ({"per_project": {"p": 2}}, {"project": "p"}),
        ({"per_tracker": {"gh": 2}}, {"tracker": "gh"}),
        ({"per_role": {"r": 2}}, {"role": "r"}),
        ({"per_tag": {"gpu": 2}}, {"tags": ("gpu", "x")}),
        ({"per_agent": {"a": 2}}, {}),
        ({"per_tag": {"gpu": 2, "x": 5}, "per_project": {"p": 3}, "total": 4}, {"tags": ("gpu", "x"), "project": "p"}),
    ],
)
@pytest.mark.parametrize("mode", list(Mode))
def test_the_most_restrictive_limit_wins(
    yard: Yard, limits: dict[str, object], fields: dict[str, object], mode: Mode
) -> None:
    limit(yard, **limits)
    yard.configure(mode=mode)
    runs = [yard.submit(str(n), **fields) for n in range(5)]
    assert yard.started() == [runs[0].number, runs[1].number]
    yard.on(runs[0], operating.cancel)
    if mode is Mode.PUSH:
        yard.end(claim_of(yard.get(runs[0])), OutcomeKind.CANCELLED)
    assert yard.started() == [runs[2].number]


def test_a_route_has_its_own_limit_agent_and_priority(yard: Yard) -> None:
    yard.configure(agents={**SETTINGS.agents, "b": Agent(name="b", command="true")})
    yard.do(operating.put_route, Route(workflow_type="review", agent_id="b", priority=5, max_concurrent=1))
    plain = yard.submit("plain", priority=4)
    reviews = [yard.submit(f"review {n}", type="review") for n in range(2)]
    done = yard.dispatch()
    assert [(run.number, agent.name) for run, agent in done.claimed] == [(reviews[0].number, "b"), (plain.number, "a")]


def test_a_lowered_limit_evicts_nobody(yard: Yard) -> None:
    runs = [yard.submit(str(n)) for n in range(3)]
    assert len(yard.started()) == 3
    limit(yard, total=1)
    yard.submit("late")
    assert yard.started() == []
    for run in runs[:2]:
        yard.end(claim_of(yard.get(run)), OutcomeKind.COMPLETED)
        assert yard.started() == []
    yard.end(claim_of(yard.get(runs[2])), OutcomeKind.COMPLETED)
    assert len(yard.started()) == 1


def test_a_new_limit_holds_before_the_queue_is_filed_anew(yard: Yard) -> None:
    """A run filed when nobody spoke of its project must not pass the limit that speaks of it now."""
    yard.do(filing.begin_rekeying)
    runs = [yard.submit(str(n), project="p") for n in range(3)]
    yard.configure(limits=Limits(total=100, per_project={"p": 1}))
    assert yard.started() == [runs[0].number]
    assert yard.started() == []
    limit(yard, per_project={"p": 2})
    assert yard.started() == [runs[1].number]


def test_two_processes_with_different_limits_each_keep_their_own(yard: Yard) -> None:
    limit(yard, per_tag={"gpu": 5})
    for n in range(3):
        yard.submit(str(n), project="p", tags=("gpu",))
    # The other process was configured otherwise, and files nothing.
    yard.configure(limits=Limits(total=100, per_project={"p": 1}))
    assert len(yard.started()) == 1


def test_a_run_that_comes_back_is_filed_under_todays_limits(yard: Yard) -> None:
    claim = yard.claimed(project="p")
    limit(yard, per_project={"p": 1})
    yard.end(claim, OutcomeKind.DEFERRED)
    other = yard.submit("other", project="q")
    back = yard.read(lambda tx: tx.run(claim.run))
    assert back is not None
    assert back.lane != yard.get(other).lane


def test_a_scope_is_kept_to(yard: Yard) -> None:
    yard.submit("other", priority=9)
    mine = yard.submit("mine", batch="B")
    assert [run.number for run, _ in yard.dispatch(scope="B").claimed] == [mine.number]
    assert yard.dispatch(scope="B").more is False


def test_nothing_is_dispatched_while_paused_or_disabled(yard: Yard) -> None:
    yard.submit()
    yard.do(operating.pause)
    assert yard.started() == []
    yard.do(lambda tx, _: operating.resume(tx))
    yard.configure(enabled=False)
    assert yard.started() == []
    yard.configure(enabled=True)
    assert yard.started() == [1]


def test_an_agent_that_cannot_start_is_left_alone_for_a_while(yard: Yard) -> None:
    yard.submit()
    health = yard.do(operating.agent_cannot_start, "a", "no such command")
    assert yard.started() == []
    yard.now = health.retry_ms
    assert yard.started() == [1]


def test_local_claims_are_held_by_the_agent_under_a_fence(yard: Yard) -> None:
    claim = yard.claimed()
    run = yard.read(lambda tx: tx.run(claim.run))
    assert run is not None
    assert (claim.holder, claim.fence, run.owner, run.owner_epoch, run.remote) == ("a/1.1", 1, OWNER, 1, False)
    attempt = yard.read(lambda tx: tx.attempt(1, 1))
    assert attempt is not None
    generation = yard.read(lambda tx: tx.meta("generation"))
    assert attempt.folder == f"attempts/00000/1.1.{generation}"
    assert [event.event for event in yard.read(lambda tx: tx.events_of(1))] == ["submit", "dispatch", "claim"]


# runs that came back with their slots


def test_a_lost_run_goes_first_and_keeps_its_slots(yard: Yard) -> None:
    limit(yard, total=1)
    claim = yard.claimed()
    waiting = yard.submit("waiting", priority=9)
    lost = yard.end(claim, OutcomeKind.LOST)
    assert (lost.state, lost.pull) == (RunState.DISPATCHED, False)
    assert yard.started() == [claim.run]
    assert yard.get(waiting).state is RunState.QUEUED


def test_those_that_wait_do_not_hide_those_that_may_go(yard: Yard) -> None:
    """More of them than the bound, all in a backoff, before one that may start."""
    for n in range(3):
        claim = yard.claimed(str(n))
        for _ in range(2):
            yard.end(claim, OutcomeKind.LOST)
            yard.now += 60_000
            yard.dispatch()
            claim = claim_of(yard.read(lambda tx, c=claim: tx.run(c.run)))  # type: ignore[misc, arg-type]
        yard.end(claim, OutcomeKind.LOST)
    free = yard.claimed("free")
    yard.end(free, OutcomeKind.LOST)
    assert [run.number for run, _ in yard.dispatch(bound=1).claimed] == [free.run]


def test_a_lost_run_whose_agent_is_gone_is_queued_again(yard: Yard) -> None:
    yard.end(yard.claimed(), OutcomeKind.LOST)
    yard.do(operating.agent_cannot_start, "a", "no such command")
    yard.dispatch()
    run = yard.read(lambda tx: tx.run(1))
    assert run is not None
    assert run.state is RunState.QUEUED
    assert yard.read(lambda tx: tx.used()) == {}


# pull


def test_in_pull_mode_runs_are_offered_to_whoever_comes(yard: Yard) -> None:
    yard.configure(mode=Mode.PULL, default_agent=None)
    run = yard.submit()
    assert [one.number for one in yard.dispatch().offered] == [run.number]
    offer = yard.get(run)
    assert (offer.state, offer.pull, offer.agent, offer.offered_ms) == (RunState.DISPATCHED, True, None, START)


def test_offers_of_a_pull_past_are_withdrawn_in_push_mode(yard: Yard) -> None:
    offer = yard.offered()
    other = yard.offered("other")
    limit(yard, total=2)
    assert yard.ask(lambda tx, ctx: dispatching.outlook(tx, ctx.settings).anything)
    assert sorted(yard.started()) == [offer.number, other.number]
    events = yard.read(lambda tx: tx.events_of(offer.number))
    assert [event.reason for event in events if event.event == "withdraw"] == [Reason.NO_FITTING_AGENT]


def test_withdrawing_leaves_claims_alone(yard: Yard) -> None:
    claim = yard.claimed()
    offer = yard.offered()
    assert yard.do(dispatching.withdraw_offers, Reason.DRAINING, "the end", 10) == 1
    assert yard.get(offer).state is RunState.QUEUED
    assert yard.do(claims.renew, claim.run, claim.holder, claim.fence).go_on


# timeouts


@pytest.mark.parametrize(
    ("task", "route", "agent", "timeout"),
    [(7, 2, 3, 7), (None, 2, 3, 2 * MINUTE), (None, None, 3, 3), (None, None, None, 4)],
)
def test_the_timeout_of_an_attempt(
    yard: Yard, task: int | None, route: int | None, agent: int | None, timeout: int
) -> None:
    run = yard.submit(timeout_ms=task, stall_ms=task)
    of_route = (
        None if route is None else Route(workflow_type="x", agent_id="a", timeout_minutes=route, stall_minutes=route)
    )
    of_agent = None if agent is None else Agent(name="a", timeout_ms=agent, stall_ms=agent)
    settings = Settings(timeout_ms=4, stall_ms=4)
    assert attempt_timeout_ms(run, of_agent, of_route, settings) == timeout
    assert stall_limit_ms(run, of_agent, of_route, settings) == timeout


def test_nobody_stalls_by_default(yard: Yard) -> None:
    run: Run = yard.submit()
    assert stall_limit_ms(run, None, None, Settings()) is None
