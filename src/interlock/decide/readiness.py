"""What follows from a run's fields: whether it may be dispatched, and when the system has to look at it next."""

from __future__ import annotations

import msgspec

from interlock.domain.run import Run
from interlock.domain.settings import Settings
from interlock.domain.states import HELD_BY_AGENT, RunState


def is_ready(run: Run, now_ms: int) -> bool:
    """Queued, not held, every need met, and its time has come."""
    return (
        run.state is RunState.QUEUED
        and not run.held
        and run.needs_left == 0
        and (run.not_before_ms is None or run.not_before_ms <= now_ms)
    )


def next_due_ms(run: Run, now_ms: int, settings: Settings) -> int | None:
    """When the reaper has to look at this run next (Unix ms), if nothing else happens before."""
    if run.state is RunState.QUEUED:
        if run.held or run.needs_left or run.not_before_ms is None or run.not_before_ms <= now_ms:
            return None
        return run.not_before_ms
    if run.state is RunState.DISPATCHED:
        due = run.timeout_at_ms
        if run.pull and run.offered_ms is not None:
            claim_by = run.offered_ms + offer_timeout_ms(run.offers, settings)
            due = claim_by if due is None else min(due, claim_by)
        elif run.not_before_ms is not None and run.not_before_ms > now_ms:
            due = run.not_before_ms if due is None else min(due, run.not_before_ms)
        return due
    if run.state in HELD_BY_AGENT:
        dues: list[int] = []
        if run.stop is None and run.timeout_at_ms is not None:
            dues.append(run.timeout_at_ms)
        if run.remote and run.lease_expires_ms is not None:
            dues.append(run.lease_expires_ms + settings.leases.grace_ms)
        return min(dues, default=None)
    return None


def offer_timeout_ms(offers: int, settings: Settings) -> int:
    """How long an offer stays open; doubles with each that nobody took."""
    return settings.leases.claim_timeout_ms << min(offers, 10)


def derived(run: Run, now_ms: int, settings: Settings) -> Run:
    """``run`` with ``ready``, ``due_ms`` and ``updated_ms`` as its other fields imply."""
    ready = is_ready(run, now_ms)
    return msgspec.structs.replace(run, ready=ready, due_ms=next_due_ms(run, now_ms, settings), updated_ms=now_ms)
