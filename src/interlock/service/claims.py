"""What the holder of a claim may do. Every write is checked for state, fence and holder; anything else is ``stale_claim``."""

from __future__ import annotations

from typing import Any

import msgspec

from interlock.decide.budget import settle
from interlock.decide.capacity import saturated
from interlock.decide.outcome import Outcome, OutcomeKind, cut, decide
from interlock.decide.routing import agent_for, route_for
from interlock.decide.staleness import timeout_at
from interlock.domain.errors import AlreadyClaimed, Conflict, InvalidInput, StaleClaim
from interlock.domain.run import Attempt, Claim, ProcessIdentity, Run, Usage
from interlock.domain.settings import LONGEST_LEASE_MS
from interlock.domain.states import AttemptState, Note, RunEvent, RunState, StopKind
from interlock.machines.table import ATTEMPT
from interlock.ports.store import Tx
from interlock.service.brakes import not_to_be_offered
from interlock.service.context import Context
from interlock.service.dispatching import attempt_timeout_ms, circumstances, claim
from interlock.service.moves import change, move, record

replace = msgspec.structs.replace
OVER = "stop working on it, and ask for the next offer"


def claim_of(run: Run) -> Claim:
    """The live claim of a run that has one."""
    if run.holder is None or run.lease_expires_ms is None:
        raise StaleClaim(f"run #{run.number} is {run.state}: nobody holds a claim on it", hint=OVER)
    return Claim(
        run=run.number,
        run_id=run.id,
        holder=run.holder,
        fence=run.fence,
        lease_expires_ms=run.lease_expires_ms,
    )


def claim_offered(
    tx: Tx,
    ctx: Context,
    run: Run,
    *,
    holder: str,
    agent: str | None = None,
    request_id: str | None = None,
    lease_ms: int | None = None,
    offer: int | None = None,
) -> Run:
    """Claim an offer from outside: the run under its claim.

    The same request again gets the same claim; a request whose claim is over, or that was made for an ``offer`` (a
    dispatch_count) that is not open any more, is :class:`StaleClaim`; one that another holder was faster than is
    :class:`AlreadyClaimed`.
    """
    if not holder:
        raise InvalidInput("a claim needs a holder", hint="give the name of the agent's session")
    _check_lease(lease_ms)
    if request_id is not None and (spent := tx.attempt_by_request(run.number, request_id)) is not None:
        if spent.ended_ms is None and spent.holder == holder:
            return run
        raise StaleClaim(
            f"request {request_id} has had its claim on #{run.number}",
            hint="ask for the next offer with a new request id",
        )
    if run.held_by_agent:
        raise AlreadyClaimed(
            f"run #{run.number} is claimed by {run.holder}",
            details={"holder": run.holder},
            hint="take another offer",
        )
    if offer is not None and (offer != run.dispatch_count or run.state is not RunState.DISPATCHED):
        raise StaleClaim(f"that offer of run #{run.number} is over", hint="ask for the offers again")
    obstacle = not_to_be_offered(tx, ctx, run)
    if run.state is RunState.DISPATCHED and obstacle is not None:
        raise Conflict(f"run #{run.number} cannot be claimed now: {obstacle}", hint="ask for the offers again later")
    if run.state is RunState.DISPATCHED and not run.pull:
        raise Conflict(
            f"run #{run.number} is on its way to the local agent '{run.agent}'",
            hint="take an offer that is open to agents from outside",
        )
    around = circumstances(tx, ctx)
    agent_name = run.agent or agent
    if agent is not None and run.agent is not None and agent != run.agent:
        raise InvalidInput(
            f"run #{run.number} is offered to agent '{run.agent}', not to '{agent}'",
            hint="take an offer of your own",
        )
    if run.agent is None and agent is not None:
        # The offer was open to anybody, so nobody's own limit was looked at yet.
        key = f"agent:{agent}"
        if (full := saturated((key,), tx.used(), around.caps)) and run.state is RunState.DISPATCHED:
            raise Conflict(
                f"agent '{agent}' has {full[0].used} of {full[0].cap} runs already",
                hint="finish one of them first",
            )
        if run.state is RunState.DISPATCHED:
            tx.take_slots(run.number, (key,))
    route = route_for(run.task.type, around.routes)
    timeout_ms = attempt_timeout_ms(run, around.agents.get(agent_name or ""), route, ctx.settings)
    return claim(
        tx,
        ctx,
        run,
        holder=holder,
        agent=agent_name,
        lease_ms=lease_ms or ctx.settings.leases.remote_ms,
        timeout_ms=timeout_ms,
        owner=None,
        request_id=request_id,
    )


def claim_offer(tx: Tx, ctx: Context, run: Run, **how: Any) -> Claim:
    """The claim of :func:`claim_offered`."""
    return claim_of(claim_offered(tx, ctx, run, **how))


def _check_lease(lease_ms: int | None) -> None:
    if lease_ms is not None and not 0 < lease_ms <= LONGEST_LEASE_MS:
        raise InvalidInput(
            f"a lease of {lease_ms} ms: it lies between 1 ms and a day",
            hint="leave it out for the configured one, and renew more often",
        )


def checked(tx: Tx, number: int, holder: str, fence: int) -> tuple[Run, Attempt]:
    """The run and the live attempt of a claim. Raises :class:`StaleClaim` when the claim is not the live one."""
    run = tx.run(number)
    if run is None:
        raise StaleClaim(f"there is no run #{number} any more", hint=OVER)
    if not run.held_by_agent or run.fence != fence or run.holder != holder:
        now = f"held by {run.holder} under fence {run.fence}" if run.held_by_agent else f"{run.state}"
        raise StaleClaim(
            f"the claim of {holder} under fence {fence} on run #{number} is over; the run is {now}",
            hint=OVER,
        )
    attempt = tx.attempt(number, fence)
    if attempt is None:
        raise StaleClaim(f"run #{number} has no attempt {fence}", hint=OVER)
    return run, attempt


def start(tx: Tx, ctx: Context, number: int, holder: str, fence: int, process: ProcessIdentity | None = None) -> Run:
    """The agent is confirmed working. Again: the same answer."""
    run, attempt = checked(tx, number, holder, fence)
    if run.state is RunState.RUNNING:
        return run
    run = move(tx, ctx, run, RunEvent.START, by=holder, changes={"misfires": 0})
    tx.save_attempt(
        attempt,
        replace(
            attempt,
            state=AttemptState(ATTEMPT.target(attempt.state, "work")),
            started_ms=ctx.now_ms,
            process=process or attempt.process,
        ),
    )
    return run


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a renewal. ``go_on`` False: stop working, then acknowledge by ending the claim."""

    go_on: bool
    reason: str | None
    lease_expires_ms: int


def renew(tx: Tx, ctx: Context, number: int, holder: str, fence: int, lease_ms: int | None = None) -> Heartbeat:
    """A heartbeat: the lease runs anew. The first one of a remote agent is its start as well."""
    _check_lease(lease_ms)
    run, _ = checked(tx, number, holder, fence)
    if run.remote and run.state is RunState.CLAIMED:
        run = start(tx, ctx, number, holder, fence)
    default = ctx.settings.leases.remote_ms if run.remote else ctx.settings.leases.local_ms
    if run.stop is None:
        # A claim that is being stopped is not kept alive by an agent that does not listen.
        run = change(tx, ctx, run, lease_expires_ms=ctx.now_ms + (lease_ms or default))
    assert run.lease_expires_ms is not None
    return Heartbeat(
        go_on=run.stop is None,
        reason=None if run.stop is None else run.stop.message,
        lease_expires_ms=run.lease_expires_ms,
    )


def renew_owned(tx: Tx, ctx: Context, owner: str) -> int:
    """Renew the leases of all local claims of a dispatcher. Returns how many."""
    return tx.renew_owned(owner, ctx.now_ms + ctx.settings.leases.local_ms, ctx.now_ms)


def report_usage(tx: Tx, ctx: Context, number: int, holder: str, fence: int, usage: Usage) -> None:  # noqa: ARG001 - the shape of every command
    """What the attempt used so far, as absolutes."""
    _, attempt = checked(tx, number, holder, fence)
    tx.save_attempt(attempt, replace(attempt, usage=usage))


def finish(tx: Tx, ctx: Context, number: int, holder: str, fence: int, outcome: Outcome) -> Run:
    """End the claim with ``outcome``. The same ending again gets the same answer; another one is :class:`StaleClaim`."""
    attempt = tx.attempt(number, fence)
    if attempt is not None and attempt.ended_ms is not None and attempt.holder == holder:
        if attempt.ending_event == outcome.kind:
            run = tx.run(number)
            if run is not None:
                return run
        raise StaleClaim(
            f"attempt {fence} of run #{number} has ended already: {attempt.state}",
            hint="nothing is left to do",
        )
    run, attempt = checked(tx, number, holder, fence)
    return end_attempt(tx, ctx, run, attempt, outcome, by=holder)


def end_attempt(tx: Tx, ctx: Context, run: Run, attempt: Attempt, outcome: Outcome, *, by: str) -> Run:
    """Close the live attempt of ``run`` and move the run on, budgets considered."""
    asked = outcome.kind
    outcome = replace(outcome, message=cut(outcome.message) or str(asked).replace("_", " "))
    # A local agent that completed before the intent was carried out has completed; no other end may lose the intent.
    if run.stop is not None and outcome.kind is not (OutcomeKind.LAPSED if run.remote else OutcomeKind.COMPLETED):
        outcome = _acknowledged(run, outcome)
    settlement = settle(run, outcome, ctx.settings, ctx.now_ms, ctx.rng)
    ended = replace(
        attempt,
        state=AttemptState(ATTEMPT.target(attempt.state, settlement.attempt_event)),
        ended_ms=ctx.now_ms,
        reason=str(outcome.reason),
        message=outcome.message,
        exit_status=outcome.exit_status,
        usage=outcome.usage or attempt.usage,
        result=outcome.result,
        # What was asked for: the same call again is told by it, also when a stop intent decided otherwise.
        ending_event=str(asked),
    )
    tx.save_attempt(attempt, ended)
    shared = {
        "failures": settlement.failures,
        "losts": settlement.losts,
        "defers": settlement.defers,
        "misfires": settlement.misfires,
        "reason": str(settlement.reason),
        "message": settlement.message,
    }
    wish = run.stop.then if run.stop is not None else None
    for planned in settlement.events:
        event = planned
        if event is RunEvent.RELEASE and not_to_be_offered(tx, ctx, run) is not None:
            # Back with its slots means open to the next claim at once, and that is what must not be.
            event = RunEvent.WITHDRAW
        changes: dict[str, Any] = dict(shared)
        if event in (RunEvent.RETRY, RunEvent.DEFER, RunEvent.WITHDRAW, RunEvent.RELEASE):
            changes |= {"not_before_ms": settlement.not_before_ms, "not_before_why": settlement.why}
        if event is RunEvent.RELEASE:
            changes |= _offered_again(tx, ctx, run, outcome)
        if event is RunEvent.BLOCK:
            changes |= {"question": outcome.question or outcome.message, "answer": None}
        if event is RunEvent.COMPLETE:
            changes |= {"result": outcome.result}
        run = move(
            tx,
            ctx,
            run,
            event,
            by=by,
            reason=str(settlement.reason),
            message=settlement.message,
            changes=changes,
            data=None if outcome.exit_status is None else {"exit_status": outcome.exit_status},
        )
    if wish is not None and not run.terminal:
        event = RunEvent.CANCEL if wish.kind is StopKind.CANCEL else RunEvent.CLOSE
        run = move(tx, ctx, run, event, by=wish.by, reason=wish.reason, message=wish.message)
    return run


def _offered_again(tx: Tx, ctx: Context, run: Run, outcome: Outcome) -> dict[str, Any]:
    # The attempt's timeout is over with it; the run's own deadline is not.
    deadline = timeout_at(run, ctx.now_ms, None, ctx.settings.deadline_ms)
    changes: dict[str, Any] = {"pull": run.remote, "offers": 0, "timeout_at_ms": deadline}
    # An offer of its own: what was asked of the one before comes too late.
    changes["dispatch_count"] = run.dispatch_count + 1
    if run.remote:
        if run.agent is not None and agent_for(run.task, tx.routes(), ctx.settings) is None:
            # The offer was open to all, and whoever claimed it brought its own name: open to all again.
            tx.free_slot(run.number, f"agent:{run.agent}")
            changes["agent"] = None
        changes |= {"offered_ms": ctx.now_ms, "not_before_ms": None, "not_before_why": None}
    if outcome.kind is OutcomeKind.RETURNED:
        changes["releases"] = run.releases + 1
    return changes


def _acknowledged(run: Run, outcome: Outcome) -> Outcome:
    """An agent that ends while it is being stopped: the intent decides, its result is kept."""
    assert run.stop is not None
    stopped = decide(stop=run.stop, exit_status=None, result=None, result_fault=None, tail="")
    return replace(stopped, result=outcome.result, usage=outcome.usage, exit_status=outcome.exit_status)


def keep_late_result(tx: Tx, ctx: Context, number: int, holder: str, fence: int, outcome: Outcome) -> bool:
    """An agent brings the result of a claim that it has lost: kept as a note on its attempt, once. Whether it was kept now."""
    run, attempt = tx.run(number), tx.attempt(number, fence)
    if run is None or attempt is None or attempt.holder != holder or attempt.ended_ms is None:
        return False
    if attempt.ending_event == outcome.kind or any(
        event.event == Note.NOTE and event.fence == fence and (event.data or {}).get("late")
        for event in tx.events_of(number)
    ):
        return False
    data = {"late": str(outcome.kind), "result": outcome.result}
    message = f"late: attempt {fence} says {outcome.kind}: {cut(outcome.message) or 'no message'}"
    record(tx, ctx, replace(run, fence=fence), Note.NOTE, by=holder, before=run.state, message=message, data=data)
    return True


def note(tx: Tx, ctx: Context, run: Run, message: str, *, by: str, data: dict[str, Any] | None = None) -> None:
    """Something worth keeping in the run's log that moves nothing."""
    record(tx, ctx, run, Note.NOTE, by=by, before=run.state, message=message, data=data)
