"""What goes with each event of a run beside its states: who may cause it, what it does with the slots, when it happens."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from interlock.domain.states import RunEvent


class By(StrEnum):
    """Who may cause an event."""

    CLAIM = "claim holder"
    SYSTEM = "system"
    OPERATOR = "operator"


class Slots(StrEnum):
    """What an event does with the run's slots."""

    TAKE = "take"
    KEEP = "keep"
    FREE = "free"
    NONE = "none"


class Rule(msgspec.Struct, frozen=True):
    """What goes with an event beside its states."""

    by: tuple[By, ...]
    slots: Slots
    when: str


RULES: dict[RunEvent, Rule] = {
    RunEvent.SUBMIT: Rule((By.OPERATOR,), Slots.NONE, "accepted and committed"),
    RunEvent.DISPATCH: Rule((By.SYSTEM,), Slots.TAKE, "ready, eligible, and every limit has room; dispatch_count + 1"),
    RunEvent.REDISPATCH: Rule(
        (By.SYSTEM,), Slots.KEEP, "an offer stayed unclaimed although a fitting agent was there; dispatch_count + 1"
    ),
    RunEvent.WITHDRAW: Rule(
        (By.SYSTEM,),
        Slots.FREE,
        "pause, drain, no fitting agent, agent cannot start, interrupt; costs nothing",
    ),
    RunEvent.CLAIM: Rule((By.CLAIM,), Slots.KEEP, "compare-and-swap; fence + 1; a lease is set"),
    RunEvent.ADOPT: Rule((By.SYSTEM,), Slots.KEEP, "the owner is gone, another dispatcher takes over; the fence stays"),
    RunEvent.START: Rule((By.CLAIM,), Slots.KEEP, "the agent is confirmed working"),
    RunEvent.RENEW: Rule((By.CLAIM,), Slots.KEEP, "a heartbeat"),
    RunEvent.COMPLETE: Rule((By.CLAIM,), Slots.FREE, "done, with its result"),
    RunEvent.CLOSE: Rule((By.SYSTEM,), Slots.FREE, "the source says that it was done elsewhere"),
    RunEvent.RETRY: Rule((By.CLAIM, By.SYSTEM), Slots.FREE, "the attempt failed and retries are left"),
    RunEvent.RELEASE: Rule(
        (By.CLAIM, By.SYSTEM),
        Slots.KEEP,
        "the lease lapsed, the process is lost, or it was given back; dispatch_count + 1",
    ),
    RunEvent.DEFER: Rule((By.CLAIM,), Slots.FREE, "the agent asks for a later time"),
    RunEvent.BLOCK: Rule((By.CLAIM,), Slots.FREE, "the agent asks a question"),
    RunEvent.ANSWER: Rule((By.OPERATOR,), Slots.NONE, "a person answered"),
    RunEvent.FAIL: Rule((By.CLAIM,), Slots.FREE, "retries are exhausted, or the failure is permanent"),
    RunEvent.REJECT: Rule((By.SYSTEM,), Slots.FREE, "a need failed; offered, lost or deferred too often"),
    RunEvent.TIME_OUT: Rule((By.SYSTEM,), Slots.FREE, "the wall-clock limit passed"),
    RunEvent.CANCEL: Rule((By.OPERATOR, By.SYSTEM), Slots.FREE, "operator, API, source, or a skipped need"),
}
