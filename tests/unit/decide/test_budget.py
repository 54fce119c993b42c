"""What an outcome does to its run, budgets considered."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.decide.budget import ATTEMPT_EVENTS, LONGEST_DEFER_MS, Settlement, settle
from interlock.decide.outcome import Outcome, OutcomeKind
from interlock.domain.run import Run
from interlock.domain.settings import Budgets, OnTimeout, Retry, Settings
from interlock.domain.states import Reason, RunEvent, RunState
from interlock.domain.task import Task
from interlock.machines.table import ATTEMPT, RUN

NOW = 1_000_000
RUNNING = Run(
    number=1, id="r1", state=RunState.RUNNING, task=Task(title="t"), content_hash="", fence=1, holder="h", claimed_ms=0
)
SETTINGS = Settings(retry=Retry(max_retries=3), budgets=Budgets(max_losts=2, max_defers=2))


def settled(
    kind: OutcomeKind,
    *,
    settings: Settings = SETTINGS,
    reason: Reason = Reason.AGENT_FAILED,
    seed: int = 1,
    **given_: Any,
) -> Settlement:
    of_outcome = {name: given_.pop(name) for name in ("permanent", "delay_ms") if name in given_}
    run = msgspec.structs.replace(RUNNING, **given_)
    outcome = Outcome(kind=kind, reason=reason, message="so it is", **of_outcome)
    return settle(run, outcome, settings, NOW, Random(seed))


def test_every_end_of_an_attempt_has_its_event() -> None:
    assert ATTEMPT_EVENTS.keys() == set(OutcomeKind)
    for event, state in ATTEMPT_EVENTS.values():
        assert ATTEMPT.target(ATTEMPT.initial, event) is state
        assert state in ATTEMPT.final


@given(
    st.sampled_from(list(OutcomeKind)),
    st.sampled_from([RunState.CLAIMED, RunState.RUNNING]),
    st.integers(0, 5),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from(list(OnTimeout)),
    st.none() | st.integers(-5, 2**70),
    st.integers(),
)
def test_whatever_comes_is_legal_and_explained(
    kind: OutcomeKind,
    state: RunState,
    failures: int,
    losts: int,
    defers: int,
    releases: int,
    permanent: bool,
    on_timeout: OnTimeout,
    delay_ms: int | None,
    seed: int,
) -> None:
    settings = msgspec.structs.replace(SETTINGS, on_timeout=on_timeout)
    found = settled(
        kind,
        settings=settings,
        seed=seed,
        reason=Reason.TIMEOUT,
        state=state,
        failures=failures,
        losts=losts,
        defers=defers,
        releases=releases,
        permanent=permanent,
        delay_ms=delay_ms,
    )
    for event in found.events:
        state = RUN.target(state, event)
    assert found.events
    assert found.message.strip()
    if found.not_before_ms is not None:
        assert state in (RunState.QUEUED, RunState.DISPATCHED)
        assert found.why, "a wait says why"
        assert NOW <= found.not_before_ms <= NOW + LONGEST_DEFER_MS
    assert found.failures - failures in (0, 1)
    assert found.defers - defers in (0, 1)


def test_as_many_retries_as_configured() -> None:
    for failures in range(3):
        found = settled(OutcomeKind.FAILED, failures=failures)
        assert found.events == (RunEvent.RETRY,)
        assert found.failures == failures + 1
        assert found.why == f"retry {failures + 1} of 3 after: so it is"
        wait = 10_000 * 2**failures
        assert found.not_before_ms is not None
        assert wait // 2 <= found.not_before_ms - NOW <= wait
    found = settled(OutcomeKind.FAILED, failures=3)
    assert (found.events, found.reason) == ((RunEvent.FAIL,), Reason.RETRIES_EXHAUSTED)
    assert found.message == "so it is (given up after 4 tries)"
    none = msgspec.structs.replace(SETTINGS, retry=Retry(max_retries=0))
    assert settled(OutcomeKind.FAILED, settings=none).message == "so it is (given up after 1 try)"


def test_a_permanent_failure_is_not_tried_again() -> None:
    found = settled(OutcomeKind.FAILED, permanent=True)
    assert (found.events, found.reason) == ((RunEvent.FAIL,), Reason.PERMANENT_FAILURE)


@pytest.mark.parametrize("kind", [OutcomeKind.STALLED, OutcomeKind.FAILED])
def test_a_stall_is_a_failure(kind: OutcomeKind) -> None:
    assert settled(kind).failures == 1


def test_a_timeout_ends_the_run_or_counts_as_a_failure() -> None:
    retry = msgspec.structs.replace(SETTINGS, on_timeout=OnTimeout.RETRY)
    timeout, deadline = {"reason": Reason.TIMEOUT}, {"reason": Reason.DEADLINE}
    assert settled(OutcomeKind.TIMED_OUT, **timeout).events == (RunEvent.TIME_OUT,)
    assert settled(OutcomeKind.TIMED_OUT, settings=retry, **timeout).events == (RunEvent.RETRY,)
    assert settled(OutcomeKind.TIMED_OUT, settings=retry, **deadline).events == (RunEvent.TIME_OUT,)
    assert settled(OutcomeKind.TIMED_OUT, settings=retry, failures=3, **timeout).events == (RunEvent.FAIL,)


def test_the_first_loss_goes_on_at_once_and_later_ones_wait() -> None:
    first = settled(OutcomeKind.LOST)
    assert (first.events, first.losts, first.not_before_ms) == ((RunEvent.RELEASE,), 1, None)
    second = settled(OutcomeKind.LOST, losts=1)
    assert second.not_before_ms is not None
    assert 500 <= second.not_before_ms - NOW <= 1000
    assert second.why == "so it is"
    third = settled(OutcomeKind.LAPSED, losts=2)
    assert (third.events, third.reason) == ((RunEvent.RELEASE, RunEvent.REJECT), Reason.LOST_TOO_OFTEN)
    assert "3 times in a row" in third.message


@pytest.mark.parametrize("kind", [OutcomeKind.FAILED, OutcomeKind.DEFERRED, OutcomeKind.BLOCKED])
def test_progress_forgives_losses(kind: OutcomeKind) -> None:
    assert settled(kind, losts=2).losts == 0


@pytest.mark.parametrize("kind", [OutcomeKind.INTERRUPTED, OutcomeKind.CANNOT_START, OutcomeKind.RETURNED])
def test_what_costs_nothing(kind: OutcomeKind) -> None:
    found = settled(kind, failures=2, losts=1, defers=1)
    assert (found.failures, found.losts, found.defers) == (2, 1, 1)


def test_given_back_once_is_offered_at_once_and_then_queued() -> None:
    assert settled(OutcomeKind.RETURNED).events == (RunEvent.RELEASE,)
    assert settled(OutcomeKind.RETURNED, releases=1).events == (RunEvent.WITHDRAW,)


def test_a_deferral_waits_as_long_as_the_agent_says() -> None:
    assert settled(OutcomeKind.DEFERRED).not_before_ms == NOW + 60_000
    assert settled(OutcomeKind.DEFERRED, delay_ms=5).not_before_ms == NOW + 5
    assert settled(OutcomeKind.DEFERRED, delay_ms=-5).not_before_ms == NOW
    assert settled(OutcomeKind.DEFERRED, delay_ms=2**70).not_before_ms == NOW + LONGEST_DEFER_MS
    found = settled(OutcomeKind.DEFERRED, defers=2)
    assert (found.events, found.reason) == ((RunEvent.DEFER, RunEvent.REJECT), Reason.DEFERRED_TOO_OFTEN)


def test_an_agent_that_cannot_start_backs_off() -> None:
    found = settled(OutcomeKind.CANNOT_START)
    assert found.events == (RunEvent.WITHDRAW,)
    assert found.not_before_ms is not None
    assert 2500 <= found.not_before_ms - NOW <= 5000
    assert found.why == "so it is"


def test_starts_that_fail_in_a_row_wait_longer_each_time() -> None:
    for misfires, longest in ((0, 5), (1, 10), (2, 20), (5, 160), (6, 300), (10_000, 300)):
        found = settled(OutcomeKind.CANNOT_START, misfires=misfires)
        assert found.misfires == misfires + 1
        assert found.not_before_ms is not None
        assert longest * 500 <= found.not_before_ms - NOW <= longest * 1000


def test_a_restart_costs_nothing_and_restarts_in_a_row_wait() -> None:
    first = settled(OutcomeKind.INTERRUPTED, reason=Reason.NOT_STARTED)
    assert (first.events, first.misfires, first.not_before_ms, first.why) == ((RunEvent.WITHDRAW,), 1, None, None)
    for misfires, longest in ((1, 5), (2, 10), (3, 20)):
        again = settled(OutcomeKind.INTERRUPTED, reason=Reason.NOT_STARTED, misfires=misfires)
        assert again.misfires == misfires + 1
        assert again.why == "so it is"
        assert again.not_before_ms is not None
        assert longest * 500 <= again.not_before_ms - NOW <= longest * 1000


def test_what_was_started_forgives_misfires() -> None:
    for kind in OutcomeKind:
        kept = kind in (OutcomeKind.INTERRUPTED, OutcomeKind.RETURNED)
        if kind is not OutcomeKind.CANNOT_START:
            assert settled(kind, misfires=3).misfires == (3 if kept else 0), kind
