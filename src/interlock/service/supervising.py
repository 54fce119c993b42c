"""What the system itself does to runs: deadlines that pass, stops, takeovers, downtime."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from interlock.decide.capacity import saturated
from interlock.decide.outcome import Outcome, OutcomeKind, decide
from interlock.decide.staleness import Due, DueKind, decide_due
from interlock.domain.run import Run, Stop
from interlock.domain.states import Note, Reason, RunEvent, RunState, StopKind
from interlock.ports.store import Tx, Undone
from interlock.service.claims import end_attempt
from interlock.service.context import SYSTEM, Context
from interlock.service.dispatching import ALL, circumstances, extend_offer
from interlock.service.moves import change, move, record, tell_some_more
from interlock.service.quarantine import quarantine

CLOCK_STEP_MS = 5000
ASLEEP_MS = 12_000
"""Time in which no dispatcher was awake counts against nobody once it is so long."""
PULLER_GONE_MS = 3600 * 1000
"""An agent that has not come for an offer this long is forgotten."""


FINAL_WISHES = frozenset({StopKind.CANCEL, StopKind.CLOSE})


class Reaped(msgspec.Struct, frozen=True, kw_only=True):
    """What the reaper's look at a run led to."""

    run: Run
    due: Due


def reap(tx: Tx, ctx: Context, bound: int) -> list[Reaped]:
    """Look at every run whose time has come (up to ``bound``) and do what is due. Tell some of those who wait for what ended.

    Decision and move are one transaction, so a renewal that commits first is seen, and wins. A run with which that does
    not work is put on hold, and the others go on.
    """
    done: list[Reaped] = []
    tell_some_more(tx, ctx)
    for number in tx.due(ctx.now_ms, bound):
        try:
            with tx.apart():
                run = tx.run(number)
                if run is None:
                    continue
                due = decide_due(run, ctx.now_ms, ctx.settings, fitting_agent_was_there=_was_there(tx, ctx, run))
                reaped = Reaped(run=_carry_out(tx, ctx, run, due), due=due)
        except Undone as undone:
            quarantine(tx, ctx, number, undone.cause)
        else:
            done.append(reaped)
    return done


def _was_there(tx: Tx, ctx: Context, run: Run) -> bool:
    if run.state is not RunState.DISPATCHED or run.offered_ms is None:
        return False
    # Who came early in the offer's time and never again may be gone.
    since = run.offered_ms + (ctx.now_ms - run.offered_ms) // 2
    fitting = {puller.agent for puller in tx.pullers_since(since) if puller.takes(run)}
    if run.agent is not None or None in fitting or not fitting:
        return bool(fitting)
    # Open to anybody: the limit of whoever comes is looked at when it comes, and may turn it away.
    used, limits = tx.used(), circumstances(tx, ctx).caps
    return any(not saturated((f"agent:{agent}",), used, limits) for agent in fitting)


def _carry_out(tx: Tx, ctx: Context, run: Run, due: Due) -> Run:
    reason = None if due.reason is None else str(due.reason)
    match due.kind:
        case DueKind.NOTHING | DueKind.WAKE:
            # Its fields are what they should be; ready and due follow from them and the time.
            return change(tx, ctx, run)
        case DueKind.EXTEND_OFFER:
            return extend_offer(tx, ctx, run)
        case DueKind.REDISPATCH:
            changes = {
                "offers": run.offers + 1,
                "offered_ms": ctx.now_ms,
                "dispatch_count": run.dispatch_count + 1,
            }
            return move(tx, ctx, run, RunEvent.REDISPATCH, by=SYSTEM, message=due.message, changes=changes)
        case DueKind.WITHDRAW:
            backoff = {"not_before_ms": due.not_before_ms, "not_before_why": due.message}
            return move(
                tx,
                ctx,
                run,
                RunEvent.WITHDRAW,
                by=SYSTEM,
                reason=reason,
                message=due.message,
                changes=backoff,
            )
        case DueKind.REJECT:
            return move(tx, ctx, run, RunEvent.REJECT, by=SYSTEM, reason=reason, message=due.message)
        case DueKind.TIME_OUT:
            return move(tx, ctx, run, RunEvent.TIME_OUT, by=SYSTEM, reason=reason, message=due.message)
        case DueKind.STOP:
            assert due.stop is not None
            return request_stop(tx, ctx, run, due.stop, reason=reason or "", message=due.message, by=SYSTEM)
        case DueKind.LAPSE:
            return _lapse(tx, ctx, run, due)


def _lapse(tx: Tx, ctx: Context, run: Run, due: Due) -> Run:
    attempt = tx.attempt(run.number, run.fence)
    assert attempt is not None
    if run.stop is not None:
        outcome = decide(stop=run.stop, exit_status=None, result=None, result_fault=None, tail="")
    else:
        outcome = Outcome(kind=OutcomeKind.LAPSED, reason=Reason.LEASE_LAPSED, message=due.message)
    return end_attempt(tx, ctx, run, attempt, outcome, by=SYSTEM)


def request_stop(tx: Tx, ctx: Context, run: Run, kind: StopKind, *, reason: str, message: str, by: str) -> Run:
    """Persist the intent to stop the live agent of a run; the run moves once its agent is gone.

    The first intent stands. A cancel or close that comes behind one after which the run would go on is kept beside it.
    """
    if not run.held_by_agent:
        return run
    message = message.strip() or f"{kind} by {by}"
    stop = Stop(kind=kind, reason=reason, message=message, by=by, at_ms=ctx.now_ms)
    if run.stop is not None:
        if kind not in FINAL_WISHES or run.stop.kind in FINAL_WISHES or run.stop.then is not None:
            return run
        # The agent is being stopped already, for a reason after which the run would go on: it is to end then instead.
        stop = msgspec.structs.replace(run.stop, then=stop)
    run = change(tx, ctx, run, stop=stop)
    record(tx, ctx, run, Note.STOP, by=by, before=run.state, reason=str(kind), message=message)
    return run


def adopt(tx: Tx, ctx: Context, number: int, *, old_owner: str, new_owner: str) -> Run | None:
    """Take over a local claim whose owner is gone. None when somebody else was faster or the claim is over.

    The caller has made sure that the old owner's lock is free; the comparison makes sure that it still is the owner.
    """
    run = tx.run(number)
    if run is None or not run.held_by_agent or run.remote or run.owner != old_owner:
        return None
    return move(
        tx,
        ctx,
        run,
        RunEvent.ADOPT,
        by=new_owner,
        message=f"taken over from {old_owner}" if old_owner != new_owner else "taken up again after a restart",
        changes={
            "owner": new_owner,
            "owner_epoch": run.owner_epoch + 1,
            "lease_expires_ms": ctx.now_ms + ctx.settings.leases.local_ms,
        },
    )


def adopt_all(tx: Tx, ctx: Context, claims: Sequence[tuple[int, str]], *, new_owner: str) -> list[Run]:
    """:func:`adopt` for several (number, old owner). A run with which that does not work is put on hold."""
    adopted: list[Run] = []
    for number, old_owner in claims:
        try:
            with tx.apart():
                run = adopt(tx, ctx, number, old_owner=old_owner, new_owner=new_owner)
        except Undone as undone:
            quarantine(tx, ctx, number, undone.cause)
        else:
            adopted += [run] if run is not None else []
    return adopted


def forget_process(tx: Tx, ctx: Context, run: Run, *, by: str) -> Run:
    """An operator vouches that the agent of a run is gone: its attempt is lost, the run goes on."""
    attempt = tx.attempt(run.number, run.fence)
    if not run.held_by_agent or attempt is None:
        return run
    if run.stop is not None:
        outcome = decide(stop=run.stop, exit_status=None, result=None, result_fault=None, tail="")
    else:
        outcome = Outcome(kind=OutcomeKind.LOST, reason=Reason.PROCESS_LOST, message="declared gone by the operator")
    return end_attempt(tx, ctx, run, attempt, outcome, by=by)


ALIVE_META = "alive_ms"
EPOCH_META = "epoch"


def catch_up(tx: Tx, ctx: Context, *, epoch: tuple[str, int], threshold_ms: int) -> int:
    """See :meth:`interlock.service.Service.catch_up`."""
    shifted = follow_clock(tx, ctx, epoch)
    alive = tx.meta(ALIVE_META)
    tx.set_meta(ALIVE_META, str(ctx.now_ms))
    tx.drop_pullers(ctx.now_ms - PULLER_GONE_MS)
    if alive is None:
        return shifted
    gap = ctx.now_ms - int(alive)
    if abs(gap) <= threshold_ms:
        return shifted
    # Time does not run backwards: somebody set the clock back while nobody looked, before a boot say.
    _shift(tx, ctx, gap, clock_was_set=gap < 0)
    return shifted + gap


def _shift(tx: Tx, ctx: Context, by_ms: int, *, clock_was_set: bool) -> None:
    """``clock_was_set``: by so much. Then backoffs, and the times at which agents came, are moved along as well."""
    tx.shift_deadlines(by_ms)
    if clock_was_set:
        tx.shift_backoffs(by_ms)
        tx.shift_pullers(by_ms)
        for health in tx.healths().values():
            tx.put_health(msgspec.structs.replace(health, retry_ms=health.retry_ms + by_ms))
    for run in tx.offers(pull=False, limit=ALL):
        # Such a one may wait for its backoff or for its deadline: what is due first may have changed.
        change(tx, ctx, run)


def follow_clock(tx: Tx, ctx: Context, epoch: tuple[str, int]) -> int:
    """Move every stored deadline by the step that the wall clock made since the last look, of any process. Returns the step."""
    boot_id, offset_ms = epoch
    stored = tx.meta(EPOCH_META)
    known = None if stored is None else msgspec.json.decode(stored, type=tuple[str, int])
    step = offset_ms - known[1] if known is not None and known[0] == boot_id else 0
    if known is None or known[0] != boot_id or abs(step) > CLOCK_STEP_MS:
        tx.set_meta(EPOCH_META, msgspec.json.encode(epoch).decode())
    if abs(step) <= CLOCK_STEP_MS:
        return 0
    _shift(tx, ctx, step, clock_was_set=True)
    if (alive := tx.meta(ALIVE_META)) is not None:
        tx.set_meta(ALIVE_META, str(int(alive) + step))
    return step
