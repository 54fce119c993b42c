"""The one function that moves a run: state, slots, event row and dependants, together."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from interlock.decide.capacity import slot_keys
from interlock.decide.readiness import derived
from interlock.domain.run import Event, Run
from interlock.domain.settings import OnNeedFailed
from interlock.domain.states import ACTIVE, HELD_BY_AGENT, TERMINAL, Note, Reason, RunEvent, RunState
from interlock.machines.rules import RULES, Slots
from interlock.machines.table import RUN
from interlock.ports.store import Tx
from interlock.service.context import SYSTEM, Context
from interlock.service.filing import lane_of

replace = msgspec.structs.replace

_CLAIM_ENDS: dict[str, Any] = {
    "holder": None,
    "owner": None,
    "remote": False,
    "lease_expires_ms": None,
    "timeout_at_ms": None,
    "stop": None,
}


def move(
    tx: Tx,
    ctx: Context,
    run: Run,
    event: RunEvent,
    *,
    by: str,
    reason: str | None = None,
    message: str | None = None,
    data: dict[str, Any] | None = None,
    changes: dict[str, Any] | None = None,
) -> Run:
    """Apply ``event`` to ``run`` with all that belongs to it. Raises :class:`IllegalTransition` and changes nothing.

    ``changes`` are further fields of the run. What follows from the new state (claim fields, ready, due, ended) is set here.
    """
    new = _moved(tx, ctx, run, event, by=by, reason=reason, message=message, data=data, changes=changes)
    if new.terminal:
        _tell_dependants(tx, ctx, new)
    return new


def _moved(
    tx: Tx,
    ctx: Context,
    run: Run,
    event: RunEvent,
    *,
    by: str,
    reason: str | None,
    message: str | None,
    data: dict[str, Any] | None = None,
    changes: dict[str, Any] | None = None,
) -> Run:
    """:func:`move`, with the dependants still to be told."""
    to = RUN.target(run.state, event)
    fields = dict(changes or {})
    if run.state in HELD_BY_AGENT and to not in HELD_BY_AGENT:
        fields = {**_CLAIM_ENDS, **fields}
    if run.claimed_ms is not None and (to not in ACTIVE or event in (RunEvent.RELEASE, RunEvent.CLAIM)):
        # The time of claims counts, and that of offers once there was one: up to now as spent, from now on anew.
        spent = run.spent_ms + ctx.now_ms - run.claimed_ms
        fields = {"spent_ms": spent, "claimed_ms": ctx.now_ms if to in ACTIVE else None, **fields}
    if to not in (RunState.DISPATCHED, RunState.CLAIMED, RunState.RUNNING):
        fields = {"pull": False, "offered_ms": None, "timeout_at_ms": None, **fields}
    if to is RunState.QUEUED:
        # The limits may speak of other values than when it was last filed.
        fields["lane"] = lane_of(tx, ctx, run.task, run.batch)
    if to in TERMINAL:
        message = (message or "").strip() or f"{event} by {by}"
        fields = {
            "ended_ms": ctx.now_ms,
            "reason": reason,
            "message": message,
            "not_before_ms": None,
            "not_before_why": None,
            **fields,
        }
    new = derived(replace(run, state=to, **fields), ctx.now_ms, ctx.settings)
    tx.save_run(run, new)
    if RULES[event].slots is Slots.TAKE:
        tx.take_slots(new.number, slot_keys(new.task, new.agent, ctx.settings))
    record(tx, ctx, new, event, by=by, before=run.state, reason=reason, message=message, data=data)
    return new


def change(tx: Tx, ctx: Context, run: Run, **changes: Any) -> Run:
    """Set fields without a move: flags, priorities, leases."""
    new = derived(replace(run, **changes), ctx.now_ms, ctx.settings)
    tx.save_run(run, new)
    if new.ready and not run.ready:
        tx.hint()
    return new


def record(
    tx: Tx,
    ctx: Context,
    run: Run,
    event: RunEvent | Note,
    *,
    by: str,
    before: RunState | None,
    reason: str | None = None,
    message: str | None = None,
    data: dict[str, Any] | None = None,
) -> None:
    """Write the event row of a move (or a note) that left ``run`` as it is now."""
    tx.add_event(
        Event(
            seq=0,
            run=run.number,
            event=str(event),
            from_state=None if before is None else str(before),
            to_state=str(run.state),
            at_ms=ctx.now_ms,
            by=by,
            fence=run.fence or None,
            reason=reason,
            message=message,
            data=data,
        )
    )


TOLD_AT_ONCE = 500
"""So many runs are told of an end in the transaction of that end; the others a page at a time, by the reaper."""


def _tell_dependants(tx: Tx, ctx: Context, ended: Run, *, after: int = 0, left: int | None = None) -> int:
    """Tell those behind number ``after`` who wait for ``ended``, and those who wait for whom that ends. Returns how many more
    could have been told at once. A loop, since a chain of needs may be longer than Python's stack is deep.
    """
    left = TOLD_AT_ONCE if left is None else left
    told = deque([(ended, after)])
    while told:
        need, after = told.popleft()
        if left <= 0:
            tx.leave_untold(need.number, after)
            continue
        numbers = tx.dependants(need.number, after, left)
        for number in numbers:
            dependant = tx.run(number)
            if dependant is None or dependant.terminal:
                continue
            now = _after_need(tx, ctx, dependant, need)
            if now.terminal:
                told.append((now, 0))
        if len(numbers) == left:
            tx.leave_untold(need.number, numbers[-1])
        left -= len(numbers) + 1
    return left


def tell_some_more(tx: Tx, ctx: Context) -> None:
    """Tell the next of those who were left to be told later, if there are any."""
    left = TOLD_AT_ONCE
    while left > 0 and (untold := tx.take_untold()) is not None:
        number, after = untold
        need = tx.run(number)
        if need is not None:
            left = _tell_dependants(tx, ctx, need, after=after, left=left)


def need_ended(tx: Tx, ctx: Context, run: Run, need: Run) -> Run:
    """One of ``run``'s needs has ended: count it as met, or end the run as configured."""
    if run.terminal:
        return run
    after = _after_need(tx, ctx, run, need)
    if after.terminal:
        _tell_dependants(tx, ctx, after)
    return after


def _after_need(tx: Tx, ctx: Context, run: Run, need: Run) -> Run:
    policy = ctx.settings.on_need_failed
    if need.state is RunState.COMPLETED or policy is OnNeedFailed.RUN:
        tx.meet_need(run.number, need.number)
        return change(tx, ctx, run, needs_left=run.needs_left - 1)
    message = f"it needs #{need.number} ({need.task.title}), which ended {need.state}"
    event, reason = RunEvent.REJECT, Reason.NEED_FAILED
    if policy is OnNeedFailed.SKIP:
        event, reason, message = RunEvent.CANCEL, Reason.NEED_SKIPPED, f"skipped: {message}"
    return _moved(tx, ctx, run, event, by=SYSTEM, reason=reason, message=message)
