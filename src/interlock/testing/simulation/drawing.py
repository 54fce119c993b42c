"""Draws scenarios: from settings and a seed to everything that will happen from outside."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from interlock.domain.run import Route
from interlock.domain.settings import (
    MINUTE,
    SECOND,
    Agent,
    Budgets,
    Limits,
    Mode,
    OnNeedFailed,
    OnNeverClaimed,
    OnTimeout,
    Retry,
    Role,
    Settings,
)
from interlock.testing.simulation.chances import chance_of
from interlock.testing.simulation.drawing_jobs import Workshop
from interlock.testing.simulation.scenario import Arrival, Deed, DeedKind, Entry, Fault, FaultKind, Job, Scenario

HOUR = 60 * MINUTE
DAY = 24 * HOUR
MIB = 1024 * 1024


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """How often what goes wrong: per simulated day, unless said otherwise.

    ``mischief``: the share of tasks whose agents do anything else than work and end well. ``meddling``: the share of tasks that a
    person does something to (cancel, close, retry, hold, priority). ``steering``: how often somebody pauses, changes a route or
    a limit, drains, stops or detaches a dispatcher.
    """

    kills: float = 8.0
    freezes: float = 5.0
    power_cuts: float = 1.0
    suspends: float = 1.0
    clock_steps: float = 2.0
    disk_fulls: float = 2.0
    outages: float = 3.0
    slow_disks: float = 2.0
    deafness: float = 2.0
    broken_agents: float = 3.0
    low_memory: float = 2.0
    mischief: float = 0.3
    meddling: float = 0.2
    steering: float = 8.0

    @classmethod
    def none(cls) -> Faults:
        """Fair weather: agents do their work, nobody meddles."""
        return cls(**dict.fromkeys(cls.__struct_fields__, 0.0))

    def often(self, times: float) -> Faults:
        """The same, so many times as often; shares stay as they are."""
        shares = {"mischief", "meddling"}
        rates = {name: getattr(self, name) for name in self.__struct_fields__ if name not in shares}
        return msgspec.structs.replace(self, **{name: times * rate for name, rate in rates.items()})


_RATES: dict[FaultKind, str] = {
    FaultKind.KILL: "kills",
    FaultKind.FREEZE: "freezes",
    FaultKind.POWER_CUT: "power_cuts",
    FaultKind.SUSPEND: "suspends",
    FaultKind.CLOCK_STEP: "clock_steps",
    FaultKind.DISK_FULL: "disk_fulls",
    FaultKind.OUTAGE: "outages",
    FaultKind.SLOW_DISK: "slow_disks",
    FaultKind.DEAFNESS: "deafness",
    FaultKind.BROKEN_AGENT: "broken_agents",
    FaultKind.LOW_MEMORY: "low_memory",
}
_SPANS = {
    FaultKind.KILL: (0, 1 * SECOND, 30 * SECOND, 5 * MINUTE, 40 * MINUTE),
    FaultKind.FREEZE: (2 * SECOND, 30 * SECOND, 6 * MINUTE, 25 * MINUTE),
    FaultKind.POWER_CUT: (10 * SECOND, 3 * MINUTE, 2 * HOUR),
    FaultKind.SUSPEND: (20 * SECOND, 10 * MINUTE, 8 * HOUR),
    FaultKind.CLOCK_STEP: (0,),
    FaultKind.DISK_FULL: (5 * SECOND, 2 * MINUTE, 20 * MINUTE),
    FaultKind.OUTAGE: (1 * SECOND, 20 * SECOND, 3 * MINUTE, 30 * MINUTE),
    FaultKind.SLOW_DISK: (30 * SECOND, 10 * MINUTE),
    FaultKind.DEAFNESS: (1 * MINUTE, 30 * MINUTE),
    FaultKind.BROKEN_AGENT: (10 * SECOND, 3 * MINUTE, 40 * MINUTE),
    FaultKind.LOW_MEMORY: (5 * SECOND, 5 * MINUTE),
}
_STEPS = (-HOUR, -10 * MINUTE, -8 * SECOND, -2 * SECOND, 2 * SECOND, 8 * SECOND, 10 * MINUTE, HOUR)
_STEERING = (
    DeedKind.PAUSE,
    DeedKind.ROUTE,
    DeedKind.LIMIT,
    DeedKind.LIMIT,
    DeedKind.DRAIN,
    DeedKind.STOP,
    DeedKind.DETACH,
    DeedKind.PRUNE,
)
_MEDDLING = (
    DeedKind.CANCEL,
    DeedKind.CANCEL,
    DeedKind.CLOSE,
    DeedKind.RETRY,
    DeedKind.RETRY,
    DeedKind.HOLD,
    DeedKind.PRIORITY,
)


def draw(
    settings: Settings,
    seed: int,
    *,
    hours: float = 24.0,
    runs: int = 300,
    routes: Sequence[Route] = (),
    faults: Faults | None = None,
    dispatchers: int = 2,
) -> Scenario:
    """A scenario: equal arguments give an equal one. See :func:`interlock.testing.simulation.simulate`."""
    faults = Faults() if faults is None else faults
    settings = _playable(settings)
    span_ms = int(hours * HOUR)
    workshop = Workshop(settings, routes, seed, span_ms=span_ms, runs=runs, mischief=faults.mischief)
    arrivals = _arrivals(workshop, chance_of(seed, "arrivals"), span_ms, runs)
    names = [(arrival.at_ms, job) for arrival in arrivals for job in arrival.jobs]
    entries: list[Entry] = [
        *arrivals,
        *_faults(faults, chance_of(seed, "faults"), span_ms, dispatchers, sorted(settings.agents)),
        *_meddling(names, chance_of(seed, "meddling"), faults.meddling, workshop.mean_ms),
        *_steering(settings, routes, chance_of(seed, "steering"), faults.steering, span_ms, dispatchers),
    ]
    entries.sort(key=lambda entry: entry.at_ms)
    return Scenario(
        seed=seed,
        settings=settings,
        hours=hours,
        dispatchers=dispatchers,
        pullers=0 if settings.mode is Mode.PUSH else max(2, min(12, settings.limits.total)),
        routes=tuple(routes),
        entries=tuple(entries),
    )


def _playable(settings: Settings) -> Settings:
    """Without what speaks of files that a world of paper does not have."""
    roles = {name: msgspec.structs.replace(role, prompt=None) for name, role in settings.roles.items()}
    return msgspec.structs.replace(settings, roles=roles)


def _arrivals(workshop: Workshop, chance: Random, span_ms: int, runs: int) -> list[Arrival]:
    """Singles and bursts, up to ``runs`` tasks; half of them come in bursts."""
    arrivals: list[Arrival] = []
    left = runs
    while left > 0:
        size = 1 if chance.random() < 0.8 else min(left, chance.choice((2, 3, 5, 8, 13, 30)))
        left -= size
        at_ms = chance.randrange(max(1, span_ms))
        arrivals.append(Arrival(at_ms=at_ms, jobs=workshop.jobs(size, at_ms)))
    arrivals.sort(key=lambda arrival: arrival.at_ms)
    return _named(arrivals, chance)


def _named(arrivals: list[Arrival], chance: Random) -> list[Arrival]:
    """Names in order of arrival, and needs on some that came before."""
    named: list[Arrival] = []
    count = 0
    for arrival in arrivals:
        jobs: list[Job] = []
        first = count
        for job in arrival.jobs:
            within = [f"t{n}" for n in range(first, count)]
            needs = tuple(sorted(set(chance.choices(within, k=chance.choice((1, 1, 2)))))) if within else ()
            if chance.random() > 0.3:
                needs = ()
            after = (f"t{chance.randrange(max(0, first - 20), first)}",) if first and chance.random() < 0.05 else ()
            task = msgspec.structs.replace(job.task, id=f"t{count}", title=f"task {count}", needs=needs)
            jobs.append(msgspec.structs.replace(job, task=task, after=after))
            count += 1
        named.append(msgspec.structs.replace(arrival, jobs=tuple(jobs)))
    return named


def _times(chance: Random, per_day: float, span_ms: int) -> list[int]:
    expected = per_day * span_ms / DAY
    count = int(expected) + (chance.random() < expected % 1)
    return sorted(chance.randrange(max(1, span_ms)) for _ in range(count))


def _faults(faults: Faults, chance: Random, span_ms: int, dispatchers: int, agents: list[str]) -> list[Fault]:
    found = []
    for kind, rate in _RATES.items():
        for at_ms in _times(chance, getattr(faults, rate), span_ms):
            agent = chance.choice(agents) if kind is FaultKind.BROKEN_AGENT and agents else None
            if kind is FaultKind.BROKEN_AGENT and agent is None:
                continue
            fault = Fault(
                at_ms=at_ms,
                kind=kind,
                ms=int(chance.choice(_SPANS[kind]) * chance.uniform(0.7, 1.3)),
                who=chance.randrange(max(1, dispatchers)),
                step_ms=chance.choice(_STEPS) if kind is FaultKind.CLOCK_STEP else 0,
                agent=agent,
                seen=chance.random() < 0.5,
            )
            found.append(fault)
            if kind is FaultKind.FREEZE and chance.random() < 0.3:
                # Killed while it is stopped: what it was about to do must never be done.
                killed_at = at_ms + int(fault.ms * chance.random())
                found.append(Fault(at_ms=killed_at, kind=FaultKind.KILL, ms=10 * SECOND, who=fault.who))
    return found


def _meddling(names: list[tuple[int, Job]], chance: Random, share: float, mean_ms: int) -> list[Deed]:
    deeds = []
    for arrived_ms, job in names:
        if chance.random() >= share:
            continue
        kind = chance.choice(_MEDDLING)
        # Close enough to its life that it comes while it is queued, about to start, at work, or just over.
        at_ms = arrived_ms + int(chance.choice((0.01, 0.3, 1.0, 3.0)) * mean_ms * chance.random())
        at_work = kind is not DeedKind.RETRY and chance.random() < 0.5
        deeds.append(Deed(at_ms=at_ms, kind=kind, job=job.name, at_work=at_work, number=chance.choice((-5, 1, 10))))
        if kind is DeedKind.HOLD:
            deeds.append(Deed(at_ms=at_ms + chance.randrange(1, 2 * mean_ms), kind=DeedKind.UNHOLD, job=job.name))
    return deeds


def _steering(
    settings: Settings, routes: Sequence[Route], chance: Random, per_day: float, span_ms: int, dispatchers: int
) -> list[Deed]:
    deeds = []
    for at_ms in _times(chance, per_day, span_ms):
        kind = chance.choice(_STEERING)
        who, ms = chance.randrange(max(1, dispatchers)), chance.choice((1 * SECOND, MINUTE, 10 * MINUTE))
        if kind is DeedKind.PAUSE:
            deeds.append(Deed(at_ms=at_ms, kind=kind))
            deeds.append(Deed(at_ms=at_ms + chance.randrange(1, 20 * MINUTE), kind=DeedKind.RESUME))
        elif kind is DeedKind.ROUTE and routes:
            route = chance.choice(list(routes))
            cap = chance.choice((0, 1, 2, None, route.max_concurrent))
            changed = msgspec.structs.replace(route, max_concurrent=cap)
            deeds.append(Deed(at_ms=at_ms, kind=kind, route=changed))
            deeds.append(Deed(at_ms=at_ms + chance.randrange(1, 2 * HOUR), kind=kind, route=route))
        elif kind is DeedKind.LIMIT:
            total = max(0, int(settings.limits.total * chance.choice((0.3, 0.6, 1.0, 1.5))))
            deeds.append(Deed(at_ms=at_ms, kind=kind, who=who, ms=ms, number=total))
        elif kind is DeedKind.PRUNE:
            deeds.append(Deed(at_ms=at_ms, kind=kind, ms=chance.choice((10 * MINUTE, 6 * HOUR, DAY))))
        elif kind is not DeedKind.ROUTE:
            deeds.append(Deed(at_ms=at_ms, kind=kind, who=who, ms=ms))
    return deeds


def draw_settings(seed: int) -> tuple[Settings, tuple[Route, ...]]:
    """Settings and routes as somebody might have them: limits of every kind, several agents, roles. For campaigns of our own."""
    chance = chance_of(seed, "settings")

    def some(*names: str) -> dict[str, int]:
        return {name: chance.choice((1, 1, 2, 3)) for name in names if chance.random() < 0.6}

    settings = Settings(
        mode=Mode.PULL if chance.random() < 0.15 else Mode.PUSH,
        limits=Limits(
            total=chance.choice((1, 2, 3, 4, 6, 10)),
            per_project=some("web", "api"),
            per_tracker=some("jira"),
            per_role=some("reviewer"),
            per_tag=some("gpu", "db"),
            per_agent=some("coder"),
        ),
        retry=Retry(max_retries=chance.choice((0, 1, 3))),
        budgets=Budgets(max_losts=chance.choice((2, 5)), max_defers=chance.choice((2, 20))),
        agents={
            "coder": Agent(name="coder", command="coder", stall_ms=chance.choice((None, 20 * MINUTE))),
            "tester": Agent(name="tester", command="tester", max_concurrent=chance.choice((None, 1, 2))),
            "writer": Agent(name="writer", command="writer", timeout_ms=30 * MINUTE, grace_ms=30 * SECOND),
        },
        roles={
            "reviewer": Role(name="reviewer", agent="tester"),
            "author": Role(name="author", agent=chance.choice((None, "writer"))),
        },
        default_agent=chance.choice(("coder", "coder", "tester")),
        default_role=chance.choice((None, None, "author")),
        timeout_ms=chance.choice((10, 20, 20, 60)) * MINUTE,
        deadline_ms=chance.choice((None, None, 3 * HOUR)),
        on_timeout=chance.choice(list(OnTimeout)),
        on_need_failed=chance.choice(list(OnNeedFailed)),
        on_never_claimed=chance.choice(list(OnNeverClaimed)),
        min_free_memory_bytes=chance.choice((0, 0, 0, 512 * MIB)),
    )
    routes = [
        Route(
            workflow_type="review",
            agent_id="tester",
            priority=chance.choice((0, 5)),
            max_concurrent=2,
            timeout_minutes=20,
        ),
        Route(
            workflow_type="docs",
            agent_id="writer",
            max_concurrent=chance.choice((None, 1)),
            timeout_minutes=30,
            stall_minutes=15,
        ),
    ]
    return settings, tuple(route for route in routes if chance.random() < 0.8)
