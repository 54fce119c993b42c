"""What is done about a run whose time has come."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from interlock.decide.staleness import Due, DueKind, decide_due, timeout_at
from interlock.domain.run import Run, Stop
from interlock.domain.settings import MINUTE, Budgets, Leases, OnNeverClaimed, Settings
from interlock.domain.states import Reason, RunState, StopKind
from interlock.domain.task import Task

NOW = 10_000_000
SETTINGS = Settings(leases=Leases(grace_ms=100), budgets=Budgets(max_offers=3))
STOP = Stop(kind=StopKind.CANCEL, reason="operator", message="m", by="me", at_ms=1)


def run(state: RunState, **fields: Any) -> Run:
    whole = {"due_ms": NOW, **fields}
    return msgspec.structs.replace(Run(number=1, id="r", state=state, task=Task(title="t"), content_hash=""), **whole)


def decided(run: Run, *, settings: Settings = SETTINGS, there: bool = True) -> Due:
    return decide_due(run, NOW, settings, fitting_agent_was_there=there)


OFFER = {"pull": True, "offered_ms": NOW - 5 * MINUTE}
REMOTE = {"remote": True, "holder": "h", "claimed_ms": NOW - MINUTE}


@pytest.mark.parametrize(
    ("state", "fields", "there", "expected"),
    [
        (RunState.QUEUED, {"due_ms": NOW + 1}, True, DueKind.NOTHING),
        (RunState.QUEUED, {"due_ms": None}, True, DueKind.NOTHING),
        (RunState.QUEUED, {}, True, DueKind.WAKE),
        (RunState.DISPATCHED, {}, True, DueKind.WAKE),
        (RunState.DISPATCHED, {"timeout_at_ms": NOW}, True, DueKind.TIME_OUT),
        (RunState.DISPATCHED, {"timeout_at_ms": NOW + 1}, True, DueKind.WAKE),
        (RunState.DISPATCHED, OFFER, False, DueKind.EXTEND_OFFER),
        (RunState.DISPATCHED, OFFER, True, DueKind.REDISPATCH),
        (RunState.DISPATCHED, {**OFFER, "offers": 2}, True, DueKind.REDISPATCH),
        (RunState.DISPATCHED, {**OFFER, "offers": 3}, True, DueKind.WITHDRAW),
        (RunState.DISPATCHED, {**OFFER, "offers": 3}, False, DueKind.EXTEND_OFFER),
        (RunState.DISPATCHED, {**OFFER, "timeout_at_ms": NOW}, False, DueKind.TIME_OUT),
        (RunState.RUNNING, {**REMOTE, "lease_expires_ms": NOW - 100}, True, DueKind.LAPSE),
        (RunState.RUNNING, {**REMOTE, "lease_expires_ms": NOW - 99}, True, DueKind.NOTHING),
        (RunState.CLAIMED, {**REMOTE, "lease_expires_ms": NOW - 100, "stop": STOP}, True, DueKind.LAPSE),
        (RunState.CLAIMED, {**REMOTE, "lease_expires_ms": NOW - 100, "timeout_at_ms": NOW}, True, DueKind.LAPSE),
        (RunState.RUNNING, {"lease_expires_ms": 0, "claimed_ms": 0}, True, DueKind.NOTHING),
        (RunState.RUNNING, REMOTE, True, DueKind.NOTHING),
        (RunState.RUNNING, {"timeout_at_ms": NOW + 1, "claimed_ms": 0}, True, DueKind.NOTHING),
        (RunState.RUNNING, {"timeout_at_ms": NOW, "claimed_ms": 0}, True, DueKind.STOP),
        (RunState.RUNNING, {"timeout_at_ms": NOW, "claimed_ms": 0, "stop": STOP}, True, DueKind.NOTHING),
        (RunState.BLOCKED, {"timeout_at_ms": NOW}, True, DueKind.NOTHING),
        (RunState.COMPLETED, {**REMOTE, "lease_expires_ms": NOW - 100}, True, DueKind.NOTHING),
    ],
)
def test_the_decision(state: RunState, fields: dict[str, Any], there: bool, expected: DueKind) -> None:
    assert decided(run(state, **fields), there=there).kind is expected


def test_a_decision_says_only_what_goes_with_it() -> None:
    assert msgspec.structs.asdict(decided(run(RunState.QUEUED))) == {
        "kind": DueKind.WAKE,
        "reason": None,
        "message": "",
        "stop": None,
        "not_before_ms": None,
    }


def test_an_offer_says_how_often_it_was_made() -> None:
    due = decided(run(RunState.DISPATCHED, **OFFER, offers=1))
    assert due == Due(kind=DueKind.REDISPATCH, message="nobody took the offer; offered again (2 of 3)")


def test_an_offer_that_nobody_took_may_end_the_run() -> None:
    settings = msgspec.structs.replace(SETTINGS, on_never_claimed=OnNeverClaimed.FAIL)
    due = decided(run(RunState.DISPATCHED, **OFFER, offers=3), settings=settings)
    assert due == Due(
        kind=DueKind.REJECT, reason=Reason.OFFERS_EXHAUSTED, message="offered 4 times, and no agent took it"
    )


def test_an_offer_that_nobody_took_waits_before_it_is_made_again() -> None:
    # More offers may be allowed today than were made: it has waited for a whole round nevertheless.
    due = decided(run(RunState.DISPATCHED, **OFFER, offers=3, dispatch_count=1))
    assert due == Due(
        kind=DueKind.WITHDRAW,
        reason=Reason.OFFERS_EXHAUSTED,
        message="offered 4 times, and no agent took it",
        not_before_ms=NOW + MINUTE,
    )


def test_a_deadline_ends_an_offer() -> None:
    due = decided(run(RunState.DISPATCHED, timeout_at_ms=NOW))
    assert due == Due(kind=DueKind.TIME_OUT, reason=Reason.DEADLINE, message="its deadline passed")


def test_a_lease_that_ran_out_lapses() -> None:
    due = decided(run(RunState.RUNNING, **REMOTE, lease_expires_ms=NOW - 100))
    assert due == Due(
        kind=DueKind.LAPSE, reason=Reason.LEASE_LAPSED, message="no heartbeat came before the lease ran out"
    )


def test_withdrawn_offers_wait_longer_each_round() -> None:
    waits = []
    for rounds in range(1, 10):
        offered = run(RunState.DISPATCHED, **OFFER, offers=3, dispatch_count=4 * rounds)
        due = decided(offered)
        assert due.not_before_ms is not None
        waits.append((due.not_before_ms - NOW) // MINUTE)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_the_deadline_is_told_from_the_timeout() -> None:
    settings = msgspec.structs.replace(SETTINGS, deadline_ms=1000)
    late = run(RunState.RUNNING, timeout_at_ms=NOW, claimed_ms=NOW - 400, spent_ms=600)
    assert decided(late, settings=settings) == Due(
        kind=DueKind.STOP, stop=StopKind.TIMEOUT, reason=Reason.DEADLINE, message="its deadline passed"
    )
    early = msgspec.structs.replace(late, spent_ms=599)
    assert decided(early, settings=settings) == Due(
        kind=DueKind.STOP, stop=StopKind.TIMEOUT, reason=Reason.TIMEOUT, message="it ran longer than its timeout"
    )
    assert decided(late).reason is Reason.TIMEOUT, "without a deadline it is the timeout"


@pytest.mark.parametrize(
    ("timeout", "deadline", "spent", "ends"),
    [
        (None, None, 0, None),
        (50, None, 0, NOW + 50),
        (50, 30, 0, NOW + 30),
        (50, 90, 0, NOW + 50),
        (50, 90, 60, NOW + 30),
        (50, 90, 100, NOW),
    ],
)
def test_whichever_comes_first(timeout: int | None, deadline: int | None, spent: int, ends: int | None) -> None:
    assert timeout_at(run(RunState.DISPATCHED, spent_ms=spent), NOW, timeout, deadline) == ends
    if spent:
        counting = run(RunState.DISPATCHED, spent_ms=spent - 10, claimed_ms=NOW - 10)
        assert timeout_at(counting, NOW, timeout, deadline) == ends
