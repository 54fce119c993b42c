"""The triggers, generated from the machines: what makes an illegal move impossible for every program that opens the file.

Two of SQLite's ways around an UPDATE trigger are closed here as well. REPLACE deletes the old row without firing DELETE
triggers, so BEFORE INSERT refuses a key that is taken; and a key, once given, never changes, so that UPDATE OR REPLACE has
nothing to replace. RAISE(ABORT) is not softened by either. A trigger that guards a key names no columns: SET rowid = ... changes
``number`` without naming it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from interlock.domain.states import ACTIVE
from interlock.machines.table import ATTEMPT, RUN, Table

PREFIX = "interlock_"


def _one_of(column: str, values: Iterable[StrEnum]) -> str:
    """``column IN (...)``, spelled out: for a list of more than two SQLite fills a table anew at every row."""
    terms = [f"{column} = '{value}'" for value in sorted(values)]
    return f"({' OR '.join(terms)})"


def _moves(table: Table[Any]) -> str:
    """Whether OLD.state to NEW.state is a move of the machine."""
    targets: dict[StrEnum, list[StrEnum]] = {}
    for source, target in sorted(table.pairs):
        targets.setdefault(source, []).append(target)
    known = (f"(OLD.state = '{source}' AND {_one_of('NEW.state', of)})" for source, of in targets.items())
    return f"({' OR '.join(known)})"


def _guard(name: str, when: str, table: str, *refusals: tuple[str, str]) -> str:
    """One trigger that refuses with the message of the first condition that holds.

    One, because entering a trigger costs more than most of the conditions.
    """
    cases = "\n".join(f"WHEN {condition} THEN RAISE(ABORT, '{message}')" for condition, message in refusals)
    return f"CREATE TRIGGER {PREFIX}{name} {when} ON {table}\nBEGIN SELECT CASE\n{cases} END; END"


def trigger_statements() -> list[str]:
    """Every trigger, as one CREATE statement each."""
    return [*_run_guards(), *_attempt_guards(), *_log_guards(), *_slot_accounts(), *_lane_heads()]


def _run_guards() -> list[str]:
    return [
        _guard(
            "runs_born",
            "BEFORE INSERT",
            "runs",
            (
                f"NEW.state <> '{RUN.initial}' OR NEW.fence <> 0"
                " OR EXISTS (SELECT 1 FROM runs WHERE number = NEW.number) OR EXISTS (SELECT 1 FROM runs WHERE id = NEW.id)"
                " OR (NEW.unique_key IS NOT NULL AND EXISTS"
                " (SELECT 1 FROM runs WHERE unique_key = NEW.unique_key AND ended_ms IS NULL))",
                "illegal_transition: a run starts queued, once",
            ),
        ),
        _guard(
            # Not before: there, SQLite does not say yet which number a row will get.
            "runs_numbered",
            "AFTER INSERT",
            "runs",
            ("NEW.number < 1", "illegal_transition: numbers of runs start at 1"),
        ),
        _guard(
            "runs_changed",
            "BEFORE UPDATE",
            "runs",
            ("OLD.ended_ms IS NOT NULL", "illegal_transition: a terminal run is final"),
            (
                "NEW.number IS NOT OLD.number OR NEW.id IS NOT OLD.id OR NEW.unique_key IS NOT OLD.unique_key"
                " OR NEW.created_ms IS NOT OLD.created_ms",
                "illegal_transition: the identity of a run never changes",
            ),
            (
                f"NEW.state IS NOT OLD.state AND NOT {_moves(RUN)}",
                "illegal_transition: the machine has no such move",
            ),
            (
                "NEW.fence IS NOT OLD.fence + (OLD.state = 'dispatched' AND NEW.state = 'claimed')",
                "illegal_transition: the fence grows by one with a claim, and only then",
            ),
        ),
        _guard(
            "runs_kept",
            "BEFORE DELETE",
            "runs",
            ("OLD.ended_ms IS NULL", "illegal_transition: only a terminal run may be deleted"),
        ),
    ]


def _attempt_guards() -> list[str]:
    return [
        _guard(
            "attempts_born",
            "BEFORE INSERT",
            "attempts",
            (
                f"NEW.state <> '{ATTEMPT.initial}' OR NEW.ended_ms IS NOT NULL"
                " OR EXISTS (SELECT 1 FROM attempts WHERE run = NEW.run AND (fence = NEW.fence OR ended_ms IS NULL"
                " OR (NEW.request_id IS NOT NULL AND request_id = NEW.request_id)))"
                " OR NOT EXISTS (SELECT 1 FROM runs WHERE number = NEW.run AND fence = NEW.fence AND state = 'claimed')",
                "illegal_transition: an attempt starts with a claim, once",
            ),
        ),
        _guard(
            "attempts_changed",
            "BEFORE UPDATE",
            "attempts",
            ("OLD.ended_ms IS NOT NULL", "illegal_transition: an attempt that has ended is final"),
            (
                "NEW.run IS NOT OLD.run OR NEW.fence IS NOT OLD.fence OR NEW.request_id IS NOT OLD.request_id",
                "illegal_transition: the identity of an attempt never changes",
            ),
            (
                f"NEW.state IS NOT OLD.state AND NOT {_moves(ATTEMPT)}",
                "illegal_transition: the machine has no such move",
            ),
            (
                f"(NEW.ended_ms IS NOT NULL) <> {_one_of('NEW.state', ATTEMPT.final)}",
                "illegal_transition: an attempt has an end when its state says so",
            ),
        ),
        _guard(
            "attempts_kept",
            "BEFORE DELETE",
            "attempts",
            (
                "EXISTS (SELECT 1 FROM runs WHERE number = OLD.run)",
                "illegal_transition: an attempt stays as long as its run",
            ),
        ),
    ]


def _log_guards() -> list[str]:
    return [
        _guard(
            "events_once",
            "BEFORE INSERT",
            "run_events",
            ("EXISTS (SELECT 1 FROM run_events WHERE seq = NEW.seq)", "conflict: an event is written once"),
        ),
        _guard(
            "events_last",
            "AFTER INSERT",
            "run_events",
            (
                "NEW.seq < 1 OR EXISTS (SELECT 1 FROM run_events WHERE seq > NEW.seq)",
                "conflict: an event goes to the end of the log",
            ),
        ),
        _guard("events_fixed", "BEFORE UPDATE", "run_events", ("1", "conflict: an event never changes")),
        _guard(
            "events_kept",
            "BEFORE DELETE",
            "run_events",
            (
                "EXISTS (SELECT 1 FROM runs WHERE number = OLD.run)",
                "conflict: an event stays as long as its run",
            ),
        ),
    ]


def _slot_accounts() -> list[str]:
    is_active, was_active = _one_of("NEW.state", ACTIVE), _one_of("OLD.state", ACTIVE)
    active_run = f"EXISTS (SELECT 1 FROM runs WHERE number = {{row}}.run AND {_one_of('state', ACTIVE)})"
    return [
        _guard(
            "slots_taken",
            "BEFORE INSERT",
            "slots",
            (
                "EXISTS (SELECT 1 FROM slots WHERE run = NEW.run AND key = NEW.key)"
                f" OR NOT {active_run.format(row='NEW')}",
                "conflict: a slot is taken once, by an active run",
            ),
        ),
        _guard("slots_fixed", "BEFORE UPDATE", "slots", ("1", "conflict: a slot is taken or freed, never changed")),
        _guard(
            # The slot of an agent is given back alone when another one takes the run over.
            "slots_kept",
            "BEFORE DELETE",
            "slots",
            (
                f"OLD.key NOT GLOB 'agent:*' AND {active_run.format(row='OLD')}",
                "conflict: a run keeps its slots as long as it is active",
            ),
        ),
        f"CREATE TRIGGER {PREFIX}slots_count_taken AFTER INSERT ON slots BEGIN\n"
        "INSERT INTO slot_counts (key, used) VALUES (NEW.key, 1)"
        " ON CONFLICT (key) DO UPDATE SET used = used + 1; END",
        f"CREATE TRIGGER {PREFIX}slots_count_freed AFTER DELETE ON slots BEGIN\n"
        "UPDATE slot_counts SET used = used - 1 WHERE key = OLD.key; END",
        # Whoever moves a run out of the active states frees its slots by doing so.
        f"CREATE TRIGGER {PREFIX}slots_freed AFTER UPDATE OF state ON runs\n"
        f"WHEN {was_active} AND NOT {is_active}\n"
        "BEGIN DELETE FROM slots WHERE run = NEW.number; END",
    ]


_HEAD = (
    "UPDATE lanes SET (head_number, head_priority, head_score) = (SELECT number, priority, score FROM runs"
    " WHERE lane = {row}.lane AND ready = 1 ORDER BY priority DESC, score DESC, number LIMIT 1)"
    " WHERE id = {row}.lane"
)


def _lane_heads() -> list[str]:
    ahead = (
        "(head_number IS NULL OR NEW.priority > head_priority OR (NEW.priority = head_priority AND"
        " (NEW.score > head_score OR (NEW.score = head_score AND NEW.number < head_number))))"
    )
    return [
        f"CREATE TRIGGER {PREFIX}lanes_ready_born AFTER INSERT ON runs WHEN NEW.ready = 1 BEGIN\n"
        "UPDATE lanes SET head_number = NEW.number, head_priority = NEW.priority, head_score = NEW.score"
        f" WHERE id = NEW.lane AND {ahead}; END",
        f"CREATE TRIGGER {PREFIX}lanes_ready AFTER UPDATE OF ready, priority, score, lane ON runs\n"
        "WHEN NEW.ready = 1 OR (OLD.ready = 1 AND"
        " OLD.number = (SELECT head_number FROM lanes WHERE id = OLD.lane)) BEGIN\n"
        f"{_HEAD.format(row='NEW')};\n"
        f"{_HEAD.format(row='OLD')} AND OLD.lane <> NEW.lane; END",
    ]
