"""What the holder of a claim may do, what everybody else is refused, and that a repeated call is answered the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from yard import OWNER, START, Yard, said

from interlock.decide.outcome import MESSAGE_LIMIT, OutcomeKind
from interlock.domain.errors import AlreadyClaimed, Conflict, IllegalTransition, InvalidInput, StaleClaim
from interlock.domain.puller import Puller
from interlock.domain.run import Claim, Run, Usage
from interlock.domain.settings import MINUTE, Limits
from interlock.domain.states import AttemptState, RunState, StopKind
from interlock.service import claims, operating, supervising


def take(yard: Yard, run: Run, holder: str = "h", **how: Any) -> Claim:
    claim: Claim = yard.on(run, claims.claim_offer, holder=holder, **how)
    return claim


# claiming an offer


def test_a_claim(yard: Yard) -> None:
    claim = take(yard, yard.offered())
    run = yard.read(lambda tx: tx.run(claim.run))
    assert run is not None
    assert (run.state, run.holder, run.fence, run.remote, run.owner) == (RunState.CLAIMED, "h", 1, True, None)
    assert claim.lease_expires_ms == START + 10 * MINUTE
    assert take_again(yard, run).code == "already_claimed"


def take_again(yard: Yard, run: Run) -> AlreadyClaimed:
    with pytest.raises(AlreadyClaimed, match="claimed by h") as caught:
        take(yard, run, "other")
    return caught.value


def test_a_lost_answer_is_asked_for_again(yard: Yard) -> None:
    offer = yard.offered()
    first = take(yard, offer, request_id="q1")
    assert take(yard, offer, request_id="q1") == first
    with pytest.raises(StaleClaim, match="q1 has had its claim"):
        take(yard, offer, "somebody else", request_id="q1")
    yard.end(first, OutcomeKind.RETURNED)
    with pytest.raises(StaleClaim, match="q1 has had its claim"):
        take(yard, offer, request_id="q1")
    assert take(yard, offer, request_id="q2").fence == 2


def test_a_request_for_an_earlier_offer_comes_too_late(yard: Yard) -> None:
    offer = yard.offered()
    assert offer.dispatch_count == 1
    yard.now += 5 * MINUTE
    yard.do(lambda tx, ctx: tx.put_puller(Puller(holder="h", agent=None, types=()), ctx.now_ms))
    yard.do(supervising.reap, 10)
    assert yard.get(offer).dispatch_count == 2
    with pytest.raises(StaleClaim, match="is over"):
        take(yard, offer, offer=1)
    assert take(yard, offer, offer=2).fence == 1


def test_an_offer_after_a_release_is_another_one(yard: Yard) -> None:
    offer = yard.offered()
    yard.end(take(yard, offer, offer=1), OutcomeKind.RETURNED)
    assert yard.get(offer).dispatch_count == 2
    with pytest.raises(StaleClaim, match="is over"):
        take(yard, offer, "late", offer=1)
    assert take(yard, offer, offer=2).fence == 2


def test_a_withdrawn_offer_is_over(yard: Yard) -> None:
    offer = yard.offered()
    yard.do(operating.pause)
    with pytest.raises(StaleClaim, match="is over"):
        take(yard, offer, offer=1)


@pytest.mark.parametrize("state", [state for state in RunState if state not in ("dispatched", "claimed", "running")])
def test_only_an_offer_is_claimed(yard: Yard, state: RunState) -> None:
    with pytest.raises(IllegalTransition):
        take(yard, yard.bring(state))


def test_what_goes_to_a_local_agent_is_no_offer(yard: Yard) -> None:
    yard.end(yard.claimed(), OutcomeKind.LOST)
    run = yard.read(lambda tx: tx.run(1))
    assert run is not None
    assert run.state is RunState.DISPATCHED
    with pytest.raises(Conflict, match="on its way to the local agent 'a'"):
        take(yard, run)


def test_an_offer_for_one_agent_is_not_for_another(yard: Yard) -> None:
    offer = yard.offered()
    with pytest.raises(InvalidInput, match="offered to agent 'a', not to 'b'"):
        take(yard, offer, agent="b")
    assert take(yard, offer, agent="a").fence == 1


def test_an_open_offer_counts_for_the_agent_that_takes_it(yard: Yard) -> None:
    yard.configure(default_agent=None, limits=Limits(total=100, per_agent={"b": 1}))
    first, second = yard.offered("1"), yard.offered("2")
    claim = take(yard, first, agent="b")
    assert yard.read(lambda tx: tx.slots_of(first.number)) == ["agent:b", "global"]
    with pytest.raises(Conflict, match="'b' has 1 of 1 runs already"):
        take(yard, second, agent="b")
    assert yard.read(lambda tx: tx.slots_of(second.number)) == ["global"]
    yard.end(claim, OutcomeKind.COMPLETED)
    take(yard, second, agent="b")


@pytest.mark.parametrize("kind", [OutcomeKind.RETURNED, OutcomeKind.LAPSED, OutcomeKind.LOST])
def test_an_open_offer_that_comes_back_is_open_to_all_again(yard: Yard, kind: OutcomeKind) -> None:
    """Whoever had it may be gone for good."""
    yard.configure(default_agent=None, limits=Limits(total=100, per_agent={"b": 1}))
    offer = yard.offered()
    back = yard.end(take(yard, offer, agent="b"), kind)
    assert (back.state, back.pull, back.agent) == (RunState.DISPATCHED, True, None)
    assert yard.read(lambda tx: (tx.used(), tx.slot_faults())) == ({"global": 1}, [])
    assert take(yard, offer, "other", agent="c").fence == 2


@pytest.mark.parametrize("lease", [0, -1, 24 * 3600 * 1000 + 1])
def test_a_lease_has_bounds(yard: Yard, lease: int) -> None:
    offer = yard.offered()
    with pytest.raises(InvalidInput, match="between 1 ms and a day"):
        take(yard, offer, lease_ms=lease)
    claim = take(yard, offer)
    with pytest.raises(InvalidInput, match="between 1 ms and a day"):
        yard.do(claims.renew, claim.run, claim.holder, claim.fence, lease)


def test_a_claim_needs_a_holder(yard: Yard) -> None:
    with pytest.raises(InvalidInput):
        take(yard, yard.offered(), "")


# writes under a claim

WRITES: dict[str, Callable[[Yard, Claim], Any]] = {
    "start": lambda yard, claim: yard.do(claims.start, claim.run, claim.holder, claim.fence),
    "renew": lambda yard, claim: yard.do(claims.renew, claim.run, claim.holder, claim.fence),
    "usage": lambda yard, claim: yard.do(
        claims.report_usage, claim.run, claim.holder, claim.fence, Usage(input_tokens=1)
    ),
    **{
        kind: lambda yard, claim, kind=kind: yard.end(claim, OutcomeKind(kind))  # type: ignore[misc]
        for kind in ("completed", "failed", "deferred", "blocked", "returned", "lost", "cannot_start")
    },
}
STALE: dict[str, dict[str, Any]] = {
    "another holder": {"holder": "other"},
    "an older fence": {"fence": 0},
    "a newer fence": {"fence": 2},
    "another run": {"run": 99},
}


def whole(yard: Yard) -> list[str]:
    with yard.raw() as shell:
        dump = list(shell.iterdump())
    shell.close()
    return dump


@pytest.mark.parametrize("write", list(WRITES))
@pytest.mark.parametrize("how", list(STALE))
def test_a_write_under_another_claim_changes_nothing(yard: Yard, write: str, how: str) -> None:
    claim = yard.running()
    before = whole(yard)
    with pytest.raises(StaleClaim):
        WRITES[write](yard, msgspec.structs.replace(claim, **STALE[how]))
    assert whole(yard) == before


@pytest.mark.parametrize("write", [write for write in WRITES if write != "failed"])
def test_a_write_after_the_end_changes_nothing(yard: Yard, write: str) -> None:
    claim = yard.running()
    yard.end(claim, OutcomeKind.FAILED)
    before = whole(yard)
    with pytest.raises(StaleClaim):
        WRITES[write](yard, claim)
    assert whole(yard) == before


@pytest.mark.parametrize("kind", ["completed", "failed", "deferred", "blocked", "returned", "lost", "cannot_start"])
def test_an_ending_call_that_comes_twice_is_answered_the_same(yard: Yard, kind: str) -> None:
    claim = yard.running()
    first = yard.end(claim, OutcomeKind(kind))
    before = whole(yard)
    assert yard.end(claim, OutcomeKind(kind)) == first
    assert whole(yard) == before
    yard.now += 10 * MINUTE
    yard.do(supervising.reap, 10)
    yard.dispatch()
    before = whole(yard)
    yard.end(claim, OutcomeKind(kind))
    assert whole(yard) == before


def test_an_acknowledged_stop_that_comes_twice_is_answered_the_same(yard: Yard) -> None:
    """The agent gave the run back because it was told to stop; the answer was lost, and it says so again."""
    claim = take(yard, yard.offered())
    yard.on(yard.read(lambda tx: tx.run(claim.run)), operating.cancel)  # type: ignore[arg-type]
    first = yard.end(claim, OutcomeKind.RETURNED)
    assert (first.state, first.reason) == (RunState.CANCELLED, "operator")
    assert yard.end(claim, OutcomeKind.RETURNED) == first
    with pytest.raises(StaleClaim, match="has ended already: cancelled"):
        yard.end(claim, OutcomeKind.COMPLETED)


def test_start_and_heartbeat(yard: Yard) -> None:
    claim = take(yard, yard.offered())
    yard.now += 1000
    beat = yard.do(claims.renew, claim.run, claim.holder, claim.fence)
    assert (beat.go_on, beat.lease_expires_ms) == (True, yard.now + 10 * MINUTE)
    run = yard.read(lambda tx: tx.run(claim.run))
    attempt = yard.read(lambda tx: tx.attempt(claim.run, claim.fence))
    assert run is not None
    assert attempt is not None
    assert (run.state, attempt.state, attempt.started_ms) == (RunState.RUNNING, AttemptState.WORKING, yard.now)
    assert yard.do(claims.start, claim.run, claim.holder, claim.fence) == run


def test_a_stopping_agent_is_told_and_not_kept_alive(yard: Yard) -> None:
    claim = take(yard, yard.offered())
    yard.do(
        lambda tx, ctx: supervising.request_stop(
            tx, ctx, tx.run(claim.run), StopKind.CANCEL, reason="operator", message="enough", by="me"
        )
    )
    yard.now += 1000
    beat = yard.do(claims.renew, claim.run, claim.holder, claim.fence)
    assert (beat.go_on, beat.reason, beat.lease_expires_ms) == (False, "enough", claim.lease_expires_ms)


def test_usage_is_absolute(yard: Yard) -> None:
    claim = yard.running()
    for tokens in (5, 9, 9):
        yard.do(claims.report_usage, claim.run, claim.holder, claim.fence, Usage(input_tokens=tokens))
    yard.end(claim, OutcomeKind.COMPLETED)
    attempt = yard.read(lambda tx: tx.attempt(claim.run, claim.fence))
    assert attempt is not None
    assert attempt.usage == Usage(input_tokens=9)


def test_all_local_claims_of_a_dispatcher_are_renewed(yard: Yard) -> None:
    mine = yard.claimed()
    take(yard, yard.offered())
    yard.now += 1000
    assert yard.do(claims.renew_owned, OWNER) == 1
    assert yard.do(claims.renew_owned, "somebody else") == 0
    run = yard.read(lambda tx: tx.run(mine.run))
    assert run is not None
    assert run.lease_expires_ms == yard.now + 5 * MINUTE


# endings


@pytest.mark.parametrize("words", ["", "  \n"])
@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_every_end_has_a_message(yard: Yard, kind: OutcomeKind, words: str) -> None:
    claim = yard.running()
    yard.do(claims.finish, claim.run, claim.holder, claim.fence, said(kind, words))
    attempt = yard.read(lambda tx: tx.attempt(claim.run, claim.fence))
    assert attempt is not None
    assert (attempt.message, attempt.reason) == (str(kind).replace("_", " "), "agent_failed")


def test_a_message_is_cut(yard: Yard) -> None:
    run = yard.end(yard.running(), OutcomeKind.FAILED, "x" * 10_000, permanent=True)
    assert len(run.message or "") < MESSAGE_LIMIT + 10


def test_the_result_is_kept(yard: Yard) -> None:
    run = yard.end(yard.running(), OutcomeKind.COMPLETED, result={"answer": 42})
    assert run.result == {"answer": 42}
    assert yard.get(run) == run


def test_a_question_is_kept_and_its_answer_queues_the_run(yard: Yard) -> None:
    run = yard.end(yard.running(), OutcomeKind.BLOCKED, question="which?")
    assert (run.state, run.question, run.answer) == (RunState.BLOCKED, "which?", None)
    assert yard.read(lambda tx: tx.used()) == {}
    with pytest.raises(InvalidInput):
        yard.on(run, operating.answer, " ")
    answered = yard.on(run, operating.answer, "that one")
    assert (answered.state, answered.question, answered.answer) == (RunState.QUEUED, "which?", "that one")
    with pytest.raises(IllegalTransition):
        yard.on(run, operating.answer, "that one")


def test_a_deadline_goes_on_while_a_run_is_offered_again(yard: Yard) -> None:
    yard.configure(deadline_ms=10 * MINUTE)
    claim = take(yard, yard.offered())
    yard.now += 4 * MINUTE
    back = yard.end(claim, OutcomeKind.RETURNED)
    assert (back.spent_ms, back.timeout_at_ms) == (4 * MINUTE, START + 10 * MINUTE)
    yard.now += 6 * MINUTE
    yard.do(supervising.reap, 10)
    assert (yard.get(back).state, yard.get(back).reason) == (RunState.TIMED_OUT, "deadline")


def test_there_is_no_claim_on_a_run_that_waits(yard: Yard) -> None:
    with pytest.raises(StaleClaim, match="nobody holds a claim"):
        claims.claim_of(yard.submit())


def test_a_note_moves_nothing(yard: Yard) -> None:
    run = yard.submit()
    yard.on(run, claims.note, "by the way", by="me", data={"x": 1})
    event = yard.read(lambda tx: tx.events_of(run.number))[-1]
    assert (event.event, event.message, event.data, event.to_state) == ("note", "by the way", {"x": 1}, "queued")
    assert yard.get(run) == run
