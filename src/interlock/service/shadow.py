"""What a dispatcher would do, without doing it: decisions in a transaction that is undone.

The very commands that a dispatcher runs are run, on the database as it is now, in which those runs have been started once more of
which it was decided before that they start: they keep their slots until they end or go away. So limits, order, routes, pauses
and modes are those of reality, and nothing of it is written. Whoever calls undoes the transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from interlock.decide.reasons import Wait
from interlock.decide.routing import route_for
from interlock.domain.run import AgentHealth, Instance, Route, Run
from interlock.domain.settings import Agent, Mode, Settings
from interlock.domain.states import Reason, RunEvent, RunState
from interlock.domain.task import Task
from interlock.ports.store import Tx
from interlock.service.brakes import paused
from interlock.service.context import SYSTEM, Context
from interlock.service.dispatching import circumstances, claim_local, dispatch, withdraw_unwanted
from interlock.service.filing import begin_rekeying, rekey
from interlock.service.moves import change, move
from interlock.service.quarantine import unreadable
from interlock.service.waiting import Surroundings, Waiting

OWNER = "shadow"
ALL = 1_000_000
DUE = 10_000
REFILED = 2000
"""So many queued runs are filed anew in every round, where lanes are keyed by other limits than those in force."""
UNFIT_MS = 5000
LANES = 50
OLDEST = 150


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A run that would have been started or offered: with this task, for this agent, at this time."""

    number: int
    task: Task
    agent: str | None
    pull: bool
    at_ms: int
    fence: int
    dispatch_count: int
    by: str = ""
    """What the agent was chosen by, in words."""

    def happened(self, run: Run) -> bool:
        """Whether a dispatcher has done the same in truth meanwhile."""
        return run.dispatch_count >= self.dispatch_count if self.pull else run.fence >= self.fence


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    """A run that would have been active and is not any more, or is so in truth now: ``run`` as it is, None when deleted."""

    number: int
    run: Run | None


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waits, and the most binding reason."""

    number: int
    title: str
    wait: Wait


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What a round of dispatching would have done.

    ``again``: there may be more to decide at once. ``unchecked``: nobody has said yet whether this agent can be started, and the
    round ended there. ``next_ms``: when time alone may change something. ``queued``: how many wait. ``misfiled``: lanes are keyed
    by other limits than those in force, with too many runs to file them anew for a look.
    """

    taken: list[Taken]
    gone: list[Gone]
    again: bool
    unchecked: Agent | None
    waits: list[Waits]
    queued: int
    next_ms: int | None
    paused: bool
    misfiled: bool


def shadow(
    tx: Tx,
    ctx: Context,
    active: Sequence[Taken],
    *,
    me: Instance,
    fit: Collection[str] | None = None,
    unfit: Mapping[str, str] = {},
    bound: int = 64,
) -> Round:
    """One round, behind those that were decided before (``active``, in their order).

    ``fit``: agents that can be started, None for all; ``unfit``: agents that cannot, and why. To be undone by the caller.
    """
    _wake(tx, ctx)
    misfiled = not _refile(tx, ctx)
    _healths(tx, ctx, active, unfit)
    if ctx.settings.mode is Mode.PUSH and ctx.settings.enabled and paused(tx) is None:
        withdraw_unwanted(tx, ctx, None)
    gone = [left for taken in active if (left := _occupy(tx, ctx, taken)) is not None]
    done = dispatch(tx, ctx, owner=OWNER, scope=None, bound=bound, fit=fit)
    around = circumstances(tx, ctx)
    taken = [_taken(ctx, run, around.routes, pull=False) for run, _ in done.claimed]
    taken += [_taken(ctx, run, around.routes, pull=True) for run in done.offered]
    again = done.more or bool(taken)
    return Round(
        taken=taken,
        gone=gone,
        again=again,
        unchecked=None if done.unchecked is None else around.agents.get(done.unchecked),
        waits=[] if again else _waits(tx, ctx, me),
        queued=tx.count_states(finished=False).get(RunState.QUEUED, 0),
        next_ms=tx.next_due_ms(),
        paused=paused(tx) is not None,
        misfiled=misfiled,
    )


def _wake(tx: Tx, ctx: Context) -> None:
    """Let those start whose time has come; nobody else may be there to do it."""
    for number in tx.due(ctx.now_ms, DUE):
        run = tx.run(number)
        if run is not None and run.state is RunState.QUEUED and unreadable(run) is None:
            change(tx, ctx, run)


def _refile(tx: Tx, ctx: Context) -> bool:
    """File queued runs by the limits in force, as a dispatcher does when it starts. Whether all are."""
    after = begin_rekeying(tx, ctx)
    if after is not None:
        after = rekey(tx, ctx, after, REFILED)
    return after is None


def _healths(tx: Tx, ctx: Context, active: Sequence[Taken], unfit: Mapping[str, str]) -> None:
    """What starts would have told of agents: those that were started can be, those that were seen to be broken cannot."""
    started = {taken.agent: taken.at_ms for taken in active if not taken.pull}
    for name, health in tx.healths().items():
        if started.get(name, -1) >= health.retry_ms:
            tx.delete_health(name)
    for name, reason in unfit.items():
        retry_ms = ctx.now_ms + UNFIT_MS
        tx.put_health(AgentHealth(agent=name, reason=reason, since_ms=ctx.now_ms, retry_ms=retry_ms, tries=1))


def _occupy(tx: Tx, ctx: Context, taken: Taken) -> Gone | None:
    """Start a run once more that would have been started. Gone when it is not there to be started any more."""
    run = tx.run(taken.number)
    lost = run is not None and run.state is RunState.DISPATCHED and not run.pull
    if run is None or taken.happened(run) or not (run.state is RunState.QUEUED or (lost and not taken.pull)):
        return Gone(number=taken.number, run=run)
    if taken.pull and paused(tx) is not None:
        # A pause takes offers back.
        return Gone(number=taken.number, run=run)
    if lost and run.agent != taken.agent:
        why = f"agent '{run.agent}' cannot be started"
        run = move(tx, ctx, run, RunEvent.WITHDRAW, by=SYSTEM, reason=Reason.AGENT_UNAVAILABLE, message=why)
    if run.state is RunState.QUEUED:
        offered_ms = ctx.now_ms if taken.pull else None
        changes = {"task": taken.task, "agent": taken.agent, "pull": taken.pull, "offered_ms": offered_ms}
        run = move(tx, ctx, run, RunEvent.DISPATCH, by=SYSTEM, changes=changes)
    if not taken.pull:
        claim_local(tx, ctx, run, Agent(name=taken.agent or ""), {}, owner=OWNER)
    return None


def _taken(ctx: Context, run: Run, routes: Mapping[str, Route], *, pull: bool) -> Taken:
    by = chosen_by(run, routes, ctx.settings)
    return Taken(
        number=run.number,
        task=run.task,
        agent=run.agent,
        pull=pull,
        at_ms=ctx.now_ms,
        fence=run.fence,
        dispatch_count=run.dispatch_count,
        by=by,
    )


def chosen_by(run: Run, routes: Mapping[str, Route], settings: Settings) -> str:
    """What the agent of a run was chosen by: ``route review.*``."""
    task = run.task
    if task.agent is not None:
        return "its own"
    if (route := route_for(task.type, routes)) is not None:
        return f"route {route.workflow_type}"
    name = task.role or settings.default_role
    role = settings.roles.get(name or "")
    if role is not None and role.agent is not None:
        return f"role {name}"
    return "the default" if run.agent is not None else ""


def _waits(tx: Tx, ctx: Context, me: Instance) -> list[Waits]:
    """Why those wait that would go first, and the oldest ones."""
    numbers = [lane.head_number for lane in tx.lanes(LANES)]
    oldest = tx.queued_after(0, OLDEST)
    runs = {run.number: run for number in numbers if (run := tx.run(number)) is not None}
    runs |= {run.number: run for run in oldest}
    waiting = Waiting(tx, ctx, Surroundings(alive=(me,)))
    found = []
    for run in runs.values():
        wait = next(waiting.waits(run), None)
        if wait is not None:
            found.append(Waits(number=run.number, title=run.task.title, wait=wait))
    return found
