"""Why a run waits, its story, limits and numbers."""

from __future__ import annotations

from typing import Any

import pytest
from yard import OWNER, START, Yard, said

from interlock.decide.outcome import OutcomeKind
from interlock.decide.reasons import Wait, WaitKind
from interlock.domain.puller import Puller
from interlock.domain.run import Brake, Instance, Route, Run
from interlock.domain.settings import Limits, Mode
from interlock.domain.states import TERMINAL, RunState
from interlock.service import claims, operating, pulling, reads, supervising
from interlock.service.reads import Filter
from interlock.service.waiting import Surroundings


def instance(**fields: Any) -> Instance:
    whole = {"id": OWNER, "host": "here", "pid": 1, "boot_id": "b", "ordinal": 0, "state": "active", **fields}
    return Instance(**whole)


ALIVE = Surroundings(alive=(instance(),))


def why(yard: Yard, run: Run, around: Surroundings = ALIVE) -> list[Wait]:
    return yard.ask(reads.why, yard.get(run), around)


def only(waits: list[Wait]) -> Wait:
    assert len(waits) == 1, waits
    return waits[0]


def test_it_is_next(yard: Yard) -> None:
    assert only(why(yard, yard.submit())).kind is WaitKind.NEXT


def test_it_is_behind_others(yard: Yard) -> None:
    yard.submit("1")
    run = yard.submit("2")
    wait = only(why(yard, run))
    assert (wait.kind, wait.message) == (
        WaitKind.BEHIND,
        "1 run(s) like it go before it (higher priority, or older)",
    )
    assert wait.remedy == f"`interlock set {run.number} --priority N` moves it up"


def test_held(yard: Yard) -> None:
    run = yard.submit(held=True)
    wait = only(why(yard, run))
    assert (wait.kind, wait.remedy) == (WaitKind.HELD, f"`interlock unhold {run.number}`")


def test_a_need(yard: Yard) -> None:
    need = yard.submit("first")
    run = yard.submit("second", needs=(need.id,))
    wait = only(why(yard, run))
    assert (wait.kind, wait.message, wait.remedy, wait.details) == (
        WaitKind.NEED,
        "it needs #1 (first), which is queued",
        "`interlock why 1`",
        {"need": 1},
    )


def test_a_time(yard: Yard) -> None:
    run = yard.submit(not_before_ms=START + 90_000)
    wait = only(why(yard, run))
    assert wait.kind is WaitKind.NOT_BEFORE
    assert wait.message.endswith("in 1m30s")
    assert wait.remedy


def test_a_backoff(yard: Yard) -> None:
    run = yard.end(yard.claimed(), OutcomeKind.DEFERRED, "rate limit")
    wait = only(why(yard, run))
    assert (wait.kind, wait.message) == (WaitKind.BACKOFF, "next try in 1m: rate limit")
    assert wait.remedy


def test_the_backoff_of_a_run_that_was_lost(yard: Yard) -> None:
    claim = yard.claimed()
    yard.end(claim, OutcomeKind.LOST)
    yard.dispatch()
    again = claims.claim_of(yard.read(lambda tx: tx.run(claim.run)))  # type: ignore[arg-type]
    run = yard.end(again, OutcomeKind.LOST, "the process is gone")
    assert WaitKind.BACKOFF in {wait.kind for wait in why(yard, run)}


def test_a_limit_says_who_is_in_the_way(yard: Yard) -> None:
    yard.configure(limits=Limits(total=100, per_tag={"gpu": 6}))
    holders = [yard.submit(f"{n}", tags=("gpu",)) for n in range(6)]
    assert len(yard.started()) == 6
    run = yard.submit("late", tags=("gpu",))
    wait = only(why(yard, run))
    assert wait.kind is WaitKind.LIMIT
    assert wait.message == "the limit of tag 'gpu' is full: 6 of 6 in use, by #1, #2, #3, #4, #5 and 1 more"
    assert wait.details == {"key": "tag:gpu", "cap": 6, "used": 6, "held_by": [run.number for run in holders[:5]]}
    assert "raise the limit" in wait.remedy


def test_the_limit_of_a_route_for_many_types(yard: Yard) -> None:
    yard.do(operating.put_route, Route(workflow_type="review.*", agent_id="a", max_concurrent=1))
    yard.submit(type="review.code")
    yard.dispatch()
    run = yard.submit(type="review.code")
    for around in (ALIVE, Surroundings(alive=(instance(total=7),))):
        wait = only(why(yard, run, around))
        assert (wait.kind, wait.details["key"], wait.details["cap"]) == (WaitKind.LIMIT, "route:review.code", 1)


def test_every_limit_that_is_full(yard: Yard) -> None:
    yard.configure(limits=Limits(total=1, per_tag={"gpu": 0}))
    yard.submit("first")
    yard.dispatch()
    waits = why(yard, yard.submit("late", tags=("gpu",)))
    assert [(wait.kind, wait.message, wait.remedy) for wait in waits] == [
        (WaitKind.LIMIT, "the limit of tag 'gpu' is 0", "raise the limit"),
        (
            WaitKind.LIMIT,
            "the limit of global is full: 1 of 1 in use, by #1",
            "it starts when one of them ends; or raise the limit",
        ),
    ]


def test_no_agent(yard: Yard) -> None:
    yard.configure(default_agent=None)
    wait = only(why(yard, yard.submit(type="review")))
    assert (wait.kind, wait.message) == (WaitKind.NO_ROUTE, "no route for type 'review' and no default agent")
    assert "interlock routes set review AGENT" in wait.remedy
    wait = only(why(yard, yard.submit(agent="ghost")))
    assert (wait.kind, wait.message) == (WaitKind.NO_ROUTE, "agent 'ghost' is not defined")


def test_an_agent_that_cannot_start(yard: Yard) -> None:
    yard.do(operating.agent_cannot_start, "a", "no such command")
    wait = only(why(yard, yard.submit()))
    assert (wait.kind, wait.message) == (WaitKind.AGENT_UNAVAILABLE, "agent 'a' cannot be started: no such command")
    assert wait.remedy.startswith("put that right; it is tried again in ")


def test_paused_and_disabled(yard: Yard) -> None:
    run = yard.submit()
    yard.do(operating.pause, by="anna", message="lunch")
    yard.now += 5000
    yard.configure(enabled=False)
    waits = why(yard, run)
    assert [(wait.kind, wait.message) for wait in waits] == [
        (WaitKind.PAUSED, "dispatching is paused since 5s by anna: lunch"),
        (WaitKind.DISABLED, "dispatch.enabled is false"),
    ]
    assert waits[0].remedy == "`interlock resume`"
    assert "restart the daemon" in waits[1].remedy


@pytest.mark.parametrize(
    ("around", "kind"),
    [
        (Surroundings(), WaitKind.NO_DISPATCHER),
        (Surroundings(alive=(instance(scope="other"),)), WaitKind.OUT_OF_SCOPE),
        (Surroundings(alive=(instance(note=Brake.MEMORY.note("1 MiB are free")),)), WaitKind.MEMORY),
        (Surroundings(alive=(instance(note=Brake.STORE.note("the disk is full")),)), WaitKind.STORE),
        (Surroundings(alive=(instance(state="draining"),)), WaitKind.NO_DISPATCHER),
    ],
)
def test_nobody_to_start_it(yard: Yard, around: Surroundings, kind: WaitKind) -> None:
    wait = only(why(yard, yard.submit(), around))
    assert wait.kind is kind
    assert wait.remedy


def test_offered(yard: Yard) -> None:
    wait = why(yard, yard.offered())[0]
    assert (wait.kind, wait.message) == (WaitKind.OFFERED, "it is offered to agent 'a'; nobody has claimed it yet")
    assert wait.remedy
    yard.configure(default_agent=None, mode=Mode.PULL)
    wait = only(why(yard, yard.offered()))
    assert "any agent that takes it" in wait.message


def test_blocked(yard: Yard) -> None:
    run = yard.end(yard.claimed(), OutcomeKind.BLOCKED, question="which one?")
    wait = only(why(yard, run))
    assert (wait.kind, wait.message) == (WaitKind.BLOCKED, "its agent asked: which one?")
    assert "interlock answer" in wait.remedy


def test_at_work(yard: Yard) -> None:
    claim = yard.running()
    run = yard.read(lambda tx: tx.run(claim.run))
    assert run is not None
    wait = only(why(yard, run))
    assert (wait.kind, wait.message) == (WaitKind.WORKING, "agent 'a' works on it (attempt 1, at most 1h more)")
    assert [one.kind for one in why(yard, run, Surroundings())] == [WaitKind.WORKING, WaitKind.NOT_SUPERVISED]
    yard.on(run, operating.cancel)
    stopping = only(why(yard, run))
    assert stopping.kind is WaitKind.STOPPING
    assert "cancelled by the operator" in stopping.message
    assert stopping.remedy


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_ended(yard: Yard, state: RunState) -> None:
    run = yard.bring(state)
    wait = only(why(yard, run))
    assert wait.kind is WaitKind.ENDED
    assert wait.message == f"it ended {state} ({run.reason}): {run.message}"
    assert bool(wait.remedy) == (state is not RunState.COMPLETED)


def test_all_reasons_at_once(yard: Yard) -> None:
    yard.configure(limits=Limits(total=0))
    need = yard.submit()
    run = yard.submit(needs=(need.id,), held=True, not_before_ms=START + 1, agent="ghost")
    yard.do(operating.pause)
    assert [wait.kind for wait in why(yard, run, Surroundings())] == [
        WaitKind.HELD,
        WaitKind.NEED,
        WaitKind.NO_ROUTE,
        WaitKind.NOT_BEFORE,
        WaitKind.LIMIT,
        WaitKind.PAUSED,
        WaitKind.NO_DISPATCHER,
    ]


@pytest.mark.parametrize("state", list(RunState))
def test_there_is_always_a_reason(yard: Yard, state: RunState) -> None:
    waits = why(yard, yard.bring(state), Surroundings())
    assert waits
    assert all(wait.message for wait in waits)
    assert all(wait.short for wait in waits)
    ends = {WaitKind.ENDED, WaitKind.BLOCKED}
    assert all(wait.remedy for wait in waits if wait.kind not in ends or state is not RunState.COMPLETED)


# lists and numbers


def test_a_story(yard: Yard) -> None:
    need = yard.bring("completed")
    claim = yard.running(needs=(need.id,))
    run = yard.read(lambda tx: tx.run(claim.run))
    assert run is not None
    after = yard.submit("after", needs=(run.id,))
    story = yard.read(lambda tx: reads.story(tx, run))
    assert [attempt.fence for attempt in story.attempts] == [1]
    assert [event.event for event in story.events] == ["submit", "dispatch", "claim", "start"]
    assert [(one.number, one.state, one.met) for one in story.needs] == [(need.number, "completed", True)]
    assert story.slots == ["agent:a", "global"]
    assert story.dependants == [after.number]


def test_limits_and_their_use(yard: Yard) -> None:
    yard.configure(limits=Limits(total=3, per_tag={"gpu": 1}))
    yard.submit("title", tags=("cpu",))
    yard.dispatch()
    assert [(use.key, use.used, use.cap, use.holders) for use in yard.ask(reads.limits)] == [
        ("global", 1, 3, [(1, "title")]),
        ("tag:gpu", 0, 1, []),
        ("agent:a", 1, None, [(1, "title")]),
        ("tag:cpu", 1, None, [(1, "title")]),
    ]


def test_finding(yard: Yard) -> None:
    first = yard.submit("1", project="p", tags=("x", "y"), type="review", batch="B")
    second = yard.submit("2", project="q")
    yard.on(second, operating.cancel)

    def found(**by: Any) -> list[int]:
        return [run.number for run in yard.read(lambda tx: tx.find_runs(Filter(**by)))]

    assert found() == [2, 1]
    assert found(limit=1) == [2]
    assert found(before=2) == [1]
    assert found(states=("queued", "cancelled")) == [2, 1]
    for by in ({"states": ("queued",)}, {"project": "p"}, {"tag": "y"}, {"type": "review"}, {"batch": "B"}):
        assert found(**by) == [first.number]
    assert found(tag="z") == []


def test_numbers(yard: Yard) -> None:
    assert yard.ask(reads.stats, 3_600_000).attempts == 0
    for kind in (OutcomeKind.COMPLETED, OutcomeKind.COMPLETED, OutcomeKind.TIMED_OUT):
        run = yard.submit()
        yard.now += 100
        yard.dispatch()
        claim = claims.claim_of(yard.get(run))
        yard.now += 10
        yard.do(claims.start, claim.run, claim.holder, claim.fence)
        yard.now += 1000
        yard.end(claim, kind)
    stats = yard.ask(reads.stats, 3_600_000)
    assert (stats.attempts, stats.attempts_by_end, stats.states) == (
        3,
        {"succeeded": 2, "timed_out": 1},
        {"completed": 2, "timed_out": 1},
    )
    assert stats.failure_rate == pytest.approx(1 / 3)
    assert (stats.wait_ms["p50"], stats.start_ms["max"], stats.work_ms["p95"]) == (100, 10, 1010)
    assert stats.per_hour == 3
    yard.now += 3_600_001
    assert yard.ask(reads.stats, 3_600_000).attempts == 0


def test_how_long_it_took_counts_every_attempt_and_the_downtime(yard: Yard) -> None:
    claim = yard.running()
    yard.now += 1000
    yard.do(lambda tx, _: tx.shift_deadlines(400))
    yard.end(claim, OutcomeKind.FAILED)
    assert yard.ask(reads.worked_ms, [claim.run]) == {claim.run: 1000}


def test_numbers_of_the_event_log(yard: Yard) -> None:
    yard.submit("before the window")
    yard.dispatch()
    yard.now += 3_600_001
    yard.configure(mode=Mode.PULL)
    offered = yard.submit(type="review")
    yard.dispatch()
    yard.now += 700
    claim = yard.on(offered, claims.claim_offer, holder="s1")
    yard.now += 900_000
    yard.do(supervising.reap, 10)
    yard.now += 50
    yard.on(offered, claims.claim_offer, holder="s2")
    stats = yard.ask(reads.stats, 3_600_000)
    assert claim.holder == "s1"
    assert stats.counts == reads.Counts(submits=1, dispatches=1, claims=2, lapses=1)
    assert not stats.counts_cut
    assert stats.claim_ms == {"p50": 700, "p95": 700, "max": 700}
    assert {use.key: (use.used, use.cap) for use in stats.slots}["global"] == (2, 100)
    assert yard.ask(reads.stats, 8_000_000).counts.submits == 2


def test_the_numbers_look_at_the_newest_events_only(yard: Yard) -> None:
    for number in range(20):
        yard.submit(str(number))
    all_of_them = yard.ask(reads.stats, 3_600_000, most_events=20)
    assert (all_of_them.counts.submits, all_of_them.counts_cut) == (20, False)
    some = yard.ask(reads.stats, 3_600_000, most_events=7)
    assert (some.counts.submits, some.counts_cut) == (7, True)


def test_redispatches_and_retries_are_counted(yard: Yard) -> None:
    yard.configure(mode=Mode.PULL)
    run = yard.submit()
    yard.dispatch()
    yard.do(pulling.look, Puller(holder="s1"), 10)
    yard.now += 301_000
    yard.do(pulling.look, Puller(holder="s1"), 10)
    yard.do(supervising.reap, 10)
    assert yard.ask(reads.stats, 3_600_000).counts.redispatches == 1
    claim = yard.on(run, claims.claim_offer, holder="s1")
    yard.do(claims.finish, claim.run, claim.holder, claim.fence, said(OutcomeKind.FAILED))
    stats = yard.ask(reads.stats, 3_600_000)
    assert stats.counts.retries == 1
    assert stats.run_ms == {}
    yard.on(run, operating.cancel)
    yard.now += 500
    assert yard.ask(reads.stats, 3_600_000).run_ms == {"p50": 0, "p95": 0, "max": 0}


def test_depth_and_age_by_state_and_lane(yard: Yard) -> None:
    yard.configure(limits=Limits(total=1, per_tag={"gpu": 1}))
    yard.submit("working")
    yard.dispatch()
    for age in range(3):
        yard.now += 1000
        yard.submit(f"gpu {age}", tags=("gpu", "other"), type="review")
    yard.now += 1000
    yard.submit("held", held=True)
    yard.now += 500
    stats = yard.ask(reads.stats, 3_600_000)
    assert [(depth.name, depth.runs, depth.oldest_ms) for depth in stats.queue] == [
        ("claimed", 1, 4500),
        ("queued", 4, 3500),
    ]
    assert [(depth.name, depth.runs, depth.oldest_ms) for depth in stats.lanes] == [("type review, tag gpu", 3, 3500)]
    for number in range(12):
        yard.submit(type=f"t{number}")
    assert len(yard.ask(reads.stats, 3_600_000).lanes) == 10
