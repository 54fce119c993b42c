"""The one place where runs are admitted: choose, check every limit, take slots, offer or claim, in one transaction."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping

import msgspec

from interlock.decide.capacity import GLOBAL, caps, saturated, slot_keys
from interlock.decide.lanes import LaneKey
from interlock.decide.routing import agent_for, waits_for_route
from interlock.decide.staleness import timeout_at
from interlock.domain.attempt_files import attempt_folder
from interlock.domain.run import Attempt, Lane, Route, Run
from interlock.domain.settings import MINUTE, Agent, Mode, Settings
from interlock.domain.states import AttemptState, Reason, RunEvent
from interlock.ports.store import Tx
from interlock.service.context import SYSTEM, Context
from interlock.service.moves import change, move

PAUSED_META = "paused"
LANES_AT_ONCE = 64
ALL = 1_000_000


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a dispatching decision looks at beside the runs, read once per transaction."""

    routes: Mapping[str, Route]
    agents: Mapping[str, Agent]
    caps: Mapping[str, int]
    unavailable: frozenset[str]


def circumstances(tx: Tx, ctx: Context) -> Circumstances:
    """Routes, agents, limits and agents' health as they are now."""
    routes = tx.routes()
    healths = tx.healths()
    return Circumstances(
        routes=routes,
        agents={**tx.adhoc_agents(), **ctx.settings.agents},
        caps=caps(ctx.settings, routes),
        unavailable=frozenset(name for name, health in healths.items() if health.retry_ms > ctx.now_ms),
    )


class Dispatched(msgspec.Struct, frozen=True, kw_only=True):
    """What one round of dispatching did. ``claimed`` are ours to start; ``more``: the bound was reached, ask again."""

    claimed: list[tuple[Run, Agent]]
    offered: list[Run]
    more: bool


def dispatch(tx: Tx, ctx: Context, *, owner: str, scope: str | None, bound: int) -> Dispatched:
    """Dispatch up to ``bound`` ready runs in order (priority, score, age), as far as every limit allows.

    ``owner``: instance that claims for local agents. ``scope``: a batch to keep to, None for all.
    """
    claimed: list[tuple[Run, Agent]] = []
    offered: list[Run] = []
    if not ctx.settings.enabled or tx.meta(PAUSED_META) is not None:
        return Dispatched(claimed=[], offered=[], more=False)
    around = circumstances(tx, ctx)
    if ctx.settings.mode is Mode.PUSH:
        _withdraw_unwanted(tx, ctx, scope)
    # Runs that came back with their slots (lost, given back) go first: they hold what others wait for.
    for run in tx.offers(pull=False, limit=ALL):
        if len(claimed) == bound:
            break
        if (scope is None or run.batch == scope) and (run.not_before_ms is None or run.not_before_ms <= ctx.now_ms):
            agent = around.agents.get(run.agent or "")
            if agent is None or agent.name in around.unavailable:
                what = f"agent '{run.agent}' cannot be started"
                move(tx, ctx, run, RunEvent.WITHDRAW, by=SYSTEM, reason=Reason.AGENT_UNAVAILABLE, message=what)
            else:
                claimed.append((claim_local(tx, ctx, run, agent, around.routes, owner=owner), agent))
    used: Counter[str] = Counter(tx.used())
    heads = _Heads(tx)
    while len(claimed) + len(offered) < bound:
        if saturated((GLOBAL,), used, around.caps):
            return Dispatched(claimed=claimed, offered=offered, more=False)
        lane = heads.pop()
        if lane is None:
            return Dispatched(claimed=claimed, offered=offered, more=False)
        key = msgspec.json.decode(lane.key, type=LaneKey)
        if (scope is not None and key.batch != scope) or not _open(key, ctx, around, used):
            continue
        head = tx.run(lane.head_number)
        if head is None or not head.ready:
            continue
        agent_name = agent_for(head.task, around.routes, ctx.settings)
        keys = slot_keys(head.task, agent_name, ctx.settings)
        if saturated(keys, used, around.caps):
            # Lanes are still keyed by other limits than ours; the head's own keys decide.
            continue
        _admit(tx, ctx, head, agent_name, around, owner, claimed, offered)
        used.update(keys)
        heads.again(lane)
    return Dispatched(claimed=claimed, offered=offered, more=True)


def _withdraw_unwanted(tx: Tx, ctx: Context, scope: str | None) -> None:
    """Offers from a time when agents came for them: nobody comes in push mode, so they go back to the queue."""
    for run in tx.offers(pull=True, limit=ALL):
        if scope is None or run.batch == scope:
            message = "it was offered to agents that pull; the mode is push now"
            move(tx, ctx, run, RunEvent.WITHDRAW, by=SYSTEM, reason=Reason.NO_FITTING_AGENT, message=message)


def anything_to_dispatch(tx: Tx, settings: Settings) -> bool:
    """Whether there is a ready run and a free slot under the global limit, or a run that has its slots and is not under way."""
    if tx.offers(pull=False, limit=1) or (settings.mode is Mode.PUSH and tx.offers(pull=True, limit=1)):
        return True
    return bool(tx.lanes(1)) and tx.used_of(GLOBAL) < settings.limits.total


class _Heads:
    """Heads of lanes, the most urgent first, read from the index a few at a time.

    A lane whose head was dispatched comes again with its next one. It is kept here when that lies before what was read
    last; else the index gives it when its turn comes.
    """

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._heap: list[tuple[int, float, int, Lane]] = []
        self._last: Lane | None = None
        self._more = True

    @staticmethod
    def _order(lane: Lane) -> tuple[int, float, int]:
        return -lane.head_priority, -lane.head_score, lane.head_number

    def pop(self) -> Lane | None:
        """The next lane; None when every one was looked at."""
        if not self._heap and self._more:
            read = self._tx.lanes(LANES_AT_ONCE, self._last)
            self._more = len(read) == LANES_AT_ONCE
            if read:
                self._last = read[-1]
            # Sorted as the index gave them, hence a heap already.
            self._heap = [(*self._order(lane), lane) for lane in read]
        return heapq.heappop(self._heap)[3] if self._heap else None

    def again(self, lane: Lane) -> None:
        """Look at a lane again, its head having gone."""
        run = self._tx.lane_head(lane.id)
        if run is None:
            return
        head = Lane(id=lane.id, key=lane.key, head_number=run.number, head_priority=run.priority, head_score=run.score)
        if not self._more or (self._last is not None and self._order(head) <= self._order(self._last)):
            heapq.heappush(self._heap, (*self._order(head), head))


def _open(key: LaneKey, ctx: Context, around: Circumstances, used: Mapping[str, int]) -> bool:
    """Whether the runs of a lane may start now."""
    task = key.as_task()
    agent = agent_for(task, around.routes, ctx.settings)
    if ctx.settings.mode is Mode.PUSH and (
        waits_for_route(task, agent, around.agents, ctx.settings) is not None or agent in around.unavailable
    ):
        return False
    return not saturated(slot_keys(task, agent, ctx.settings), used, around.caps)


def _admit(
    tx: Tx,
    ctx: Context,
    run: Run,
    agent_name: str | None,
    around: Circumstances,
    owner: str,
    claimed: list[tuple[Run, Agent]],
    offered: list[Run],
) -> None:
    changes = {
        "agent": agent_name,
        "dispatch_count": run.dispatch_count + 1,
        "offers": 0,
        "releases": 0,
        "not_before_ms": None,
        "not_before_why": None,
    }
    if ctx.settings.mode is Mode.PULL:
        changes |= {"pull": True, "offered_ms": ctx.now_ms}
        if ctx.settings.deadline_ms is not None and run.first_claimed_ms is not None:
            changes["timeout_at_ms"] = timeout_at(run, ctx.now_ms, None, ctx.settings.deadline_ms)
        offered.append(move(tx, ctx, run, RunEvent.DISPATCH, by=SYSTEM, changes=changes))
        return
    run = move(tx, ctx, run, RunEvent.DISPATCH, by=SYSTEM, changes=changes)
    agent = around.agents[agent_name or ""]
    claimed.append((claim_local(tx, ctx, run, agent, around.routes, owner=owner), agent))


def attempt_timeout_ms(run: Run, agent: Agent | None, route: Route | None, settings: Settings) -> int:
    """Wall-clock limit of one attempt: the task's, else the route's, else the agent's, else the default."""
    if run.task.timeout_ms is not None:
        return run.task.timeout_ms
    if route is not None and route.timeout_minutes is not None:
        return route.timeout_minutes * MINUTE
    if agent is not None and agent.timeout_ms is not None:
        return agent.timeout_ms
    return settings.timeout_ms


def stall_limit_ms(run: Run, agent: Agent | None, route: Route | None, settings: Settings) -> int | None:
    """How long an attempt may show no sign of life, by the same order; None: for ever."""
    if run.task.stall_ms is not None:
        return run.task.stall_ms
    if route is not None and route.stall_minutes is not None:
        return route.stall_minutes * MINUTE
    if agent is not None and agent.stall_ms is not None:
        return agent.stall_ms
    return settings.stall_ms


def claim_local(tx: Tx, ctx: Context, run: Run, agent: Agent, routes: Mapping[str, Route], *, owner: str) -> Run:
    """Claim a dispatched run for an agent that this dispatcher is about to start."""
    route = routes.get(run.task.type) if run.task.type is not None else None
    timeout_ms = attempt_timeout_ms(run, agent, route, ctx.settings)
    return claim(
        tx,
        ctx,
        run,
        holder=f"{agent.name}/{run.number}.{run.fence + 1}",
        agent=agent.name,
        lease_ms=ctx.settings.leases.local_ms,
        timeout_ms=timeout_ms,
        owner=owner,
        request_id=None,
    )


def claim(
    tx: Tx,
    ctx: Context,
    run: Run,
    *,
    holder: str,
    agent: str | None,
    lease_ms: int,
    timeout_ms: int,
    owner: str | None,
    request_id: str | None,
) -> Run:
    """Claim a dispatched run: fence + 1, lease, attempt. ``owner`` None makes it a remote claim."""
    fence = run.fence + 1
    changes = {
        "fence": fence,
        "holder": holder,
        "agent": agent,
        "remote": owner is None,
        "pull": False,
        "offered_ms": None,
        "offers": 0,
        "owner": owner,
        "owner_epoch": run.owner_epoch + 1 if owner is not None else run.owner_epoch,
        "lease_expires_ms": ctx.now_ms + lease_ms,
        "claimed_ms": ctx.now_ms,
        "first_claimed_ms": run.first_claimed_ms if run.first_claimed_ms is not None else ctx.now_ms,
        "timeout_at_ms": timeout_at(run, ctx.now_ms, timeout_ms, ctx.settings.deadline_ms),
        "not_before_ms": None,
        "not_before_why": None,
    }
    claimed = move(tx, ctx, run, RunEvent.CLAIM, by=holder, changes=changes)
    tx.add_attempt(
        Attempt(
            run=run.number,
            fence=fence,
            state=AttemptState.PREPARING,
            holder=holder,
            agent=agent,
            owner=owner,
            remote=owner is None,
            request_id=request_id,
            claimed_ms=ctx.now_ms,
            folder=attempt_folder(run.number, fence, tx.meta("generation") or "0") if owner is not None else None,
        )
    )
    return claimed


def withdraw_offers(tx: Tx, ctx: Context, reason: Reason, message: str, bound: int) -> int:
    """Take up to ``bound`` open offers back to the queue: pause, drain. Claims are not touched. Returns how many."""
    runs = [*tx.offers(pull=True, limit=bound), *tx.offers(pull=False, limit=bound)][:bound]
    for run in runs:
        move(tx, ctx, run, RunEvent.WITHDRAW, by=SYSTEM, reason=reason, message=message)
    return len(runs)


def extend_offer(tx: Tx, ctx: Context, run: Run) -> Run:
    """Nobody was there who could have taken it: its time begins anew."""
    return change(tx, ctx, run, offered_ms=ctx.now_ms)
