"""What an outcome does to its run, budgets considered: the events to apply, in order, and the fields to set."""

from __future__ import annotations

from random import Random

import msgspec

from interlock.decide.backoff import equal_jitter_ms, exponential_ms, retry_delay_ms
from interlock.decide.outcome import Outcome, OutcomeKind
from interlock.domain.run import Run
from interlock.domain.settings import SECOND, OnTimeout, Settings
from interlock.domain.states import AttemptState, Reason, RunEvent

MISFIRE_BACKOFF_MS = (5 * SECOND, 300 * SECOND)
LONGEST_DEFER_MS = 366 * 86_400 * SECOND


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """How a run goes on after an attempt.

    ``attempt_event`` ends the attempt; ``events`` move the run, all in one transaction (two when the first only leads to
    where the second is legal). ``not_before_ms`` is when a queued run may go again, and ``why`` says why not sooner.
    """

    attempt_event: str
    events: tuple[RunEvent, ...]
    reason: Reason
    message: str
    failures: int
    losts: int
    defers: int
    misfires: int
    not_before_ms: int | None = None
    why: str | None = None


ATTEMPT_EVENTS = {
    OutcomeKind.COMPLETED: ("succeed", AttemptState.SUCCEEDED),
    OutcomeKind.FAILED: ("fail", AttemptState.FAILED),
    OutcomeKind.TIMED_OUT: ("time_out", AttemptState.TIMED_OUT),
    OutcomeKind.STALLED: ("stall", AttemptState.STALLED),
    OutcomeKind.CANCELLED: ("cancel", AttemptState.CANCELLED),
    OutcomeKind.CLOSED: ("interrupt", AttemptState.INTERRUPTED),
    OutcomeKind.INTERRUPTED: ("interrupt", AttemptState.INTERRUPTED),
    OutcomeKind.RETURNED: ("interrupt", AttemptState.INTERRUPTED),
    OutcomeKind.CANNOT_START: ("interrupt", AttemptState.INTERRUPTED),
    OutcomeKind.DEFERRED: ("defer", AttemptState.DEFERRED),
    OutcomeKind.BLOCKED: ("block", AttemptState.BLOCKED),
    OutcomeKind.LAPSED: ("lapse", AttemptState.LAPSED),
    OutcomeKind.LOST: ("lose", AttemptState.LOST),
}
BEFORE_ITS_START = frozenset({OutcomeKind.CANNOT_START, OutcomeKind.INTERRUPTED, OutcomeKind.RETURNED})
"""Ends that an agent may come to without having been started."""


def settle(run: Run, outcome: Outcome, settings: Settings, now_ms: int, rng: Random) -> Settlement:
    """How ``run``, claimed or running, goes on after an attempt that ended in ``outcome``."""
    kind = outcome.kind
    attempt_event = ATTEMPT_EVENTS[kind][0]
    base = Settlement(
        attempt_event=attempt_event,
        events=(),
        reason=outcome.reason,
        message=outcome.message,
        failures=run.failures,
        losts=0,
        defers=run.defers,
        misfires=run.misfires if kind in BEFORE_ITS_START else 0,
    )
    to = msgspec.structs.replace
    if kind is OutcomeKind.COMPLETED:
        return to(base, events=(RunEvent.COMPLETE,))
    if kind is OutcomeKind.CLOSED:
        return to(base, events=(RunEvent.CLOSE,))
    if kind is OutcomeKind.CANCELLED:
        return to(base, events=(RunEvent.CANCEL,))
    if kind is OutcomeKind.BLOCKED:
        return to(base, events=(RunEvent.BLOCK,))
    if kind is OutcomeKind.TIMED_OUT:
        if settings.on_timeout is OnTimeout.RETRY and outcome.reason is Reason.TIMEOUT:
            return _failed(base, run, outcome, settings, now_ms, rng)
        return to(base, events=(RunEvent.TIME_OUT,))
    if kind in (OutcomeKind.FAILED, OutcomeKind.STALLED):
        return _failed(base, run, outcome, settings, now_ms, rng)
    if kind is OutcomeKind.DEFERRED:
        return _deferred(base, run, outcome, settings, now_ms)
    if kind in (OutcomeKind.LOST, OutcomeKind.LAPSED):
        return _lost(base, run, outcome, settings, now_ms, rng)
    if kind is OutcomeKind.RETURNED:
        # The first time its slots stay and somebody else may take it at once; the second time it has to queue.
        event = RunEvent.RELEASE if run.releases == 0 else RunEvent.WITHDRAW
        return to(base, events=(event,), losts=run.losts)
    if kind is OutcomeKind.CANNOT_START:
        return _misfired(base, run, outcome, now_ms, rng, waits=run.misfires + 1)
    if outcome.reason is Reason.NOT_STARTED:
        # A restart costs nothing; a dispatcher that ends at every start is to be waited for.
        return _misfired(base, run, outcome, now_ms, rng, waits=run.misfires)
    return to(base, events=(RunEvent.WITHDRAW,), losts=run.losts)


def _misfired(base: Settlement, run: Run, outcome: Outcome, now_ms: int, rng: Random, *, waits: int) -> Settlement:
    """Nothing was started. ``waits``: which wait of a growing row this is, 0 for none."""
    to = msgspec.structs.replace
    base = to(base, events=(RunEvent.WITHDRAW,), losts=run.losts, misfires=base.misfires + 1)
    if not waits:
        return base
    delay = equal_jitter_ms(exponential_ms(waits, *MISFIRE_BACKOFF_MS), rng)
    return to(base, not_before_ms=now_ms + delay, why=outcome.message)


def _failed(base: Settlement, run: Run, outcome: Outcome, settings: Settings, now_ms: int, rng: Random) -> Settlement:
    failures = run.failures + 1
    to = msgspec.structs.replace
    if outcome.permanent:
        reason = Reason.PERMANENT_FAILURE
        return to(base, events=(RunEvent.FAIL,), failures=failures, reason=reason)
    if failures > settings.retry.max_retries:
        tries = "1 try" if failures == 1 else f"{failures} tries"
        message = f"{outcome.message} (given up after {tries})"
        return to(base, events=(RunEvent.FAIL,), failures=failures, reason=Reason.RETRIES_EXHAUSTED, message=message)
    delay = retry_delay_ms(failures, settings.retry, rng)
    why = f"retry {failures} of {settings.retry.max_retries} after: {outcome.message}"
    return to(base, events=(RunEvent.RETRY,), failures=failures, not_before_ms=now_ms + delay, why=why)


def _deferred(base: Settlement, run: Run, outcome: Outcome, settings: Settings, now_ms: int) -> Settlement:
    defers = run.defers + 1
    to = msgspec.structs.replace
    if defers > settings.budgets.max_defers:
        message = f"deferred {defers} times, the limit is {settings.budgets.max_defers}; last: {outcome.message}"
        return to(
            base,
            events=(RunEvent.DEFER, RunEvent.REJECT),
            defers=defers,
            reason=Reason.DEFERRED_TOO_OFTEN,
            message=message,
        )
    delay = outcome.delay_ms if outcome.delay_ms is not None else settings.budgets.default_defer_ms
    delay = min(max(delay, 0), LONGEST_DEFER_MS)
    return to(base, events=(RunEvent.DEFER,), defers=defers, not_before_ms=now_ms + delay, why=outcome.message)


def _lost(base: Settlement, run: Run, outcome: Outcome, settings: Settings, now_ms: int, rng: Random) -> Settlement:
    losts = run.losts + 1
    to = msgspec.structs.replace
    if losts > settings.budgets.max_losts:
        message = f"lost {losts} times in a row without progress; last: {outcome.message}"
        return to(
            base,
            events=(RunEvent.RELEASE, RunEvent.REJECT),
            losts=losts,
            reason=Reason.LOST_TOO_OFTEN,
            message=message,
        )
    # The first loss is most likely the machine's doing and goes on at once; a repeated one waits longer each time.
    delay = equal_jitter_ms(exponential_ms(losts - 1, SECOND, 60 * SECOND), rng)
    if not delay:
        return to(base, events=(RunEvent.RELEASE,), losts=losts)
    return to(base, events=(RunEvent.RELEASE,), losts=losts, not_before_ms=now_ms + delay, why=outcome.message)
