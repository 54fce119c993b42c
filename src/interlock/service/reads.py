"""Questions: lists, one run with its story, limits and their use, numbers, and why a run waits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from interlock.decide.lanes import LaneKey
from interlock.decide.reasons import Wait
from interlock.domain.run import Attempt, Event, Run
from interlock.domain.states import RunEvent, RunState
from interlock.ports.store import Tx
from interlock.service.context import Context
from interlock.service.dispatching import circumstances
from interlock.service.waiting import Surroundings, Waiting


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


def worked_ms(tx: Tx, ctx: Context, numbers: Sequence[int]) -> dict[int, int]:
    """Milliseconds under claims, by run: what a person calls how long it took (a deadline leaves downtime out)."""
    return {
        number: sum((attempt.ended_ms or ctx.now_ms) - attempt.claimed_ms for attempt in tx.attempts(number))
        for number in numbers
    }


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
            holders=[(number, title) for number, _, title, _ in tx.slot_holders(key, holders)]
            if holders and used.get(key)
            else [],
        )
        for key in keys
    ]


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """Runs in a state or a lane: how many, and for how long the oldest of them has been there, in milliseconds since its submit."""

    name: str
    runs: int
    oldest_ms: int


class SlotUse(msgspec.Struct, frozen=True, kw_only=True):
    """A slot key: how many are taken, and how many there are (None: not limited)."""

    key: str
    used: int
    cap: int | None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How often something happened. ``dispatches``: a run got its slots; ``redispatches``: an offer was made again; ``lapses``: a
    claim was lost for want of a heartbeat; ``retries``: a failed attempt is tried again.
    """

    submits: int = 0
    dispatches: int = 0
    redispatches: int = 0
    claims: int = 0
    lapses: int = 0
    retries: int = 0


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """How things stand, and numbers over the last ``window_ms``; times in milliseconds, medians and 95th percentiles.

    ``counts_cut``: the window holds more events than are looked at, and ``counts`` are of the newest of them. ``wait_ms``,
    ``start_ms`` and ``work_ms``: of the attempts of runs that ended; ``run_ms``: from a run's first claim to its end;
    ``claim_ms``: from an offer to its claim. ``queue``: unfinished runs by state; ``lanes``: runs that could start, the longest
    lanes first.
    """

    states: dict[str, int]
    window_ms: int
    attempts: int
    attempts_by_end: dict[str, int]
    wait_ms: dict[str, float]
    start_ms: dict[str, float]
    work_ms: dict[str, float]
    run_ms: dict[str, float]
    claim_ms: dict[str, float]
    failure_rate: float
    per_hour: float
    counts: Counts
    counts_cut: bool
    queue: list[Depth]
    lanes: list[Depth]
    slots: list[SlotUse]


LANES_SHOWN = 10
EVENTS_LOOKED_AT = 1_000_000


def stats(tx: Tx, ctx: Context, window_ms: int, *, bound: int = 10_000, most_events: int = EVENTS_LOOKED_AT) -> Stats:
    """Counts, latencies, failure rate, queue and slots: over the last ``window_ms``, from at most ``bound`` attempts, claims and
    runs, and the last ``most_events`` events.
    """
    since = ctx.now_ms - window_ms
    rows = tx.durations(since, bound)
    ends: dict[str, int] = {}
    for row in rows:
        ends[row[3]] = ends.get(row[3], 0) + 1
    finished = sum(ends.values())
    bad = sum(ends.get(end, 0) for end in ("failed", "timed_out", "stalled", "lost", "lapsed"))
    first = max(1, tx.last_seq() - most_events + 1)
    seq = _first_since(tx, since, first)
    return Stats(
        states=tx.count_states(),
        window_ms=window_ms,
        attempts=finished,
        attempts_by_end=ends,
        wait_ms=_spread([row[0] for row in rows if row[0] is not None]),
        start_ms=_spread([row[1] for row in rows if row[1] is not None]),
        work_ms=_spread([row[2] for row in rows if row[2] is not None]),
        run_ms=_spread(tx.run_durations(since, bound)),
        claim_ms=_spread(tx.claim_latencies(seq, since, bound)),
        failure_rate=bad / finished if finished else 0.0,
        per_hour=finished * 3_600_000 / window_ms if window_ms else 0.0,
        counts=_counts(tx, seq, since),
        counts_cut=seq == first > 1,
        queue=[_depth(ctx, state, many, made) for state, many, made in tx.state_ages()],
        lanes=[_depth(ctx, _lane_words(key), many, made) for key, many, made in tx.ready_lanes(LANES_SHOWN)],
        slots=[SlotUse(key=use.key, used=use.used, cap=use.cap) for use in limits(tx, ctx, holders=0)],
    )


def _first_since(tx: Tx, since_ms: int, first: int) -> int:
    """Sequence number from which events are of ``since_ms`` or later. Time grows along the log, but for steps of the clock."""
    low, high = first, tx.last_seq() + 1
    while low < high:
        middle = (low + high) // 2
        found = tx.event_from(middle)
        if found is None or found[1] >= since_ms:
            high = middle
        else:
            low = found[0] + 1
    return low


def _counts(tx: Tx, seq: int, since_ms: int) -> Counts:
    found: dict[str, int] = {}
    lapses = 0
    for event, lapsed, many in tx.event_counts(seq, since_ms):
        found[event] = found.get(event, 0) + many
        if lapsed and event == RunEvent.RELEASE:
            lapses += many
    return Counts(
        submits=found.get(RunEvent.SUBMIT, 0),
        dispatches=found.get(RunEvent.DISPATCH, 0),
        redispatches=found.get(RunEvent.REDISPATCH, 0),
        claims=found.get(RunEvent.CLAIM, 0),
        lapses=lapses,
        retries=found.get(RunEvent.RETRY, 0),
    )


def _depth(ctx: Context, name: str, runs: int, made_ms: int) -> Depth:
    return Depth(name=name, runs=runs, oldest_ms=max(0, ctx.now_ms - made_ms))


def _lane_words(text: str) -> str:
    """What the runs of a lane have in common: ``type review, tag gpu``."""
    try:
        key = msgspec.json.decode(text, type=LaneKey)
    except msgspec.DecodeError:
        return text
    named = {
        name: value
        for name in ("batch", "agent", "type", "role", "project", "tracker")
        if (value := getattr(key, name))
    }
    return (
        ", ".join([*(f"{name} {value}" for name, value in named.items()), *(f"tag {tag}" for tag in key.tags)]) or "any"
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


def why(tx: Tx, ctx: Context, run: Run, around: Surroundings) -> list[Wait]:
    """Every reason that ``run`` has not started or ended, each with what would change it. The most binding first."""
    return Waiting(tx, ctx, around).why(run)
