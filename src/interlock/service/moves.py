"""The one function that moves a run: state, slots, event row and dependants, together."""

from __future__ import annotations

from typing import Any

import msgspec

from interlock.decide.capacity import slot_keys
from interlock.decide.readiness import derived
from interlock.domain.run import Event, Run
from interlock.domain.settings import OnNeedFailed
from interlock.domain.states import HELD_BY_AGENT, TERMINAL, Note, Reason, RunEvent, RunState
from interlock.machines.run import RULES, Slots
from interlock.machines.table import RUN
from interlock.ports.store import Tx
from interlock.service.context import SYSTEM, Context

replace = msgspec.structs.replace

_CLAIM_ENDS: dict[str, Any] = {
    "holder": None,
    "owner": None,
    "remote": False,
    "lease_expires_ms": None,
    "claimed_ms": None,
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
    to = RUN.target(run.state, event)
    fields = dict(changes or {})
    if run.state in HELD_BY_AGENT and to not in HELD_BY_AGENT:
        spent = run.spent_ms + (ctx.now_ms - run.claimed_ms if run.claimed_ms is not None else 0)
        fields = {**_CLAIM_ENDS, "spent_ms": spent, **fields}
    if to not in (RunState.DISPATCHED, RunState.CLAIMED, RunState.RUNNING):
        fields = {"pull": False, "offered_ms": None, "timeout_at_ms": None, **fields}
    if to in TERMINAL:
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
    if new.terminal:
        _tell_dependants(tx, ctx, new)
    return new


def change(tx: Tx, ctx: Context, run: Run, **changes: Any) -> Run:
    """Set fields without a move: flags, priorities, leases."""
    new = derived(replace(run, **changes), ctx.now_ms, ctx.settings)
    tx.save_run(run, new)
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


def _tell_dependants(tx: Tx, ctx: Context, ended: Run) -> None:
    for number in tx.dependants(ended.number):
        dependant = tx.run(number)
        if dependant is not None:
            need_ended(tx, ctx, dependant, ended)


def need_ended(tx: Tx, ctx: Context, run: Run, need: Run) -> Run:
    """One of ``run``'s needs has ended: count it as met, or end the run as configured."""
    if run.terminal:
        return run
    policy = ctx.settings.on_need_failed
    if need.state is RunState.COMPLETED or policy is OnNeedFailed.RUN:
        tx.meet_need(run.number, need.number)
        return change(tx, ctx, run, needs_left=run.needs_left - 1)
    message = f"it needs #{need.number} ({need.task.title}), which ended {need.state}"
    if policy is OnNeedFailed.SKIP:
        return move(
            tx,
            ctx,
            run,
            RunEvent.CANCEL,
            by=SYSTEM,
            reason=Reason.NEED_SKIPPED,
            message=f"skipped: {message}",
        )
    return move(tx, ctx, run, RunEvent.REJECT, by=SYSTEM, reason=Reason.NEED_FAILED, message=message)
