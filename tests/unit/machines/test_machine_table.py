"""The class is the definition, the table is what decides: they agree on every pair of state and event."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from statemachine.exceptions import TransitionNotAllowed

from interlock.domain.errors import IllegalTransition
from interlock.domain.states import ACTIVE, ATTEMPT_ENDS, HELD_BY_AGENT, TERMINAL, AttemptState, RunState
from interlock.machines.table import ATTEMPT, RUN
from interlock.machines.table import TABLES as TYPED_TABLES

TABLES: dict[str, Any] = {**TYPED_TABLES}  # four machines, four types: a test looks at each in the same way

MACHINES = tuple(TABLES)


def events(machine: str) -> list[str]:
    return [str(event) for event in TABLES[machine].machine.events]


def at(machine: str, state: str) -> Any:
    """A real machine that stands in ``state``, restored as an actor restores it: without a callback."""
    return TABLES[machine].machine(model=SimpleNamespace(state=str(state)), state_field="state")


EVERY_PAIR = [
    pytest.param(machine, state, event, id=f"{machine}-{state}-{event}")
    for machine in MACHINES
    for state in TABLES[machine].states
    for event in events(machine)
]


@pytest.mark.parametrize(("machine", "state", "event"), EVERY_PAIR)
def test_class_and_table_agree(machine: str, state: Any, event: str) -> None:
    table, real = TABLES[machine], at(machine, state)
    if (state, event) in table.moves:
        real.send(event)
        assert real.current_state_value == table.target(state, event)
        assert real.model.state == table.target(state, event)
        return

    with pytest.raises(TransitionNotAllowed):
        real.send(event)
    assert real.current_state_value == state, "an illegal event leaves the state as it was"
    assert real.model.state == state

    before = dict(table.moves)
    with pytest.raises(IllegalTransition) as refused:
        table.target(state, event)
    assert str(state) in refused.value.message
    assert event in refused.value.message
    assert table.noun in refused.value.message
    hint = refused.value.hint or ""
    allowed = table.allowed(state)
    assert hint.removeprefix("possible now: ") == (", ".join(allowed) or "nothing: it is final")
    assert table.moves == before


def test_every_machine_has_a_table_and_a_noun_for_its_refusals() -> None:
    assert {name: table.noun for name, table in TABLES.items()} == {
        "run": "run",
        "attempt": "attempt",
        "worker": "pool worker",
        "dispatcher": "dispatcher",
    }


@pytest.mark.parametrize("machine", MACHINES)
def test_an_unknown_event_is_an_illegal_one(machine: str) -> None:
    table = TABLES[machine]
    with pytest.raises(IllegalTransition, match="cannot levitate"):
        table.target(table.initial, "levitate")


@pytest.mark.parametrize("machine", MACHINES)
def test_the_machine_has_the_states_of_its_enum(machine: str) -> None:
    table = TABLES[machine]
    assert [state.value for state in table.machine.states] == list(table.states)


@pytest.mark.parametrize("machine", MACHINES)
def test_allowed_events_stand_in_the_order_of_the_definition(machine: str) -> None:
    table = TABLES[machine]
    for state in table.states:
        assert table.allowed(state) == [e for e in events(machine) if (state, e) in table.moves]


@pytest.mark.parametrize("machine", MACHINES)
def test_no_transition_has_a_guard_or_an_action(machine: str) -> None:
    """The table knows neither, so with one of them it would answer otherwise than the class."""
    definition = TABLES[machine].machine
    for state in definition.states:
        hooks = [*state.enter, *state.exit]
        for transition in state.transitions:
            hooks += [*transition.cond, *transition.validators, *transition.before, *transition.on]
            hooks += [*transition.after]
        # By convention the library looks for methods such as on_enter_queued: there are none.
        assert not [hook for hook in hooks if not hook.is_convention or hasattr(definition, str(hook.func))]


@pytest.mark.parametrize("machine", MACHINES)
def test_an_event_leads_from_one_state_to_one_state(machine: str) -> None:
    """The table keeps one target per pair: a second transition in the class would be lost in silence."""
    pairs = [
        (state.value, str(event))
        for state in TABLES[machine].machine.states
        for transition in state.transitions
        for event in transition.events
    ]
    assert len(pairs) == len(set(pairs)) == len(TABLES[machine].moves)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_state_is_reachable(machine: str) -> None:
    table = TABLES[machine]
    assert reachable(machine, table.initial) == set(table.states)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_state_can_come_to_an_end(machine: str) -> None:
    table = TABLES[machine]
    assert table.final
    for state in table.states:
        assert reachable(machine, state) & table.final, f"{state} can never end"


@pytest.mark.parametrize("machine", MACHINES)
def test_the_final_states_are_those_without_a_way_out(machine: str) -> None:
    table = TABLES[machine]
    assert {state for state in table.states if not table.allowed(state)} == set(table.final)


@pytest.mark.parametrize("machine", MACHINES)
def test_pairs_are_the_moves_that_change_the_state(machine: str) -> None:
    table = TABLES[machine]
    assert table.pairs == {(s, t) for (s, _), t in table.moves.items() if s is not t}


def test_the_named_sets_of_states_are_those_of_the_machines() -> None:
    assert RUN.final == TERMINAL
    assert ATTEMPT.final == ATTEMPT_ENDS
    assert RUN.initial is RunState.QUEUED
    assert ATTEMPT.initial is AttemptState.PREPARING
    assert HELD_BY_AGENT < ACTIVE
    assert not ACTIVE & TERMINAL


def reachable(machine: str, start: Any) -> set[Any]:
    seen, ahead = {start}, [start]
    while ahead:
        here = ahead.pop()
        for (source, _), target in TABLES[machine].moves.items():
            if source == here and target not in seen:
                seen.add(target)
                ahead.append(target)
    return seen
