"""The one place where runs are admitted: choose, check every limit, take slots, offer or claim, in one transaction."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Mapping

import msgspec

from interlock.decide.capacity import GLOBAL, caps, saturated, slot_keys
from interlock.decide.lanes import LaneKey, Limited, lane_key
from interlock.decide.routing import agent_for, route_for, waits_for_route
from interlock.decide.staleness import timeout_at
from interlock.domain.attempt_files import attempt_folder
from interlock.domain.run import AgentHealth, Attempt, Lane, Route, Run
from interlock.domain.settings import MINUTE, Agent, Mode, Settings
from interlock.domain.states import AttemptState, Reason, RunEvent, RunState
from interlock.ports.store import Tx
from interlock.service.brakes import paused
from interlock.service.context import SYSTEM, Context
from interlock.service.moves import change, move
from interlock.service.quarantine import apart, quarantine, unreadable

LANES_AT_ONCE = 64
ALL = 1_000_000
TRIAL_MS = MINUTE
"""A run that tries an agent and has neither started nor failed after so long keeps nobody else from trying."""


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a dispatching decision looks at beside the runs, read once per transaction.

    ``on_trial``: agents that could not be started and whose wait is over, and since when; one run at a time tries them.
    """

    routes: Mapping[str, Route]
    agents: Mapping[str, Agent]
    caps: Mapping[str, int]
    unavailable: frozenset[str]
    on_trial: Mapping[str, int]


def circumstances(tx: Tx, ctx: Context) -> Circumstances:
    """Routes, agents, limits and agents' health as they are now."""
    routes = tx.routes()
    healths = tx.healths()
    return Circumstances(
        routes=routes,
        agents={**tx.adhoc_agents(), **ctx.settings.agents},
        caps=caps(ctx.settings, routes),
        unavailable=frozenset(name for name, health in healths.items() if health.retry_ms > ctx.now_ms),
        on_trial={name: health.retry_ms for name, health in healths.items() if health.retry_ms <= ctx.now_ms},
    )


class Dispatched(msgspec.Struct, frozen=True, kw_only=True):
    """What one round of dispatching did. ``claimed`` are ours to start; ``more``: it ended early, ask again.

    ``unchecked``: the round ended at a run for this agent, of which nobody has said that it can be started.
    """

    claimed: list[tuple[Run, Agent]]
    offered: list[Run]
    more: bool
    unchecked: str | None = None


def dispatch(
    tx: Tx, ctx: Context, *, owner: str, scope: str | None, bound: int, fit: Container[str] | None = None
) -> Dispatched:
    """Dispatch up to ``bound`` ready runs in order (priority, score, age), as far as every limit allows.

    ``owner``: instance that claims for local agents. ``scope``: a batch to keep to, None for all. ``fit``: agents that can be
    started as far as anybody can tell without starting them; None for all. A run that cannot be dealt with is put on hold.
    """
    if not ctx.settings.enabled or paused(tx) is not None:
        return Dispatched(claimed=[], offered=[], more=False)
    if ctx.settings.mode is Mode.PUSH:
        withdraw_unwanted(tx, ctx, scope)
    going = _Round(tx, ctx, owner, scope, bound)
    # Runs that came back with their slots (lost, given back) go first: they hold what others wait for.
    for run in tx.offers(pull=False, limit=ALL):
        if going.full:
            break
        if (scope is None or run.batch == scope) and (run.not_before_ms is None or run.not_before_ms <= ctx.now_ms):
            agent = going.around.agents.get(run.agent or "")
            if agent is None or agent.name in going.around.unavailable:
                going.withdraw(run)
            elif agent.name not in going.closed:
                if fit is not None and agent.name not in fit:
                    return going.over(more=True, unchecked=agent.name)
                going.claim(run, agent)
    used: Counter[str] = Counter(tx.used())
    heads = _Heads(tx)
    while not going.full:
        if saturated((GLOBAL,), used, going.around.caps):
            return going.over(more=False)
        lane = heads.pop()
        if lane is None:
            return going.over(more=False)
        key = _key_of(lane)
        if key is not None and not going.may_start(key, used):
            continue
        head = tx.run(lane.head_number)
        if head is None or not head.ready:
            continue
        if (fault := unreadable(head)) is not None:
            quarantine(tx, ctx, head.number, fault)
            heads.again(lane)
            continue
        if key is None and not going.may_start(lane_key(head.task, head.batch, Limited()), used):
            continue
        agent_name = agent_for(head.task, going.around.routes, ctx.settings)
        keys = slot_keys(head.task, agent_name, ctx.settings)
        if saturated(keys, used, going.around.caps):
            # Lanes are still keyed by other limits than ours; the head's own keys decide.
            continue
        if ctx.settings.mode is Mode.PUSH and fit is not None and agent_name is not None and agent_name not in fit:
            return going.over(more=True, unchecked=agent_name)
        if going.admit(head, agent_name):
            used.update(keys)
        heads.again(lane)
    return going.over(more=True)


class _Round:
    """What a round of dispatching has done so far. What is done for one run is a part of its own in the transaction.

    ``closed``: agents that get no run now, since they cannot be started or are being tried by another run.
    """

    def __init__(self, tx: Tx, ctx: Context, owner: str, scope: str | None, bound: int) -> None:
        self.tx = tx
        self.ctx = ctx
        self.owner = owner
        self.scope = scope
        self.bound = bound
        self.around = circumstances(tx, ctx)
        self.claimed: list[tuple[Run, Agent]] = []
        self.offered: list[Run] = []
        self.closed = set(self.around.unavailable)
        if self.around.on_trial:
            self.closed |= {run.agent for run in tx.live_runs() if run.agent is not None and self._tries(run)}

    def _tries(self, run: Run) -> bool:
        """Whether this run is about to show that its agent can be started after all."""
        since = self.around.on_trial.get(run.agent or "")
        if since is None or run.state is not RunState.CLAIMED or run.remote or run.claimed_ms is None:
            return False
        return run.claimed_ms >= max(since, self.ctx.now_ms - TRIAL_MS)

    @property
    def full(self) -> bool:
        return len(self.claimed) + len(self.offered) >= self.bound

    def over(self, *, more: bool, unchecked: str | None = None) -> Dispatched:
        return Dispatched(claimed=self.claimed, offered=self.offered, more=more, unchecked=unchecked)

    def may_start(self, key: LaneKey, used: Mapping[str, int]) -> bool:
        """Whether the runs of a lane may start now."""
        if self.scope is not None and key.batch != self.scope:
            return False
        settings = self.ctx.settings
        task = key.as_task()
        agent = agent_for(task, self.around.routes, settings)
        if settings.mode is Mode.PUSH and (
            waits_for_route(task, agent, self.around.agents, settings) is not None or agent in self.closed
        ):
            return False
        return not saturated(slot_keys(task, agent, settings), used, self.around.caps)

    def withdraw(self, run: Run) -> None:
        """An offer that nobody here can take goes back to the queue."""
        what = f"agent '{run.agent}' cannot be started"
        with apart(self.tx, self.ctx, run):
            move(self.tx, self.ctx, run, RunEvent.WITHDRAW, by=SYSTEM, reason=Reason.AGENT_UNAVAILABLE, message=what)

    def claim(self, run: Run, agent: Agent) -> None:
        """Claim a run that has its slots."""
        with apart(self.tx, self.ctx, run):
            if (fault := unreadable(run)) is not None:
                raise fault
            self._claimed(claim_local(self.tx, self.ctx, run, agent, self.around.routes, owner=self.owner), agent)

    def admit(self, run: Run, agent_name: str | None) -> bool:
        """Take its slots and offer or claim it. False when that does not work with this run."""
        before = len(self.claimed) + len(self.offered)
        with apart(self.tx, self.ctx, run):
            self._admit(run, agent_name)
        return len(self.claimed) + len(self.offered) > before

    def _admit(self, run: Run, agent_name: str | None) -> None:
        tx, ctx = self.tx, self.ctx
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
            if run.first_claimed_ms is not None:
                # From the first claim on, the time as an offer counts against the deadline.
                changes["claimed_ms"] = ctx.now_ms
                if ctx.settings.deadline_ms is not None:
                    changes["timeout_at_ms"] = timeout_at(run, ctx.now_ms, None, ctx.settings.deadline_ms)
            self.offered.append(move(tx, ctx, run, RunEvent.DISPATCH, by=SYSTEM, changes=changes))
            return
        run = move(tx, ctx, run, RunEvent.DISPATCH, by=SYSTEM, changes=changes)
        agent = self.around.agents[agent_name or ""]
        self._claimed(claim_local(tx, ctx, run, agent, self.around.routes, owner=self.owner), agent)

    def _claimed(self, run: Run, agent: Agent) -> None:
        self.claimed.append((run, agent))
        if agent.name in self.around.on_trial:
            self.closed.add(agent.name)


def _key_of(lane: Lane) -> LaneKey | None:
    """None for a key that another version, or a person, wrote: the lane's head speaks for itself then."""
    try:
        return msgspec.json.decode(lane.key, type=LaneKey)
    except msgspec.DecodeError:
        return None


def withdraw_unwanted(tx: Tx, ctx: Context, scope: str | None) -> None:
    """Offers from a time when agents came for them: nobody comes in push mode, so they go back to the queue."""
    for run in tx.offers(pull=True, limit=ALL):
        if scope is None or run.batch == scope:
            message = "it was offered to agents that pull; the mode is push now"
            with apart(tx, ctx, run):
                move(tx, ctx, run, RunEvent.WITHDRAW, by=SYSTEM, reason=Reason.NO_FITTING_AGENT, message=message)


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to be known before a round. ``anything``: a ready run and a free slot under the global limit, or a run that
    has its slots and is not under way.
    """

    paused: bool
    healths: Mapping[str, AgentHealth]
    anything: bool


def outlook(tx: Tx, settings: Settings) -> Outlook:
    """A look that costs microseconds."""
    anything = (
        bool(tx.offers(pull=False, limit=1))
        or (settings.mode is Mode.PUSH and bool(tx.offers(pull=True, limit=1)))
        or (bool(tx.lanes(1)) and tx.used_of(GLOBAL) < settings.limits.total)
    )
    return Outlook(paused=paused(tx) is not None, healths=tx.healths(), anything=anything)


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
        head = self._tx.lane_of(lane.id)
        if head is None:
            return
        if not self._more or (self._last is not None and self._order(head) <= self._order(self._last)):
            heapq.heappush(self._heap, (*self._order(head), head))


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
    route = route_for(run.task.type, routes)
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
            folder=attempt_folder(run.number, fence, tx.meta("generation") or "0"),
        )
    )
    return claimed


def withdraw_offers(tx: Tx, ctx: Context, reason: Reason, message: str, bound: int) -> int:
    """Take up to ``bound`` open offers back to the queue: pause, drain. Claims are not touched. Returns how many."""
    runs = [*tx.offers(pull=True, limit=bound), *tx.offers(pull=False, limit=bound)][:bound]
    for run in runs:
        with apart(tx, ctx, run):
            move(tx, ctx, run, RunEvent.WITHDRAW, by=SYSTEM, reason=reason, message=message)
    return len(runs)


def extend_offer(tx: Tx, ctx: Context, run: Run) -> Run:
    """Nobody was there who could have taken it: its time begins anew."""
    return change(tx, ctx, run, offered_ms=ctx.now_ms)
