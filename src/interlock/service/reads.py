"""Questions: lists, one run with its story, limits and their use, numbers, and why a run waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from interlock.decide.capacity import saturated, slot_keys
from interlock.decide.reasons import Wait, WaitKind
from interlock.decide.routing import agent_for, waits_for_route
from interlock.domain.run import Attempt, Event, Instance, Run
from interlock.domain.settings import Mode
from interlock.domain.states import RunState
from interlock.ports.store import Tx
from interlock.service.brakes import paused
from interlock.service.context import Context
from interlock.service.dispatching import circumstances

DISPATCHER_SILENT_MS = 60_000


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list, the newest first. ``before``: only numbers under it (for the next page)."""

    states: Sequence[str] = ()
    batch: str | None = None
    project: str | None = None
    tag: str | None = None
    type: str | None = None
    before: int | None = None
    limit: int = 100


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """A run that another one needs."""

    number: int
    id: str
    title: str
    state: RunState
    met: bool


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """A run with everything that is known of it."""

    run: Run
    attempts: list[Attempt]
    events: list[Event]
    needs: list[Need]
    slots: list[str]
    dependants: list[int]


def story(tx: Tx, run: Run) -> Story:
    """Everything about a run."""
    return Story(
        run=run,
        attempts=tx.attempts(run.number),
        events=tx.events_of(run.number),
        needs=_needs(tx, run),
        slots=tx.slots_of(run.number),
        dependants=tx.dependants(run.number),
    )


def _needs(tx: Tx, run: Run) -> list[Need]:
    found = []
    for number, met in tx.needs_of(run.number):
        need = tx.run(number)
        if need is not None:
            found.append(Need(number=need.number, id=need.id, title=need.task.title, state=need.state, met=met))
    return found


class LimitUse(msgspec.Struct, frozen=True, kw_only=True):
    """A slot key: how many are taken, how many there are (None: not limited), by which runs."""

    key: str
    used: int
    cap: int | None
    holders: list[tuple[int, str]]


def limits(tx: Tx, ctx: Context, *, holders: int = 5) -> list[LimitUse]:
    """Every limit, and every key that is in use."""
    around = circumstances(tx, ctx)
    used = tx.used()
    keys = dict.fromkeys([*around.caps, *sorted(used)])
    return [
        LimitUse(
            key=key,
            used=used.get(key, 0),
            cap=around.caps.get(key),
            holders=[(number, title) for number, _, title, _ in tx.slot_holders(key, holders)] if used.get(key) else [],
        )
        for key in keys
    ]


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers over the runs that ended within ``window_ms``; times in milliseconds, medians and 95th percentiles."""

    states: dict[str, int]
    window_ms: int
    attempts: int
    attempts_by_end: dict[str, int]
    wait_ms: dict[str, float]
    start_ms: dict[str, float]
    work_ms: dict[str, float]
    failure_rate: float
    per_hour: float


def stats(tx: Tx, ctx: Context, window_ms: int, *, bound: int = 10_000) -> Stats:
    """Dispatch count, claim latency, failure rate: over the last ``window_ms``, from at most ``bound`` attempts."""
    rows = tx.durations(ctx.now_ms - window_ms, bound)
    ends: dict[str, int] = {}
    for row in rows:
        ends[row[3]] = ends.get(row[3], 0) + 1
    finished = sum(ends.values())
    bad = sum(ends.get(end, 0) for end in ("failed", "timed_out", "stalled", "lost", "lapsed"))
    return Stats(
        states=tx.count_states(),
        window_ms=window_ms,
        attempts=finished,
        attempts_by_end=ends,
        wait_ms=_spread([row[0] for row in rows if row[0] is not None]),
        start_ms=_spread([row[1] for row in rows if row[1] is not None]),
        work_ms=_spread([row[2] for row in rows if row[2] is not None]),
        failure_rate=bad / finished if finished else 0.0,
        per_hour=finished * 3_600_000 / window_ms if window_ms else 0.0,
    )


def _spread(values: list[int]) -> dict[str, float]:
    if not values:
        return {}
    values.sort()
    return {
        "p50": float(values[len(values) // 2]),
        "p95": float(values[min(len(values) - 1, int(len(values) * 0.95))]),
        "max": float(values[-1]),
    }


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What ``why`` needs and the database does not hold: which dispatchers live, and the free memory."""

    alive: tuple[Instance, ...] = ()
    free_memory_bytes: int | None = None


def why(tx: Tx, ctx: Context, run: Run, around: Surroundings) -> list[Wait]:
    """Every reason that ``run`` has not started or ended, each with what would change it. The most binding first."""
    if run.terminal:
        return [_ended(run)]
    waits: list[Wait] = []
    if run.state in (RunState.CLAIMED, RunState.RUNNING):
        return _working(ctx, run, around)
    if run.state is RunState.BLOCKED:
        return [
            Wait(
                kind=WaitKind.BLOCKED,
                message=f"its agent asked: {run.question}",
                remedy=f"`interlock answer #{run.number} TEXT`, or cancel the run",
            )
        ]
    if run.state is RunState.DISPATCHED and run.pull:
        whom = f"agent '{run.agent}'" if run.agent else "any agent that takes it"
        waits.append(
            Wait(
                kind=WaitKind.OFFERED,
                message=f"it is offered to {whom}; nobody has claimed it yet",
                remedy="start an agent that pulls",
            )
        )
    agents = _agent_reasons(tx, ctx, run)
    # A run that came back because its agent cannot start waits for that, not for a time.
    said = {wait.details["reason"] for wait in agents if "reason" in wait.details}
    waits += [wait for wait in _own_reasons(tx, ctx, run) if wait.details.get("why") not in said]
    waits += agents
    if run.state is RunState.QUEUED:
        waits += _limit_reasons(tx, ctx, run)
    waits += _dispatcher_reasons(tx, ctx, run, around)
    if not waits:
        waits.append(_order_reason(tx, run))
    return waits


def _ended(run: Run) -> Wait:
    remedy = "" if run.state is RunState.COMPLETED else f"`interlock retry #{run.number}` makes a new run of it"
    return Wait(kind=WaitKind.ENDED, message=f"it ended {run.state} ({run.reason}): {run.message}", remedy=remedy)


def _working(ctx: Context, run: Run, around: Surroundings) -> list[Wait]:
    waits: list[Wait] = []
    if run.stop is not None:
        waits.append(
            Wait(
                kind=WaitKind.STOPPING,
                message=f"stopping ({run.stop.kind}): {run.stop.message}; it moves once its agent is gone",
                remedy="wait; its slots are kept until then",
            )
        )
    else:
        left = "" if run.timeout_at_ms is None else f", at most {_span(run.timeout_at_ms - ctx.now_ms)} more"
        who = f"agent '{run.agent}'" if run.agent else run.holder
        waits.append(Wait(kind=WaitKind.WORKING, message=f"{who} works on it (attempt {run.fence}{left})"))
    if not run.remote and run.owner not in {instance.id for instance in around.alive}:
        waits.append(
            Wait(
                kind=WaitKind.NOT_SUPERVISED,
                message=f"no dispatcher looks after its agent now (it was {run.owner})",
                remedy="`interlock up` (or the same `interlock run`) takes it up again",
            )
        )
    return waits


def _own_reasons(tx: Tx, ctx: Context, run: Run) -> list[Wait]:
    waits: list[Wait] = []
    if run.held:
        waits.append(Wait(kind=WaitKind.HELD, message="it is on hold", remedy=f"`interlock unhold #{run.number}`"))
    waits += [
        Wait(
            kind=WaitKind.NEED,
            message=f"it needs #{need.number} ({need.title}), which is {need.state}",
            remedy=f"`interlock why #{need.number}`",
            details={"need": need.number},
        )
        for need in _needs(tx, run)
        if not need.met
    ]
    if run.not_before_ms is not None and run.not_before_ms > ctx.now_ms:
        left = _span(run.not_before_ms - ctx.now_ms)
        if run.not_before_why is None:
            waits.append(
                Wait(
                    kind=WaitKind.NOT_BEFORE,
                    message=f"it is not to start before a certain time: in {left}",
                    remedy="it starts by itself then",
                    details={"not_before_ms": run.not_before_ms},
                )
            )
        else:
            waits.append(
                Wait(
                    kind=WaitKind.BACKOFF,
                    message=f"next try in {left}: {run.not_before_why}",
                    remedy="it goes on by itself then",
                    details={"not_before_ms": run.not_before_ms, "why": run.not_before_why},
                )
            )
    return waits


def _agent_reasons(tx: Tx, ctx: Context, run: Run) -> list[Wait]:
    around = circumstances(tx, ctx)
    agent = run.agent if run.state is RunState.DISPATCHED else agent_for(run.task, around.routes, ctx.settings)
    missing = waits_for_route(run.task, agent, around.agents, ctx.settings)
    if missing is not None and not (run.state is RunState.DISPATCHED and run.pull):
        what, _, remedy = missing.partition(": ")
        return [Wait(kind=WaitKind.NO_ROUTE, message=what, remedy=remedy)]
    health = tx.healths().get(agent or "")
    if health is not None and ctx.settings.mode is Mode.PUSH:
        when = max(0, health.retry_ms - ctx.now_ms)
        return [
            Wait(
                kind=WaitKind.AGENT_UNAVAILABLE,
                message=f"agent '{agent}' cannot be started: {health.reason}",
                remedy=f"put that right; it is tried again in {_span(when)}",
                details={"agent": agent, "tries": health.tries, "reason": health.reason},
            )
        ]
    return []


def _limit_reasons(tx: Tx, ctx: Context, run: Run) -> list[Wait]:
    around = circumstances(tx, ctx)
    agent = agent_for(run.task, around.routes, ctx.settings)
    waits: list[Wait] = []
    for full in saturated(slot_keys(run.task, agent, ctx.settings), tx.used(), around.caps):
        holders = tx.slot_holders(full.key, 5)
        by = ", ".join(f"#{number}" for number, *_ in holders)
        more = f" and {full.used - len(holders)} more" if full.used > len(holders) else ""
        noun, _, value = full.key.partition(":")
        what = f"{noun} '{value}'" if value else noun
        message = (
            f"the limit of {what} is full: {full.used} of {full.cap} in use, by {by}{more}"
            if holders
            else f"the limit of {what} is {full.cap}"
        )
        waits.append(
            Wait(
                kind=WaitKind.LIMIT,
                message=message,
                remedy="it starts when one of them ends; or raise the limit" if holders else "raise the limit",
                details={
                    "key": full.key,
                    "cap": full.cap,
                    "used": full.used,
                    "held_by": [h[0] for h in holders],
                },
            )
        )
    return waits


def _dispatcher_reasons(tx: Tx, ctx: Context, run: Run, around: Surroundings) -> list[Wait]:
    waits: list[Wait] = []
    pause = paused(tx)
    if pause is not None:
        since = _span(ctx.now_ms - pause.at_ms)
        words = f": {pause.message}" if pause.message else ""
        waits.append(
            Wait(
                kind=WaitKind.PAUSED,
                message=f"dispatching is paused since {since} by {pause.by}{words}",
                remedy="`interlock resume`",
            )
        )
    if not ctx.settings.enabled:
        waits.append(
            Wait(
                kind=WaitKind.DISABLED,
                message="dispatch.enabled is false",
                remedy="set it to true in interlock.yaml and restart the daemon",
            )
        )
    if not around.alive:
        waits.append(
            Wait(
                kind=WaitKind.NO_DISPATCHER,
                message="no dispatcher is running for this data folder",
                remedy="`interlock up` starts one",
            )
        )
        return waits
    working = [instance for instance in around.alive if instance.scope in (None, run.batch)]
    if not working:
        waits.append(
            Wait(
                kind=WaitKind.OUT_OF_SCOPE,
                message="the dispatcher that runs looks after another backlog only",
                remedy="`interlock up` takes everything",
            )
        )
    for instance in working:
        if instance.note:
            kind, remedy = WaitKind.STORE, "it goes on by itself once the store serves again"
            if "memory" in instance.note:
                kind, remedy = WaitKind.MEMORY, "it goes on once memory is free; or lower dispatch.minFreeMemory"
            waits.append(
                Wait(kind=kind, message=f"{instance.id} dispatches nothing now: {instance.note}", remedy=remedy)
            )
        elif instance.state in ("draining", "stopped"):
            waits.append(
                Wait(
                    kind=WaitKind.NO_DISPATCHER,
                    message=f"{instance.id} is {instance.state} and starts nothing new",
                    remedy="`interlock up` once it has ended",
                )
            )
    return waits


def _order_reason(tx: Tx, run: Run) -> Wait:
    ahead = tx.lane_rank(run, 1000)
    if ahead:
        many = "1000 or more" if ahead == 1000 else str(ahead)
        return Wait(
            kind=WaitKind.BEHIND,
            message=f"{many} run(s) like it go before it (higher priority, or older)",
            remedy=f"`interlock set #{run.number} --priority N` moves it up",
        )
    return Wait(kind=WaitKind.NEXT, message="nothing holds it back; it starts with the next free slot")


def _span(ms: int) -> str:
    seconds = max(0, ms) / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def to_builtins(value: Any) -> Any:
    """A value as plain JSON types."""
    return msgspec.to_builtins(value)
