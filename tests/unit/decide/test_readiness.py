"""Whether a run may be dispatched, and when the system looks at it next."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from interlock.decide.readiness import derived, is_ready, next_due_ms, offer_timeout_ms
from interlock.domain.run import Run, Stop
from interlock.domain.settings import MINUTE, Leases, Settings
from interlock.domain.states import RunState, StopKind
from interlock.domain.task import Task

NOW = 1_000_000
SETTINGS = Settings(leases=Leases(claim_timeout_ms=5 * MINUTE, grace_ms=100))


def run(state: RunState = RunState.QUEUED, **fields: Any) -> Run:
    return msgspec.structs.replace(Run(number=1, id="r", state=state, task=Task(title="t"), content_hash=""), **fields)


@pytest.mark.parametrize(
    ("fields", "ready"),
    [
        ({}, True),
        ({"not_before_ms": NOW}, True),
        ({"not_before_ms": NOW + 1}, False),
        ({"held": True}, False),
        ({"needs_left": 1}, False),
    ],
)
def test_ready(fields: dict[str, Any], ready: bool) -> None:
    assert is_ready(run(**fields), NOW) is ready
    assert derived(run(**fields), NOW, SETTINGS).ready is ready


@pytest.mark.parametrize("state", [state for state in RunState if state is not RunState.QUEUED])
def test_only_queued_runs_are_ready(state: RunState) -> None:
    assert not is_ready(run(state), NOW)


@pytest.mark.parametrize(
    ("state", "fields", "due"),
    [
        (RunState.QUEUED, {}, None),
        (RunState.QUEUED, {"not_before_ms": NOW + 5}, NOW + 5),
        (RunState.QUEUED, {"not_before_ms": NOW + 5, "held": True}, None),
        (RunState.QUEUED, {"not_before_ms": NOW + 5, "needs_left": 1}, None),
        (RunState.QUEUED, {"not_before_ms": NOW}, None),
        (RunState.DISPATCHED, {}, None),
        (RunState.DISPATCHED, {"not_before_ms": NOW + 5}, NOW + 5),
        (RunState.DISPATCHED, {"not_before_ms": NOW}, None),
        (RunState.DISPATCHED, {"not_before_ms": NOW + 5, "timeout_at_ms": NOW + 3}, NOW + 3),
        (RunState.DISPATCHED, {"not_before_ms": NOW + 5, "timeout_at_ms": NOW + 9}, NOW + 5),
        (RunState.DISPATCHED, {"offered_ms": NOW}, None),  # nobody comes for it: it is started
        (RunState.DISPATCHED, {"pull": True, "not_before_ms": NOW + 5}, NOW + 5),
        (RunState.DISPATCHED, {"pull": True, "offered_ms": NOW}, NOW + 5 * MINUTE),
        (RunState.DISPATCHED, {"pull": True, "offered_ms": NOW, "offers": 2}, NOW + 20 * MINUTE),
        (RunState.DISPATCHED, {"pull": True, "offered_ms": NOW, "timeout_at_ms": NOW + 3}, NOW + 3),
        (RunState.DISPATCHED, {"pull": True, "offered_ms": NOW, "timeout_at_ms": NOW + 6 * MINUTE}, NOW + 5 * MINUTE),
        (RunState.RUNNING, {"timeout_at_ms": NOW + 9, "lease_expires_ms": NOW + 1}, NOW + 9),
        (RunState.RUNNING, {"timeout_at_ms": NOW + 900, "lease_expires_ms": NOW + 1, "remote": True}, NOW + 101),
        (RunState.RUNNING, {"lease_expires_ms": NOW + 1, "remote": True}, NOW + 101),
        (RunState.RUNNING, {"remote": True}, None),
        (RunState.CLAIMED, {"lease_expires_ms": NOW + 1}, None),
        (RunState.BLOCKED, {"timeout_at_ms": NOW + 9}, None),
        (RunState.COMPLETED, {"timeout_at_ms": NOW + 9, "lease_expires_ms": NOW + 1, "remote": True}, None),
    ],
)
def test_due(state: RunState, fields: dict[str, Any], due: int | None) -> None:
    assert next_due_ms(run(state, **fields), NOW, SETTINGS) == due


def test_a_run_that_is_being_stopped_has_no_timeout_any_more() -> None:
    stop = Stop(kind=StopKind.CANCEL, reason="operator", message="m", by="me", at_ms=1)
    stopping = run(RunState.RUNNING, timeout_at_ms=NOW + 9, stop=stop)
    assert next_due_ms(stopping, NOW, SETTINGS) is None
    remote = msgspec.structs.replace(stopping, remote=True, lease_expires_ms=NOW + 50)
    assert next_due_ms(remote, NOW, SETTINGS) == NOW + 150


def test_the_wait_for_a_claim_grows_but_not_for_ever() -> None:
    waits = [offer_timeout_ms(offers, SETTINGS) for offers in range(20)]
    assert waits == sorted(waits)
    assert waits[0] == SETTINGS.leases.claim_timeout_ms
    assert waits[1:11] == [2 * wait for wait in waits[:10]]
    assert waits[-1] == waits[10]


def test_what_is_derived_is_kept_with_the_run() -> None:
    waiting = run(not_before_ms=NOW + 5, ready=True, due_ms=None, updated_ms=1)
    assert derived(waiting, NOW, SETTINGS) == msgspec.structs.replace(
        waiting, ready=False, due_ms=NOW + 5, updated_ms=NOW
    )  # fmt: skip
