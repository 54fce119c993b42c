"""What to do about a run whose time has come: the reaper's decisions."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from interlock.decide.backoff import exponential_ms
from interlock.domain.run import Run
from interlock.domain.settings import MINUTE, OnNeverClaimed, Settings
from interlock.domain.states import HELD_BY_AGENT, Reason, RunState, StopKind


class DueKind(StrEnum):
    """The possible decisions."""

    NOTHING = "nothing"
    WAKE = "wake"
    EXTEND_OFFER = "extend_offer"
    REDISPATCH = "redispatch"
    WITHDRAW = "withdraw"
    REJECT = "reject"
    TIME_OUT = "time_out"
    STOP = "stop"
    LAPSE = "lapse"


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """A decision and what goes with it. ``not_before_ms``: for a withdrawn offer, when it may be offered again."""

    kind: DueKind
    reason: Reason | None = None
    message: str = ""
    stop: StopKind | None = None
    not_before_ms: int | None = None


def decide_due(run: Run, now_ms: int, settings: Settings, *, fitting_agent_was_there: bool) -> Due:
    """What to do about ``run`` at ``now_ms``. ``fitting_agent_was_there``: a puller that takes it was seen during the offer."""
    if run.due_ms is None or run.due_ms > now_ms:
        return Due(kind=DueKind.NOTHING)
    if run.state is RunState.QUEUED:
        return Due(kind=DueKind.WAKE)
    if run.state is RunState.DISPATCHED:
        if run.timeout_at_ms is not None and run.timeout_at_ms <= now_ms:
            return Due(kind=DueKind.TIME_OUT, reason=Reason.DEADLINE, message="its deadline passed")
        if not run.pull:
            return Due(kind=DueKind.WAKE)
        return _offer_due(run, now_ms, settings, fitting_agent_was_there=fitting_agent_was_there)
    if run.state in HELD_BY_AGENT:
        return _claim_due(run, now_ms, settings)
    return Due(kind=DueKind.NOTHING)


def _offer_due(run: Run, now_ms: int, settings: Settings, *, fitting_agent_was_there: bool) -> Due:
    if not fitting_agent_was_there:
        return Due(kind=DueKind.EXTEND_OFFER)
    if run.offers < settings.budgets.max_offers:
        message = f"nobody took the offer; offered again ({run.offers + 1} of {settings.budgets.max_offers})"
        return Due(kind=DueKind.REDISPATCH, message=message)
    message = f"offered {run.offers + 1} times, and no agent took it"
    if settings.on_never_claimed is OnNeverClaimed.FAIL:
        return Due(kind=DueKind.REJECT, reason=Reason.OFFERS_EXHAUSTED, message=message)
    # Each withdrawal comes after a whole round of offers, so dispatch_count tells how many rounds there were (releases, which
    # are offers too, lengthen a wait at most).
    rounds = max(1, run.dispatch_count // (settings.budgets.max_offers + 1))
    delay = exponential_ms(rounds, MINUTE, 60 * MINUTE)
    return Due(
        kind=DueKind.WITHDRAW,
        reason=Reason.OFFERS_EXHAUSTED,
        message=message,
        not_before_ms=now_ms + delay,
    )


def _claim_due(run: Run, now_ms: int, settings: Settings) -> Due:
    if run.remote and run.lease_expires_ms is not None and run.lease_expires_ms + settings.leases.grace_ms <= now_ms:
        return Due(
            kind=DueKind.LAPSE,
            reason=Reason.LEASE_LAPSED,
            message="no heartbeat came before the lease ran out",
        )
    if run.stop is None and run.timeout_at_ms is not None and run.timeout_at_ms <= now_ms:
        by_deadline = settings.deadline_ms is not None and _spent(run, now_ms) >= settings.deadline_ms
        reason = Reason.DEADLINE if by_deadline else Reason.TIMEOUT
        return Due(
            kind=DueKind.STOP,
            stop=StopKind.TIMEOUT,
            reason=reason,
            message="its deadline passed" if by_deadline else "it ran longer than its timeout",
        )
    return Due(kind=DueKind.NOTHING)


def _spent(run: Run, now_ms: int) -> int:
    """What counts against the deadline: the time under claims, and as an offer after the first one."""
    return run.spent_ms + (now_ms - run.claimed_ms if run.claimed_ms is not None else 0)


def timeout_at(run: Run, now_ms: int, timeout_ms: int | None, deadline_ms: int | None) -> int | None:
    """When a claim that is made now has to be over: the attempt's timeout or what is left of the run's deadline."""
    ends = []
    if timeout_ms is not None:
        ends.append(now_ms + timeout_ms)
    if deadline_ms is not None:
        ends.append(now_ms + max(0, deadline_ms - _spent(run, now_ms)))
    return min(ends, default=None)
