"""The run machine says what DESIGN section 2 says, and its rules for slots fit its states."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from interlock.domain.states import ACTIVE, TERMINAL, RunEvent, RunState
from interlock.machines.rules import RULES, Slots
from interlock.machines.run import RunMachine
from interlock.machines.table import RUN

if TYPE_CHECKING:
    from collections.abc import Iterable

# DESIGN section 2, restated on purpose: event, from, to, by, slots. A change has to be made in both.
DESIGN = """
submit     | (new)                               | queued     | O    |
dispatch   | queued                              | dispatched | S    | take
redispatch | dispatched                          | dispatched | S    | keep
withdraw   | dispatched, claimed, running        | queued     | S    | free
claim      | dispatched                          | claimed    | C    | keep
adopt      | claimed, running                    | same       | S    | keep
start      | claimed                             | running    | C    | keep
renew      | claimed, running                    | same       | C    | keep
complete   | claimed, running                    | completed  | C    | free
close      | any non-terminal                    | completed  | S    | free
retry      | claimed, running                    | queued     | C, S | free
release    | claimed, running                    | dispatched | C, S | keep
defer      | claimed, running                    | queued     | C    | free
block      | claimed, running                    | blocked    | C    | free
answer     | blocked                             | queued     | O    |
fail       | claimed, running                    | failed     | C    | free
reject     | queued, dispatched, blocked         | failed     | S    | free
time_out   | dispatched, claimed, running        | timed_out  | S    | free
cancel     | any non-terminal                    | cancelled  | O, S | free
"""
ROWS = [[cell.strip() for cell in line.split("|")] for line in DESIGN.strip().splitlines()]
LETTERS = {"claim holder": "C", "system": "S", "operator": "O"}
# Where RULES allow more than DESIGN's table: an operator too may say that a run was done elsewhere.
STATES = [state for state in RunState if state not in TERMINAL]


@pytest.mark.parametrize(("event", "sources", "target"), [row[:3] for row in ROWS[1:]])
def test_the_moves_are_those_of_the_design(event: str, sources: str, target: str) -> None:
    source_states = STATES if sources == "any non-terminal" else [RunState(s) for s in sources.split(", ")]
    wanted = {state: state if target == "same" else RunState(target) for state in source_states}
    assert {state: to for (state, name), to in RUN.moves.items() if name == event} == wanted


def test_the_events_are_those_of_the_design() -> None:
    declared = [str(event) for event in cast("Iterable[object]", RunMachine.events)]
    assert [row[0] for row in ROWS] == [event.value for event in RunEvent]
    assert declared == [event.value for event in RunEvent if event is not RunEvent.SUBMIT]
    assert RUN.initial == ROWS[0][2], "submit makes what the machine starts as"


@pytest.mark.parametrize(("event", "by", "slots"), [(row[0], row[3], row[4]) for row in ROWS])
def test_the_rules_are_those_of_the_design(event: str, by: str, slots: str) -> None:
    rule = RULES[RunEvent(event)]
    assert {LETTERS[who] for who in rule.by} == set(by.split(", "))
    assert rule.slots == (slots or "none")


def test_every_event_has_exactly_one_rule() -> None:
    assert list(RULES) == list(RunEvent)
    for rule in RULES.values():
        assert rule.when
        assert len(set(rule.by)) == len(rule.by) > 0


@pytest.mark.parametrize(("state", "event"), list(RUN.moves), ids=str)
def test_slots_are_held_in_the_active_states_and_nowhere_else(state: RunState, event: str) -> None:
    before, after = state in ACTIVE, RUN.target(state, event) in ACTIVE
    match RULES[RunEvent(event)].slots:
        case Slots.TAKE:
            assert (before, after) == (False, True)
        case Slots.KEEP:
            assert (before, after) == (True, True)
        case Slots.FREE:
            assert not after  # from a state without slots there is nothing to free
        case Slots.NONE:
            assert (before, after) == (False, False)


def test_a_new_run_holds_no_slot() -> None:
    assert RULES[RunEvent.SUBMIT].slots is Slots.NONE
    assert RUN.initial not in ACTIVE


def test_a_rule_cannot_be_changed() -> None:
    rule = RULES[RunEvent.CLAIM]
    with pytest.raises(AttributeError, match="immutable"):
        rule.slots = Slots.FREE  # type: ignore[misc]
