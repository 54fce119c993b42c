"""Any sequence of events: the table and a real instance of the class go the same way, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statemachine.exceptions import TransitionNotAllowed

from interlock.domain.errors import IllegalTransition
from interlock.machines.table import TABLES as TYPED_TABLES
from interlock.testing import event_sequences

TABLES: dict[str, Any] = {**TYPED_TABLES}  # four machines, four types: a test looks at each in the same way


def vocabulary(machine: str) -> list[str]:
    """The machine's events and one that none of them has."""
    return [*(str(event) for event in TABLES[machine].machine.events), "levitate"]


def by_table(machine: str, state: Any, event: str) -> tuple[Any, bool]:
    try:
        return TABLES[machine].target(state, event), True
    except IllegalTransition:
        return state, False


def by_class(real: Any, event: str) -> tuple[Any, bool]:
    try:
        real.send(event)
    except TransitionNotAllowed:
        return real.current_state_value, False
    return real.current_state_value, True


@pytest.mark.parametrize("machine", list(TABLES))
@given(data=st.data())
def test_any_sequence_of_events(machine: str, data: st.DataObject) -> None:
    table = TABLES[machine]
    real = table.machine()
    state: Any = table.initial
    assert real.current_state_value == state
    for event in data.draw(st.lists(st.sampled_from(vocabulary(machine)), max_size=40)):
        expected = by_table(machine, state, event)
        assert by_class(real, event) == expected
        state = expected[0]
        assert sorted(str(e.id) for e in real.enabled_events()) == sorted(table.allowed(state))


@pytest.mark.parametrize("machine", list(TABLES))
@given(data=st.data())
def test_a_walk_along_allowed_events_ends_only_in_a_final_state(machine: Any, data: st.DataObject) -> None:
    """Random events mostly bounce; a walk gets deep into the machine."""
    table = TABLES[machine]
    real = table.machine()
    state: Any = table.initial
    moves = data.draw(event_sequences(machine, least=30, most=30))
    for move in moves:
        state = table.target(state, move.event)
        assert by_class(real, move.event) == (state, True)
    assert len(moves) == 30 or state in table.final
    assert (state in table.final) == (not table.allowed(state)) == real.is_terminated


@pytest.mark.parametrize("machine", list(TABLES))
@given(data=st.data())
def test_nothing_moves_once_it_is_over(machine: str, data: st.DataObject) -> None:
    table = TABLES[machine]
    end: Any = data.draw(st.sampled_from(sorted(table.final)))
    for event in data.draw(st.lists(st.sampled_from(vocabulary(machine)), max_size=10)):
        assert by_table(machine, end, event) == (end, False)
