"""What always holds (DESIGN section 3), and that every row is as the model has it. Looked at after every step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from interlock.domain.run import Attempt, Event, Lane, Run
from interlock.domain.states import Note, Reason, RunEvent
from interlock.machines.table import RUN
from interlock.ports.store import Tx
from interlock.service.reads import Filter
from interlock.testing.beside import values
from interlock.testing.beside.desk import ALL
from interlock.testing.promises import must

if TYPE_CHECKING:
    from interlock.testing.beside.beside import Beside

REASONS = frozenset(str(reason) for reason in Reason)
NOTES = frozenset(str(note) for note in Note)


@dataclass(frozen=True)
class Picture:
    """All that a check looks at, from one snapshot."""

    runs: dict[int, Run]
    attempts: dict[int, list[Attempt]]
    slots: dict[int, list[str]]
    needs: dict[int, list[tuple[int, bool]]]
    used: dict[str, int]
    recount: dict[str, int]
    slot_faults: list[str]
    lanes: list[Lane]
    events: list[Event]


def picture(tx: Tx, after: int) -> Picture:
    """What is stored now, and the events after ``after``."""
    runs = {run.number: run for run in reversed(tx.find_runs(Filter(limit=ALL)))}
    return Picture(
        runs=runs,
        attempts={number: tx.attempts(number) for number in runs},
        slots={number: tx.slots_of(number) for number in runs},
        needs={number: tx.needs_of(number) for number in runs},
        used=tx.used(),
        recount=tx.recount(),
        slot_faults=tx.slot_faults(),
        lanes=tx.lanes(ALL),
        events=tx.events_after(after, ALL),
    )


def check(beside: Beside) -> None:
    """Everything."""
    seen = beside.desk.read(lambda tx: picture(tx, beside.last_seq))
    _as_in_the_model(beside, seen)
    _one_live_claim(beside, seen)
    _ends_have_reasons(seen)
    _slots(beside, seen)
    _events(beside, seen)
    _finality(beside, seen)
    _deadlines(beside, seen)
    _lanes(beside, seen)
    _count(beside, seen.events)


def _as_in_the_model(beside: Beside, seen: Picture) -> None:
    world = beside.world
    missing = world.runs.keys() ^ seen.runs.keys()
    must(not missing, f"these runs are not there, or there and should not be: {sorted(missing)}")
    for number, run in world.runs.items():
        row = seen.runs[number]
        if run.window is not None:
            low, high = run.window
            kept = row.not_before_ms is not None and low <= row.not_before_ms <= high
            must(kept, f"#{number} waits until {row.not_before_ms}, which should lie between {low} and {high}")
            run.not_before, run.window = row.not_before_ms, None
        stored, wanted = _as_stored(row), _as_wanted(run)
        if not run.ended:
            stored["priority"], wanted["priority"] = row.priority, world.priority(run)
            stored["needs left"], wanted["needs left"] = row.needs_left, run.unmet
        if run.state in values.ACTIVE:
            stored["agent"], wanted["agent"] = row.agent, run.agent
        differences = [
            f"{what} is {stored[what]!r} and should be {wanted[what]!r}"
            for what in wanted
            if stored[what] != wanted[what]
        ]
        must(not differences, f"of #{number}, {'; '.join(differences)}")
        if not run.ended:
            unmet = sum(not met for _, met in seen.needs[number])
            must(row.needs_left == unmet, f"#{number} waits for {row.needs_left} needs, and {unmet} are not met")


def _as_stored(row: Run) -> dict[str, Any]:
    return {
        "state": str(row.state),
        "held": row.held,
        "fence": row.fence,
        "holder": row.holder,
        "remote": row.remote,
        "owner": row.owner,
        "owner epoch": row.owner_epoch,
        "open to all": row.pull,
        "lease": row.lease_expires_ms,
        "offered at": row.offered_ms,
        "claimed at": row.claimed_ms,
        "time-out": row.timeout_at_ms,
        "time spent": row.spent_ms,
        "stop intent": None if row.stop is None else (str(row.stop.kind), row.stop.reason),
        "failures": row.failures,
        "losts": row.losts,
        "defers": row.defers,
        "offers": row.offers,
        "releases": row.releases,
        "misfires": row.misfires,
        "dispatch count": row.dispatch_count,
        "not before": row.not_before_ms,
        "backoff": row.not_before_why is not None,
        "own priority": row.base_priority,
    }


def _as_wanted(run: values.Run) -> dict[str, Any]:
    return {
        "state": run.state,
        "held": run.held,
        "fence": run.fence,
        "holder": run.holder,
        "remote": run.remote,
        "owner": run.owner,
        "owner epoch": run.epoch,
        "open to all": run.pull,
        "lease": run.lease,
        "offered at": run.offered,
        "claimed at": run.claimed,
        "time-out": run.timeout_at,
        "time spent": run.spent,
        "stop intent": run.stop,
        "failures": run.failures,
        "losts": run.losts,
        "defers": run.defers,
        "offers": run.offers,
        "releases": run.releases,
        "misfires": run.misfires,
        "dispatch count": run.dispatches,
        "not before": run.not_before,
        "backoff": run.backoff,
        "own priority": run.own_priority,
    }


def _one_live_claim(beside: Beside, seen: Picture) -> None:
    for number, row in seen.runs.items():
        attempts = seen.attempts[number]
        fences = [attempt.fence for attempt in attempts]
        must(fences == list(range(1, row.fence + 1)), f"#{number} has attempts {fences} under fence {row.fence}")
        live = [attempt for attempt in attempts if attempt.ended_ms is None]
        must(
            len(live) == (1 if row.held_by_agent else 0), f"#{number} is {row.state} and has {len(live)} live attempts"
        )
        for attempt in live:
            same = attempt.fence == row.fence and attempt.holder == row.holder
            must(same, f"#{number} is held by {row.holder} under {row.fence}, its live attempt by {attempt.holder}")
        for attempt in attempts:
            asked = beside.world.runs[number].attempts[attempt.fence].asked
            must(
                attempt.ending_event == asked,
                f"attempt {attempt.fence} of #{number} ended by {attempt.ending_event}, should be {asked}",
            )
        before = beside.fences.get(number, 0)
        must(row.fence >= before, f"the fence of #{number} went back from {before} to {row.fence}")
        beside.fences[number] = row.fence


def _ends_have_reasons(seen: Picture) -> None:
    for number, row in seen.runs.items():
        if row.terminal:
            must(row.reason in REASONS, f"#{number} ended without a known reason: {row.reason!r}")
            must((row.message or "").strip(), f"#{number} ended without a message")
            must(row.ended_ms is not None, f"#{number} ended at no time")
        for attempt in seen.attempts[number]:
            if attempt.ended_ms is not None:
                must(attempt.reason in REASONS, f"attempt {attempt.fence} of #{number} ended without a known reason")
                must((attempt.message or "").strip(), f"attempt {attempt.fence} of #{number} ended without a message")


def _slots(beside: Beside, seen: Picture) -> None:
    must(not seen.slot_faults, f"the books of slots are wrong: {'; '.join(seen.slot_faults)}")
    must(seen.used == seen.recount, f"slots in use are {seen.used}, by a recount {seen.recount}")
    for number, run in beside.world.runs.items():
        must(
            seen.slots[number] == sorted(run.slots),
            f"#{number} holds the slots {seen.slots[number]} and should hold {sorted(run.slots)}",
        )
    wanted = dict(beside.world.used())
    must(seen.used == wanted, f"slots in use are {seen.used} and should be {wanted}")
    caps = beside.world.caps()
    for key, cap in caps.items():
        used = seen.used.get(key, 0)
        # A limit that was lowered evicts nobody.
        must(used <= max(cap, beside.in_use[key]), f"the limit {key} allows {cap} and {used} hold a slot of it")
    beside.explored.saw_limits(_of_the_configuration(beside, caps), seen.used, beside.in_use)
    beside.in_use = Counter(seen.used)


def _of_the_configuration(beside: Beside, caps: dict[str, int]) -> dict[str, int]:
    """The limits but those of routes that the walk itself made up."""
    made_up = {f"route:{name}" for name in beside.names.types} if beside.fixed else set()
    return {key: cap for key, cap in caps.items() if key not in made_up}


def _events(beside: Beside, seen: Picture) -> None:
    for event in seen.events:
        must(event.seq > beside.last_seq, f"event {event.seq} comes behind {beside.last_seq}")
        beside.last_seq = event.seq
        before = beside.replayed.get(event.run)
        must(
            event.from_state == before,
            f"the log of #{event.run} has a gap: {event.event} from {event.from_state} after {before}",
        )
        if event.event in NOTES:
            must(event.to_state == before, f"the note {event.event} moved #{event.run} to {event.to_state}")
        elif event.event == RunEvent.SUBMIT:
            must((before, event.to_state) == (None, "queued"), f"#{event.run} was submitted as {event.to_state}")
        else:
            target = None if before is None else RUN.moves.get((RUN.states(before), event.event))
            must(
                target is not None and str(target) == event.to_state,
                f"the machine has no {event.event} from {before} to {event.to_state} (#{event.run})",
            )
        beside.replayed[event.run] = event.to_state or ""
    states = {number: str(row.state) for number, row in seen.runs.items()}
    must(beside.replayed == states, f"the log tells {beside.replayed}, the runs are {states}")


def _finality(beside: Beside, seen: Picture) -> None:
    for number, row in seen.runs.items():
        if number in beside.finals:
            must(row == beside.finals[number], f"#{number} had ended and was changed")
        elif row.terminal:
            beside.finals[number] = row


def _deadlines(beside: Beside, seen: Picture) -> None:
    world = beside.world
    for number, row in seen.runs.items():
        run = world.runs[number]
        due, wanted = row.due_ms, world.due(run)
        if row.ready:
            must(world.is_ready(run), f"#{number} counts as ready and may not start")
            must(due is None, f"#{number} is ready and due at {due} as well")
        elif run.state == "queued" and world.is_ready(run):
            must(due is not None and due <= beside.now, f"nobody would wake #{number}")
        elif run.state == "dispatched" and not run.pull and run.not_before is not None and run.not_before <= beside.now:
            must(due in (wanted, run.timeout_at), f"#{number} is due at {due} and should be at {wanted}")
        else:
            must(due == wanted, f"#{number} is due at {due} and should be at {wanted}")


def _lanes(beside: Beside, seen: Picture) -> None:
    heads: dict[int, tuple[int, float, int]] = {}
    for row in seen.runs.values():
        if row.ready:
            order = (-row.priority, -row.score, row.number)
            heads[row.lane] = min(heads.get(row.lane, order), order)
    stored = [(lane.id, (-lane.head_priority, -lane.head_score, lane.head_number)) for lane in seen.lanes]
    must(dict(stored) == heads, f"the heads of lanes are {dict(stored)} and should be {heads}")
    orders = [order for _, order in stored]
    must(orders == sorted(orders), f"lanes do not come in the order of their heads: {orders}")
    if beside.rekeyed:
        lanes = {
            (row.lane, beside.world.lane(beside.world.runs[number]))
            for number, row in seen.runs.items()
            if str(row.state) == "queued"
        }
        apart = len({lane for lane, _ in lanes}) == len({key for _, key in lanes}) == len(lanes)
        must(apart, f"queued runs share lanes that they should not share, or the other way: {lanes}")


def _count(beside: Beside, events: list[Event]) -> None:
    for event in events:
        if event.event not in NOTES:
            beside.explored.count("events", event.event)
        if event.event == RunEvent.SUBMIT:
            beside.explored.runs += 1
        if event.to_state is not None and event.from_state != event.to_state:
            beside.explored.count("states", event.to_state)
