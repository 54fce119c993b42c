"""What a person (or a program on a person's behalf) does to runs and to the dispatcher."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from interlock.decide.backoff import equal_jitter_ms, exponential_ms
from interlock.decide.routing import is_pattern, route_for
from interlock.domain.errors import Conflict, InvalidInput, NotFound
from interlock.domain.run import AgentHealth, Route, Run
from interlock.domain.settings import SECOND
from interlock.domain.states import Note, Reason, RunEvent, RunState, StopKind
from interlock.domain.task import PRIORITY_LIMIT
from interlock.ports.store import Tx
from interlock.service.brakes import Pause, paused, set_pause
from interlock.service.context import OPERATOR, Context
from interlock.service.dispatching import withdraw_offers
from interlock.service.moves import change, move, record
from interlock.service.supervising import request_stop

TYPE_LIMIT = 200


def cancel(tx: Tx, ctx: Context, run: Run, *, by: str = OPERATOR, message: str = "cancelled by the operator") -> Run:
    """Cancel: at once while nobody works on it, else as an intent to stop its agent. Raises :class:`Conflict` when it has ended."""
    if run.terminal:
        raise Conflict(f"run #{run.number} has ended already: {run.state}", hint="nothing is left to cancel")
    if run.held_by_agent:
        return request_stop(tx, ctx, run, StopKind.CANCEL, reason=str(Reason.OPERATOR), message=message, by=by)
    return move(tx, ctx, run, RunEvent.CANCEL, by=by, reason=str(Reason.OPERATOR), message=message)


def interrupt(tx: Tx, ctx: Context, run: Run, *, by: str, message: str) -> Run:
    """Stop the agent of a run and queue the run again; costs it nothing."""
    return request_stop(tx, ctx, run, StopKind.INTERRUPT, reason=str(Reason.INTERRUPTED), message=message, by=by)


def close(tx: Tx, ctx: Context, run: Run, *, by: str, message: str = "done elsewhere") -> Run:
    """It was done elsewhere: completed, once its agent, if any, is gone."""
    if run.terminal:
        raise Conflict(f"run #{run.number} has ended already: {run.state}", hint="nothing is left to close")
    if run.held_by_agent:
        reason = str(Reason.EXTERNAL_COMPLETION)
        return request_stop(tx, ctx, run, StopKind.CLOSE, reason=reason, message=message, by=by)
    return move(tx, ctx, run, RunEvent.CLOSE, by=by, reason=str(Reason.EXTERNAL_COMPLETION), message=message)


def answer(tx: Tx, ctx: Context, run: Run, text: str, *, by: str = OPERATOR) -> Run:
    """Answer the question of a blocked run; it is queued again with question and answer for its next prompt."""
    if not text.strip():
        raise InvalidInput("an answer needs words", hint=f"`interlock answer {run.number} 'what to do'`")
    return move(
        tx,
        ctx,
        run,
        RunEvent.ANSWER,
        by=by,
        reason=str(Reason.ANSWERED),
        message=text,
        changes={"answer": text},
    )


def hold(tx: Tx, ctx: Context, run: Run, *, by: str = OPERATOR) -> Run:
    """Keep a run from being dispatched. Raises :class:`Conflict` once it has ended."""
    return _set_held(tx, ctx, run, held=True, by=by)


def unhold(tx: Tx, ctx: Context, run: Run, *, by: str = OPERATOR) -> Run:
    """Let it be dispatched again."""
    return _set_held(tx, ctx, run, held=False, by=by)


def _set_held(tx: Tx, ctx: Context, run: Run, *, held: bool, by: str) -> Run:
    if run.terminal:
        raise Conflict(
            f"run #{run.number} has ended already: {run.state}",
            hint=f"`interlock retry {run.number}` makes a new run of it",
        )
    if run.held == held:
        return run
    # What kept it on hold is said no more once it is not.
    run = change(tx, ctx, run, held=held) if held else change(tx, ctx, run, held=held, message=None)
    if held and run.state is RunState.DISPATCHED:
        run = move(tx, ctx, run, RunEvent.WITHDRAW, by=by, reason=str(Reason.OPERATOR), message="it was put on hold")
    record(tx, ctx, run, Note.HOLD if held else Note.UNHOLD, by=by, before=run.state)
    return run


def set_priority(tx: Tx, ctx: Context, run: Run, priority: int, *, by: str = OPERATOR) -> Run:
    """Set a run's own priority; its route's is added. Raises :class:`Conflict` once it has ended."""
    if run.terminal:
        raise Conflict(
            f"run #{run.number} has ended already: {run.state}",
            hint=f"`interlock retry {run.number}` makes a new run of it",
        )
    _check_priority(priority)
    of_route = run.priority - run.base_priority
    before = run.base_priority
    run = change(tx, ctx, run, base_priority=priority, priority=priority + of_route)
    record(tx, ctx, run, Note.PRIORITY, by=by, before=run.state, message=f"priority {before} -> {priority}")
    return run


def _check_priority(priority: int) -> None:
    if abs(priority) > PRIORITY_LIMIT:
        raise InvalidInput(
            f"priority {priority} is out of range",
            hint=f"priorities lie between -{PRIORITY_LIMIT} and {PRIORITY_LIMIT}; higher goes first, 0 is the default",
        )


def pause(tx: Tx, ctx: Context, *, by: str = OPERATOR, message: str = "") -> Pause:
    """Dispatch nothing until :func:`resume`; open offers go back to the queue, running agents go on."""
    stored = paused(tx)
    if stored is not None:
        return stored
    state = Pause(by=by, at_ms=ctx.now_ms, message=message)
    set_pause(tx, state)
    withdraw_offers(tx, ctx, Reason.PAUSED, "dispatching was paused", 1_000_000)
    return state


def resume(tx: Tx) -> bool:
    """Dispatch again. False when it was not paused."""
    was = paused(tx) is not None
    set_pause(tx, None)
    return was


def put_route(tx: Tx, ctx: Context, route: Route) -> Route:
    """Add or change a route; in force at the next decision."""
    for what, value in (
        ("max_concurrent", route.max_concurrent),
        ("timeout_minutes", route.timeout_minutes),
        ("stall_minutes", route.stall_minutes),
    ):
        if value is not None and value < (0 if what == "max_concurrent" else 1):
            raise InvalidInput(f"{what} of a route is not to be {value}", hint="give a positive number")
    _check_priority(route.priority)
    _check_type(route.workflow_type)
    routes = tx.routes()
    before = routes.get(route.workflow_type)
    route = msgspec.structs.replace(route, created_at=before.created_at if before is not None else ctx.now_ms)
    tx.put_route(route)
    tx.hint()
    if route.priority or any(each.priority for each in routes.values()):
        _set_priorities(tx, route.workflow_type)
    return route


def _check_type(workflow_type: str) -> None:
    if not 0 < len(workflow_type) <= TYPE_LIMIT:
        raise InvalidInput(
            f"a workflow type is 1 to {TYPE_LIMIT} characters long, not {len(workflow_type)}",
            hint="such as review.code, or review.* for all that begin so",
        )


def _set_priorities(tx: Tx, changed: str) -> None:
    """Unfinished runs have the priority of their type's route added; that of ``changed`` is another one now, or gone."""
    routes = tx.routes()
    # A pattern may be for any type that there is.
    for workflow_type in tx.unfinished_types() if is_pattern(changed) else [changed]:
        route = route_for(workflow_type, routes)
        tx.set_route_priority(workflow_type, 0 if route is None else route.priority)


def delete_route(tx: Tx, workflow_type: str) -> None:
    """Remove a route. Raises :class:`NotFound`."""
    if not tx.delete_route(workflow_type):
        known = ", ".join(tx.routes()) or "none"
        raise NotFound(f"there is no route for '{workflow_type}'", hint=f"routes: {known}")
    _set_priorities(tx, workflow_type)
    tx.hint()


def agent_cannot_start(tx: Tx, ctx: Context, agent: str, reason: str) -> AgentHealth:
    """Mark an agent unavailable; it is tried again after a growing wait."""
    before = tx.healths().get(agent)
    if before is not None and before.retry_ms > ctx.now_ms:
        # Runs that were started together find it missing together: that is one try.
        return before
    tries = before.tries + 1 if before is not None else 1
    wait = equal_jitter_ms(exponential_ms(tries, 5 * SECOND, 300 * SECOND), ctx.rng)
    since = before.since_ms if before is not None else ctx.now_ms
    health = AgentHealth(agent=agent, reason=reason, since_ms=since, retry_ms=ctx.now_ms + wait, tries=tries)
    tx.put_health(health)
    return health


def agent_started(tx: Tx, agent: str) -> None:
    """It can be started after all."""
    tx.delete_health(agent)
    tx.hint()


def ask_to_end(tx: Tx, instances: Sequence[str], how: str) -> None:
    """Leave word for dispatchers to end."""
    for instance in instances:
        tx.set_instance_wanted(instance, how)


def prune(tx: Tx, ended_before_ms: int, bound: int) -> list[tuple[int, list[str]]]:
    """Delete up to ``bound`` whole terminal runs that ended before; returns number and attempt folders of each."""
    gone: list[tuple[int, list[str]]] = []
    for number in tx.prunable(ended_before_ms, bound):
        folders = [attempt.folder for attempt in tx.attempts(number) if attempt.folder is not None]
        tx.delete_run(number)
        gone.append((number, folders))
    if len(gone) < bound:
        tx.drop_empty_lanes()
    return gone


UNFINISHED = (
    RunState.QUEUED,
    RunState.DISPATCHED,
    RunState.CLAIMED,
    RunState.RUNNING,
    RunState.BLOCKED,
)
