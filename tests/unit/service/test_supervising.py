"""What the system itself does to runs: deadlines that pass, stops, takeovers, downtime, steps of the clock."""

from __future__ import annotations

from typing import Any

import pytest
from yard import OWNER, START, Yard

from interlock.decide.outcome import OutcomeKind
from interlock.decide.staleness import DueKind
from interlock.domain.puller import Puller
from interlock.domain.run import Claim, Run
from interlock.domain.settings import MINUTE, SECOND, Limits, Mode, OnNeverClaimed, OnTimeout
from interlock.domain.states import RunState, StopKind
from interlock.service import claims, operating, supervising
from interlock.service.claims import claim_of

EPOCH = ("boot", 1000)


def reap(yard: Yard) -> list[DueKind]:
    return [reaped.due.kind for reaped in yard.do(supervising.reap, 100)]


def remote(yard: Yard, holder: str = "h") -> Claim:
    claim: Claim = yard.on(yard.offered(), claims.claim_offer, holder=holder)
    return claim


def run_of(yard: Yard, claim: Claim) -> Run:
    run = yard.read(lambda tx: tx.run(claim.run))
    assert run is not None
    return run


# the reaper


def test_a_run_whose_time_has_come_is_woken(yard: Yard) -> None:
    run = yard.submit(not_before_ms=START + 500)
    assert (run.ready, run.due_ms, yard.started()) == (False, START + 500, [])
    assert yard.read(lambda tx: tx.next_due_ms()) == START + 500
    yard.now += 500
    assert reap(yard) == [DueKind.WAKE]
    assert yard.started() == [run.number]


def test_nothing_is_due_before_its_time(yard: Yard) -> None:
    yard.submit(not_before_ms=START + 500)
    yard.claimed()
    yard.now += 499
    assert reap(yard) == []


def test_a_lapsed_lease_offers_the_run_to_others(yard: Yard) -> None:
    claim = remote(yard)
    yard.now += 10 * MINUTE + 5 * SECOND - 1
    assert reap(yard) == []
    yard.now += 1
    assert reap(yard) == [DueKind.LAPSE]
    run = run_of(yard, claim)
    assert (run.state, run.pull, run.losts, run.holder) == (RunState.DISPATCHED, True, 1, None)
    attempt = yard.read(lambda tx: tx.attempt(claim.run, 1))
    assert attempt is not None
    assert (attempt.state, attempt.reason) == ("lapsed", "lease_lapsed")


def test_a_renewal_that_commits_first_wins(yard: Yard) -> None:
    claim = remote(yard)
    yard.now += 11 * MINUTE
    assert yard.do(claims.renew, claim.run, claim.holder, claim.fence).go_on
    assert reap(yard) == []


def test_a_local_claim_is_never_moved_by_its_lease(yard: Yard) -> None:
    claim = yard.claimed()
    yard.now += 59 * MINUTE
    assert reap(yard) == []
    assert run_of(yard, claim).state is RunState.CLAIMED


def test_a_timeout_is_an_intent_first(yard: Yard) -> None:
    claim = yard.claimed(timeout_ms=1000)
    yard.now += 1000
    assert reap(yard) == [DueKind.STOP]
    run = run_of(yard, claim)
    assert run.state is RunState.CLAIMED
    assert run.stop is not None
    assert (run.stop.kind, run.stop.reason) == (StopKind.TIMEOUT, "timeout")
    assert reap(yard) == []
    assert yard.read(lambda tx: [one.number for one in tx.stopping(OWNER)]) == [claim.run]


def test_an_offer_waits_for_ever_while_nobody_fits(yard: Yard) -> None:
    offer = yard.offered(type="review")
    yard.do(lambda tx, ctx: tx.put_puller(Puller(holder="h", agent="other", types=()), ctx.now_ms))
    yard.do(lambda tx, ctx: tx.put_puller(Puller(holder="i", agent="a", types=("build",)), ctx.now_ms))
    for _ in range(10):
        yard.now += 5 * MINUTE
        assert reap(yard) == [DueKind.EXTEND_OFFER]
    assert yard.get(offer).offers == 0


@pytest.mark.parametrize("policy", list(OnNeverClaimed))
def test_an_offer_that_nobody_takes_is_made_again_and_then_withdrawn(yard: Yard, policy: OnNeverClaimed) -> None:
    yard.configure(on_never_claimed=policy)
    offer = yard.offered()
    for wait in (5, 10, 20):
        yard.now += wait * MINUTE
        yard.do(lambda tx, ctx: tx.put_puller(Puller(holder="h", agent=None, types=()), ctx.now_ms))
        assert reap(yard) == [DueKind.REDISPATCH]
    yard.now += 40 * MINUTE
    yard.do(lambda tx, ctx: tx.put_puller(Puller(holder="h", agent=None, types=()), ctx.now_ms))
    reap(yard)
    run = yard.get(offer)
    if policy is OnNeverClaimed.FAIL:
        assert (run.state, run.reason) == (RunState.FAILED, "offers_exhausted")
    else:
        assert (run.state, run.not_before_ms) == (RunState.QUEUED, yard.now + MINUTE)
        assert run.not_before_why == "offered 4 times, and no agent took it"
    assert yard.read(lambda tx: tx.used()) == {}


def test_who_came_early_and_never_again_may_be_gone(yard: Yard) -> None:
    yard.offered()
    yard.do(lambda tx, ctx: tx.put_puller(Puller(holder="h", agent=None, types=()), ctx.now_ms))
    yard.now += 5 * MINUTE
    assert reap(yard) == [DueKind.EXTEND_OFFER]
    yard.now += 150 * SECOND
    yard.do(lambda tx, ctx: tx.put_puller(Puller(holder="h", agent=None, types=()), ctx.now_ms))
    yard.now += 150 * SECOND
    assert reap(yard) == [DueKind.REDISPATCH]


def test_an_agent_that_has_all_it_may_have_was_not_there(yard: Yard) -> None:
    """Its next claim would be turned away: that nobody took the offer says nothing about the offer."""
    yard.configure(limits=Limits(total=100, per_agent={"b": 1}), default_agent=None)
    first, offer = yard.offered(), yard.offered()
    claim = yard.on(first, claims.claim_offer, holder="h", agent="b")
    for expected in (DueKind.EXTEND_OFFER, DueKind.REDISPATCH):
        yard.now += 5 * MINUTE
        yard.do(claims.renew, claim.run, claim.holder, claim.fence)
        yard.do(lambda tx, ctx: tx.put_puller(Puller(holder="h", agent="b", types=()), ctx.now_ms))
        assert reap(yard) == [expected]
        if expected is DueKind.EXTEND_OFFER:
            yard.end(claim, OutcomeKind.COMPLETED)
            claim = yard.on(yard.offered("other", agent="c"), claims.claim_offer, holder="i", agent="c")
    assert yard.get(offer).offers == 1


def test_agents_that_came_long_ago_are_forgotten(yard: Yard) -> None:
    yard.do(lambda tx, ctx: tx.put_puller(Puller(holder="old", agent=None, types=()), ctx.now_ms))
    yard.now += 3_600_000
    yard.do(lambda tx, ctx: tx.put_puller(Puller(holder="new", agent=None, types=()), ctx.now_ms))
    yard.now += 1
    catch_up(yard)
    assert [puller.holder for puller in yard.read(lambda tx: tx.pullers_since(0))] == ["new"]


def test_the_deadline_counts_claims_and_the_offers_after_them(yard: Yard) -> None:
    yard.configure(deadline_ms=60 * MINUTE, timeout_ms=600 * MINUTE)
    offer = yard.offered()
    yard.now += 5 * MINUTE
    claim = yard.on(offer, claims.claim_offer, holder="h", lease_ms=60 * MINUTE)
    yard.now += 10 * MINUTE
    run = yard.end(claim, OutcomeKind.RETURNED)
    assert (run.state, run.spent_ms, run.timeout_at_ms) == (RunState.DISPATCHED, 10 * MINUTE, yard.now + 50 * MINUTE)
    yard.now += 20 * MINUTE
    claim = yard.on(run, claims.claim_offer, holder="i", lease_ms=60 * MINUTE)
    assert run_of(yard, claim).spent_ms == 30 * MINUTE
    assert run_of(yard, claim).timeout_at_ms == yard.now + 30 * MINUTE
    run = yard.end(claim, OutcomeKind.BLOCKED)
    yard.now += 600 * MINUTE
    yard.on(run, operating.answer, "yes")
    yard.now += 600 * MINUTE
    yard.configure(mode=Mode.PULL)
    assert yard.started() == [run.number]
    assert yard.get(run).timeout_at_ms == yard.now + 30 * MINUTE
    yard.now += 30 * MINUTE
    assert reap(yard)[0] in (DueKind.TIME_OUT, DueKind.EXTEND_OFFER)
    assert (yard.get(run).state, yard.get(run).spent_ms) == (RunState.TIMED_OUT, 60 * MINUTE)


# stops


@pytest.mark.parametrize(
    ("kind", "state", "reason"),
    [
        ("cancel", RunState.CANCELLED, "operator"),
        ("close", RunState.COMPLETED, "external_completion"),
        ("interrupt", RunState.QUEUED, "interrupted"),
        ("stall", RunState.QUEUED, "stalled"),
        ("timeout", RunState.TIMED_OUT, "timeout"),
    ],
)
@pytest.mark.parametrize("end", ["acknowledged", "lapsed", "forgotten"])
def test_a_stop_moves_the_run_once_its_agent_is_gone(
    yard: Yard, kind: str, state: RunState, reason: str, end: str
) -> None:
    claim = remote(yard)
    _stop(yard, claim, kind)
    assert run_of(yard, claim).state is RunState.CLAIMED
    assert yard.read(lambda tx: tx.used())["global"] == 1
    if end == "acknowledged":
        yard.end(claim, OutcomeKind.RETURNED)
    elif end == "lapsed":
        yard.now += 11 * MINUTE
        assert reap(yard) == [DueKind.LAPSE]
    else:
        yard.on(run_of(yard, claim), supervising.forget_process, by="me")
    run = run_of(yard, claim)
    assert (run.state, run.reason, run.stop) == (state, reason, None)
    assert yard.read(lambda tx: tx.used()) == {}


def _stop(yard: Yard, claim: Claim, kind: str) -> None:
    how: dict[str, Any] = {"reason": kind, "message": "because", "by": "me"}
    if kind == "cancel":
        how["reason"] = "operator"
    yard.on(run_of(yard, claim), supervising.request_stop, StopKind(kind), **how)


@pytest.mark.parametrize("kind", [StopKind.INTERRUPT, StopKind.STALL, StopKind.TIMEOUT])
@pytest.mark.parametrize(
    ("wish", "state"), [(operating.cancel, RunState.CANCELLED), (operating.close, RunState.COMPLETED)]
)
def test_a_cancel_behind_another_intent_is_not_lost(yard: Yard, kind: StopKind, wish: Any, state: RunState) -> None:
    yard.configure(on_timeout=OnTimeout.RETRY)
    claim = yard.running()
    run = run_of(yard, claim)
    yard.on(run, supervising.request_stop, kind, reason="r", message="first", by="me")
    named = {"by": "me"} if wish is operating.close else {}
    yard.on(run, wish, **named)
    stopped = {
        StopKind.INTERRUPT: OutcomeKind.INTERRUPTED,
        StopKind.STALL: OutcomeKind.STALLED,
        StopKind.TIMEOUT: OutcomeKind.TIMED_OUT,
    }[kind]
    ended = yard.end(claim, stopped)
    assert ended.state is state
    assert ended.message


def test_the_first_intent_stands(yard: Yard) -> None:
    claim = yard.claimed()
    yard.on(run_of(yard, claim), operating.cancel, message="first")
    first = run_of(yard, claim).stop
    yard.now += 1
    yard.on(run_of(yard, claim), operating.interrupt, by="me", message="second")
    yard.on(run_of(yard, claim), operating.close, by="me")
    assert run_of(yard, claim).stop == first
    assert [event.event for event in yard.read(lambda tx: tx.events_of(claim.run))].count("stop") == 1


def test_an_intent_without_words_gets_some(yard: Yard) -> None:
    claim = yard.claimed()
    yard.on(run_of(yard, claim), operating.cancel, message=" ")
    stop = run_of(yard, claim).stop
    assert stop is not None
    assert stop.message == "cancel by operator"


def test_forgetting_the_process_of_a_run_that_has_none_changes_nothing(yard: Yard) -> None:
    run = yard.submit()
    assert yard.on(run, supervising.forget_process, by="me") == run


# takeover


def test_a_claim_is_taken_over_in_the_same_attempt(yard: Yard) -> None:
    claim = yard.running()
    yard.now += 1000
    adopted = yard.do(supervising.adopt, claim.run, old_owner=OWNER, new_owner="other")
    assert adopted is not None
    assert (adopted.owner, adopted.owner_epoch, adopted.fence) == ("other", 2, claim.fence)
    assert adopted.lease_expires_ms == yard.now + 5 * MINUTE
    assert yard.do(supervising.adopt, claim.run, old_owner=OWNER, new_owner="third") is None
    # The agent's own token is as good as before.
    assert yard.end(claim, OutcomeKind.COMPLETED).state is RunState.COMPLETED


def test_remote_and_ended_claims_are_not_taken_over(yard: Yard) -> None:
    claim = remote(yard)
    assert yard.do(supervising.adopt, claim.run, old_owner="", new_owner="other") is None
    done = yard.bring("completed")
    assert yard.do(supervising.adopt, done.number, old_owner=OWNER, new_owner="other") is None
    assert yard.do(supervising.adopt, 999, old_owner=OWNER, new_owner="other") is None


# downtime and the clock


def catch_up(yard: Yard, *, threshold: int = 0, epoch: tuple[str, int] = EPOCH) -> int:
    shifted: int = yard.do(supervising.catch_up, epoch=epoch, threshold_ms=threshold)
    return shifted


def test_downtime_counts_against_nobody(yard: Yard) -> None:
    catch_up(yard)
    held = remote(yard)
    local = yard.claimed()
    later = yard.submit(not_before_ms=START + 30 * MINUTE)
    before = [run_of(yard, held), run_of(yard, local)]
    yard.now += 600 * MINUTE
    assert catch_up(yard) == 600 * MINUTE
    for old, new in zip(before, [run_of(yard, held), run_of(yard, local)], strict=True):
        for name in ("lease_expires_ms", "timeout_at_ms", "claimed_ms", "due_ms"):
            then, now = getattr(old, name), getattr(new, name)
            assert (then is None and now is None) or now == then + 600 * MINUTE
    assert yard.get(later).not_before_ms == START + 30 * MINUTE
    assert reap(yard) == [DueKind.WAKE]
    assert catch_up(yard) == 0


def test_a_short_silence_is_no_downtime(yard: Yard) -> None:
    catch_up(yard)
    yard.now += 5000
    assert catch_up(yard, threshold=5000) == 0
    yard.now += 5001
    assert catch_up(yard, threshold=5000) == 5001


@pytest.mark.parametrize("step", [3600 * SECOND, -3600 * SECOND])
def test_a_step_of_the_clock_takes_everything_along(yard: Yard, step: int) -> None:
    catch_up(yard)
    held = remote(yard)
    failed = yard.claimed()
    waiting = yard.end(failed, OutcomeKind.DEFERRED)
    yard.on(waiting, operating.hold)
    asked_for = yard.submit(not_before_ms=START + 30 * MINUTE)
    lost = yard.claimed()
    yard.end(lost, OutcomeKind.LOST)
    yard.dispatch()
    yard.end(claim_of(run_of(yard, lost)), OutcomeKind.LOST)
    backoff = run_of(yard, lost)
    assert backoff.not_before_ms is not None
    lease = run_of(yard, held).lease_expires_ms
    assert lease is not None
    tried = yard.do(operating.agent_cannot_start, "a", "it is not there").retry_ms
    yard.now += step
    assert catch_up(yard, epoch=("boot", 1000 + step)) == step
    assert run_of(yard, held).lease_expires_ms == lease + step
    assert waiting.not_before_ms is not None
    assert yard.get(waiting).not_before_ms == waiting.not_before_ms + step, "a held one as well"
    assert run_of(yard, lost).not_before_ms == backoff.not_before_ms + step
    assert run_of(yard, lost).due_ms == backoff.not_before_ms + step
    assert yard.get(asked_for).not_before_ms == START + 30 * MINUTE
    assert yard.read(lambda tx: tx.healths())["a"].retry_ms == tried + step
    assert catch_up(yard, epoch=("boot", 1000 + step)) == 0


def test_downtime_does_not_prolong_the_backoff_of_a_lost_run(yard: Yard) -> None:
    catch_up(yard)
    claim = yard.claimed()
    yard.end(claim, OutcomeKind.LOST)
    yard.dispatch()
    yard.end(claim_of(run_of(yard, claim)), OutcomeKind.LOST)
    due = run_of(yard, claim).due_ms
    assert due is not None
    yard.now += 600 * MINUTE
    catch_up(yard)
    assert run_of(yard, claim).due_ms is None, "its backoff has passed"
    assert yard.started() == [claim.run]


def test_another_boot_is_no_step(yard: Yard) -> None:
    catch_up(yard)
    assert catch_up(yard, epoch=("another", 9_999_999)) == 0


def test_a_clock_that_a_boot_set_back_takes_backoffs_along(yard: Yard) -> None:
    """Which step it was nobody saw; that time does not run backwards tells enough."""
    catch_up(yard)
    lost = yard.claimed()
    yard.end(lost, OutcomeKind.LOST)
    yard.dispatch()
    yard.end(claim_of(run_of(yard, lost)), OutcomeKind.LOST)
    backoff = run_of(yard, lost).not_before_ms
    assert backoff is not None
    tried = yard.do(operating.agent_cannot_start, "a", "it is not there").retry_ms
    yard.now -= 60 * MINUTE
    assert catch_up(yard, epoch=("another", 0)) == -60 * MINUTE
    assert run_of(yard, lost).not_before_ms == backoff - 60 * MINUTE
    assert run_of(yard, lost).due_ms == backoff - 60 * MINUTE
    assert yard.read(lambda tx: tx.healths())["a"].retry_ms == tried - 60 * MINUTE


@pytest.mark.parametrize("boot", ["boot", "another"])
def test_an_agent_that_went_before_the_clock_was_set_back_is_gone(yard: Yard, boot: str) -> None:
    catch_up(yard)
    offer = yard.offered()
    yard.do(lambda tx, ctx: tx.put_puller(Puller(holder="h"), ctx.now_ms))
    yard.now -= 60 * MINUTE
    catch_up(yard, epoch=(boot, 1000 - 60 * MINUTE))
    yard.now += 5 * MINUTE
    assert reap(yard) == [DueKind.EXTEND_OFFER]
    assert yard.get(offer).offers == 0
