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
MINUTE = 60_000
RUNNING = Run(
    number=1, id="r1", state=RunState.RUNNING, task=Task(title="t"), content_hash="", fence=1, holder="h", claimed_ms=0
)
SETTINGS = Settings(retry=Retry(max_retries=3), budgets=Budgets(max_losts=2, max_defers=2))


class Longest(Random):
    """Chance at its worst: every wait is as long as it may be."""

    def randint(self, a: int, b: int) -> int:
        return b


class Shortest(Random):
    """Chance at its best."""

    def randint(self, a: int, b: int) -> int:
        return a


def settled(
    kind: OutcomeKind,
    *,
    settings: Settings = SETTINGS,
    reason: Reason = Reason.AGENT_FAILED,
    rng: Random = Longest(),  # noqa: B008 - it has no state that matters
    **given_: Any,
) -> Settlement:
    of_outcome = {name: given_.pop(name) for name in ("permanent", "delay_ms") if name in given_}
    run = msgspec.structs.replace(RUNNING, **given_)
    outcome = Outcome(kind=kind, reason=reason, message="so it is", **of_outcome)
    return settle(run, outcome, settings, NOW, rng)


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
        rng=Random(seed),
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


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        (OutcomeKind.COMPLETED, RunEvent.COMPLETE),
        (OutcomeKind.CLOSED, RunEvent.CLOSE),
        (OutcomeKind.CANCELLED, RunEvent.CANCEL),
        (OutcomeKind.BLOCKED, RunEvent.BLOCK),
        (OutcomeKind.TIMED_OUT, RunEvent.TIME_OUT),
    ],
)
def test_what_ends_or_blocks_a_run(kind: OutcomeKind, event: RunEvent) -> None:
    assert settled(kind, failures=2, losts=1, defers=1, misfires=1, reason=Reason.OPERATOR) == Settlement(
        attempt_event=ATTEMPT_EVENTS[kind][0],
        events=(event,),
        reason=Reason.OPERATOR,
        message="so it is",
        failures=2,
        losts=0,
        defers=1,
        misfires=0,
        not_before_ms=None,
        why=None,
    )


def test_as_many_retries_as_configured() -> None:
    for failures in range(3):
        found = settled(OutcomeKind.FAILED, failures=failures)
        assert found.events == (RunEvent.RETRY,)
        assert found.failures == failures + 1
        assert found.why == f"retry {failures + 1} of 3 after: so it is"
        assert found.not_before_ms == NOW + 10_000 * 2**failures
        half = settled(OutcomeKind.FAILED, failures=failures, rng=Shortest())
        assert half.not_before_ms == NOW + 5_000 * 2**failures
    found = settled(OutcomeKind.FAILED, failures=3)
    assert (found.events, found.reason, found.failures) == ((RunEvent.FAIL,), Reason.RETRIES_EXHAUSTED, 4)
    assert found.message == "so it is (given up after 4 tries)"
    none = msgspec.structs.replace(SETTINGS, retry=Retry(max_retries=0))
    assert settled(OutcomeKind.FAILED, settings=none).message == "so it is (given up after 1 try)"


def test_a_permanent_failure_is_not_tried_again() -> None:
    found = settled(OutcomeKind.FAILED, permanent=True, failures=1)
    assert (found.events, found.reason, found.failures) == ((RunEvent.FAIL,), Reason.PERMANENT_FAILURE, 2)


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
    for losts, wait in ((1, 1), (2, 2), (5, 16), (6, 32), (7, 60), (100, 60)):
        patient = msgspec.structs.replace(SETTINGS, budgets=Budgets(max_losts=1000))
        later = settled(OutcomeKind.LOST, losts=losts, settings=patient)
        assert (later.events, later.losts) == ((RunEvent.RELEASE,), losts + 1)
        assert (later.not_before_ms, later.why) == (NOW + wait * 1000, "so it is")
    assert settled(OutcomeKind.LAPSED, losts=1).events == (RunEvent.RELEASE,)
    third = settled(OutcomeKind.LAPSED, losts=2)
    assert (third.events, third.reason) == ((RunEvent.RELEASE, RunEvent.REJECT), Reason.LOST_TOO_OFTEN)
    assert third.message == "lost 3 times in a row without progress; last: so it is"
    assert third.losts == 3


@pytest.mark.parametrize("kind", [OutcomeKind.FAILED, OutcomeKind.DEFERRED, OutcomeKind.BLOCKED])
def test_progress_forgives_losses(kind: OutcomeKind) -> None:
    assert settled(kind, losts=2).losts == 0


@pytest.mark.parametrize("kind", [OutcomeKind.INTERRUPTED, OutcomeKind.CANNOT_START, OutcomeKind.RETURNED])
def test_what_costs_nothing(kind: OutcomeKind) -> None:
    found = settled(kind, failures=2, losts=1, defers=1)
    assert (found.failures, found.losts, found.defers) == (2, 1, 1)
    assert (found.message, found.attempt_event) == ("so it is", "interrupt")


def test_an_interrupted_run_goes_back_to_the_queue() -> None:
    found = settled(OutcomeKind.INTERRUPTED, losts=1, misfires=2)
    assert (found.events, found.losts, found.misfires) == ((RunEvent.WITHDRAW,), 1, 2)
    assert (found.not_before_ms, found.why) == (None, None)


def test_given_back_once_is_offered_at_once_and_then_queued() -> None:
    assert settled(OutcomeKind.RETURNED).events == (RunEvent.RELEASE,)
    assert settled(OutcomeKind.RETURNED, releases=1).events == (RunEvent.WITHDRAW,)


def test_a_deferral_waits_as_long_as_the_agent_says() -> None:
    assert settled(OutcomeKind.DEFERRED).not_before_ms == NOW + 60_000
    assert settled(OutcomeKind.DEFERRED, delay_ms=5).not_before_ms == NOW + 5
    assert settled(OutcomeKind.DEFERRED, delay_ms=-5).not_before_ms == NOW
    assert settled(OutcomeKind.DEFERRED, delay_ms=2**70).not_before_ms == NOW + LONGEST_DEFER_MS
    found = settled(OutcomeKind.DEFERRED, delay_ms=5, defers=1)
    assert (found.events, found.defers, found.why) == ((RunEvent.DEFER,), 2, "so it is")


def test_deferred_too_often() -> None:
    found = settled(OutcomeKind.DEFERRED, defers=2)
    assert (found.events, found.reason) == ((RunEvent.DEFER, RunEvent.REJECT), Reason.DEFERRED_TOO_OFTEN)
    assert (found.defers, found.not_before_ms) == (3, None)
    assert found.message == "deferred 3 times, the limit is 2; last: so it is"


def test_nobody_defers_for_longer_than_a_year() -> None:
    assert LONGEST_DEFER_MS == 366 * 24 * 60 * MINUTE


def test_an_agent_that_cannot_start_backs_off() -> None:
    found = settled(OutcomeKind.CANNOT_START)
    assert (found.events, found.not_before_ms, found.why) == ((RunEvent.WITHDRAW,), NOW + 5000, "so it is")
    assert settled(OutcomeKind.CANNOT_START, rng=Shortest()).not_before_ms == NOW + 2500


def test_starts_that_fail_in_a_row_wait_longer_each_time() -> None:
    for misfires, longest in ((0, 5), (1, 10), (2, 20), (5, 160), (6, 300), (10_000, 300)):
        found = settled(OutcomeKind.CANNOT_START, misfires=misfires)
        assert found.misfires == misfires + 1
        assert found.not_before_ms == NOW + longest * 1000


def test_a_restart_costs_nothing_and_restarts_in_a_row_wait() -> None:
    first = settled(OutcomeKind.INTERRUPTED, reason=Reason.NOT_STARTED)
    assert (first.events, first.misfires, first.not_before_ms, first.why) == ((RunEvent.WITHDRAW,), 1, None, None)
    for misfires, longest in ((1, 5), (2, 10), (3, 20)):
        again = settled(OutcomeKind.INTERRUPTED, reason=Reason.NOT_STARTED, misfires=misfires)
        assert again.misfires == misfires + 1
        assert again.why == "so it is"
        assert again.not_before_ms == NOW + longest * 1000


def test_what_was_started_forgives_misfires() -> None:
    for kind in OutcomeKind:
        kept = kind in (OutcomeKind.INTERRUPTED, OutcomeKind.RETURNED)
        if kind is not OutcomeKind.CANNOT_START:
            assert settled(kind, misfires=3).misfires == (3 if kept else 0), kind
