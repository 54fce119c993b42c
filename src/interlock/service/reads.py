"""Questions: lists, one run with its story, limits and their use, numbers, and why a run waits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from interlock.decide.reasons import Wait
from interlock.domain.run import Attempt, Event, Run
from interlock.domain.states import RunState
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


def why(tx: Tx, ctx: Context, run: Run, around: Surroundings) -> list[Wait]:
    """Every reason that ``run`` has not started or ended, each with what would change it. The most binding first."""
    return Waiting(tx, ctx, around).why(run)
