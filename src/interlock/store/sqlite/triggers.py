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


def _words(values: Iterable[StrEnum]) -> str:
    return ", ".join(f"'{value}'" for value in sorted(values))


def _pairs(table: Table[Any]) -> str:
    return ", ".join(f"('{source}', '{target}')" for source, target in sorted(table.pairs))


def _refuse(name: str, when: str, table: str, condition: str, message: str) -> str:
    return (
        f"CREATE TRIGGER {PREFIX}{name} {when} ON {table}\n"
        f"WHEN {condition}\n"
        f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
    )


def trigger_statements() -> list[str]:
    """Every trigger, as one CREATE statement each."""
    return [*_run_guards(), *_log_guards(), *_slot_accounts(), *_lane_heads()]


def _run_guards() -> list[str]:
    states = _words(RUN.states)
    return [
        _refuse(
            "runs_born",
            "BEFORE INSERT",
            "runs",
            f"NEW.state <> '{RUN.initial}' OR NEW.fence <> 0"
            " OR EXISTS (SELECT 1 FROM runs WHERE id = NEW.id OR number = NEW.number)"
            " OR (NEW.unique_key IS NOT NULL AND EXISTS"
            " (SELECT 1 FROM runs WHERE unique_key = NEW.unique_key AND ended_ms IS NULL))",
            "illegal_transition: a run starts queued, once",
        ),
        _refuse(
            # Not before: there, SQLite does not say yet which number a row will get.
            "runs_numbered",
            "AFTER INSERT",
            "runs",
            "NEW.number < 1",
            "illegal_transition: numbers of runs start at 1",
        ),
        _refuse(
            "runs_state_known",
            "BEFORE UPDATE OF state",
            "runs",
            f"NEW.state NOT IN ({states})",
            "illegal_transition: no such state",
        ),
        _refuse(
            "runs_move",
            "BEFORE UPDATE OF state",
            "runs",
            f"NEW.state <> OLD.state AND (OLD.state, NEW.state) NOT IN (VALUES {_pairs(RUN)})",
            "illegal_transition: the machine has no such move",
        ),
        _refuse(
            "runs_identity",
            "BEFORE UPDATE",
            "runs",
            "NEW.number IS NOT OLD.number OR NEW.id IS NOT OLD.id OR NEW.unique_key IS NOT OLD.unique_key"
            " OR NEW.created_ms IS NOT OLD.created_ms",
            "illegal_transition: the identity of a run never changes",
        ),
        _refuse(
            "runs_fence",
            "BEFORE UPDATE OF fence, state",
            "runs",
            "NEW.fence NOT IN (OLD.fence, OLD.fence + 1)"
            " OR (OLD.state = 'dispatched' AND NEW.state = 'claimed') <> (NEW.fence = OLD.fence + 1)",
            "illegal_transition: the fence grows by one with a claim, and only then",
        ),
        _refuse(
            "runs_terminal",
            "BEFORE UPDATE",
            "runs",
            "OLD.ended_ms IS NOT NULL",
            "illegal_transition: a terminal run is final",
        ),
        _refuse(
            "runs_kept",
            "BEFORE DELETE",
            "runs",
            "OLD.ended_ms IS NULL",
            "illegal_transition: only a terminal run may be deleted",
        ),
        _refuse(
            "attempts_born",
            "BEFORE INSERT",
            "attempts",
            f"NEW.state <> '{ATTEMPT.initial}' OR NEW.ended_ms IS NOT NULL"
            " OR EXISTS (SELECT 1 FROM attempts WHERE run = NEW.run AND (fence = NEW.fence OR ended_ms IS NULL"
            " OR (NEW.request_id IS NOT NULL AND request_id = NEW.request_id)))"
            " OR NOT EXISTS (SELECT 1 FROM runs WHERE number = NEW.run AND fence = NEW.fence AND state = 'claimed')",
            "illegal_transition: an attempt starts with a claim, once",
        ),
        _refuse(
            "attempts_move",
            "BEFORE UPDATE OF state",
            "attempts",
            f"NEW.state <> OLD.state AND (OLD.state, NEW.state) NOT IN (VALUES {_pairs(ATTEMPT)})",
            "illegal_transition: the machine has no such move",
        ),
        _refuse(
            "attempts_ended",
            "BEFORE UPDATE OF state, ended_ms",
            "attempts",
            f"(NEW.ended_ms IS NOT NULL) <> (NEW.state IN ({_words(ATTEMPT.final)}))",
            "illegal_transition: an attempt has an end when its state says so",
        ),
        _refuse(
            "attempts_final",
            "BEFORE UPDATE",
            "attempts",
            "OLD.ended_ms IS NOT NULL",
            "illegal_transition: an attempt that has ended is final",
        ),
        _refuse(
            "attempts_identity",
            "BEFORE UPDATE OF run, fence, request_id",
            "attempts",
            "NEW.run IS NOT OLD.run OR NEW.fence IS NOT OLD.fence OR NEW.request_id IS NOT OLD.request_id",
            "illegal_transition: the identity of an attempt never changes",
        ),
        _refuse(
            "attempts_kept",
            "BEFORE DELETE",
            "attempts",
            "EXISTS (SELECT 1 FROM runs WHERE number = OLD.run)",
            "illegal_transition: an attempt stays as long as its run",
        ),
    ]


def _log_guards() -> list[str]:
    return [
        _refuse(
            "events_once",
            "BEFORE INSERT",
            "run_events",
            "EXISTS (SELECT 1 FROM run_events WHERE seq = NEW.seq)",
            "conflict: an event is written once",
        ),
        _refuse(
            "events_last",
            "AFTER INSERT",
            "run_events",
            "NEW.seq < 1 OR EXISTS (SELECT 1 FROM run_events WHERE seq > NEW.seq)",
            "conflict: an event goes to the end of the log",
        ),
        _refuse("events_fixed", "BEFORE UPDATE", "run_events", "1", "conflict: an event never changes"),
        _refuse(
            "events_kept",
            "BEFORE DELETE",
            "run_events",
            "EXISTS (SELECT 1 FROM runs WHERE number = OLD.run)",
            "conflict: an event stays as long as its run",
        ),
    ]


def _slot_accounts() -> list[str]:
    active = _words(ACTIVE)
    return [
        _refuse(
            "slots_taken",
            "BEFORE INSERT",
            "slots",
            "EXISTS (SELECT 1 FROM slots WHERE run = NEW.run AND key = NEW.key)"
            f" OR NOT EXISTS (SELECT 1 FROM runs WHERE number = NEW.run AND state IN ({active}))",
            "conflict: a slot is taken once, by an active run",
        ),
        _refuse("slots_fixed", "BEFORE UPDATE", "slots", "1", "conflict: a slot is taken or freed, never changed"),
        _refuse(
            # The slot of an agent is given back alone when another one takes the run over.
            "slots_kept",
            "BEFORE DELETE",
            "slots",
            "OLD.key NOT GLOB 'agent:*'"
            f" AND EXISTS (SELECT 1 FROM runs WHERE number = OLD.run AND state IN ({active}))",
            "conflict: a run keeps its slots as long as it is active",
        ),
        f"CREATE TRIGGER {PREFIX}slots_count_taken AFTER INSERT ON slots BEGIN\n"
        "INSERT INTO slot_counts (key, used) VALUES (NEW.key, 1)"
        " ON CONFLICT (key) DO UPDATE SET used = used + 1; END",
        f"CREATE TRIGGER {PREFIX}slots_count_freed AFTER DELETE ON slots BEGIN\n"
        "UPDATE slot_counts SET used = used - 1 WHERE key = OLD.key; END",
        # Whoever moves a run out of the active states frees its slots by doing so.
        f"CREATE TRIGGER {PREFIX}slots_freed AFTER UPDATE OF state ON runs\n"
        f"WHEN OLD.state IN ({active}) AND NEW.state NOT IN ({active})\n"
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
