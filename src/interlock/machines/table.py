"""The tables compiled from the machines: what decides in the hot path, and what the database's triggers are made of.

A look-up costs 0.1 us where an event on an instance costs 80 us, and to load the library that the machines are written with
takes longer than all the rest of the program. So the tables are compiled ahead, into :mod:`interlock.machines.compiled`. Tests
prove that class and table agree on every pair of state and event.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from interlock.domain.errors import IllegalTransition
from interlock.domain.states import AttemptState, DispatcherState, RunState, WorkerState
from interlock.machines.compiled import COMPILED

if TYPE_CHECKING:
    from statemachine import StateMachine

S = TypeVar("S", RunState, AttemptState, WorkerState, DispatcherState)


class Table(Generic[S]):
    """The moves of one machine: (state, event) -> state. ``events`` are in the order in which the machine declares them."""

    def __init__(self, name: str, noun: str, states: type[S]) -> None:
        compiled = COMPILED[name]
        self.name = name
        self.noun = noun
        self.states: type[S] = states
        self.initial: S = states(compiled.initial)
        self.final: frozenset[S] = frozenset(map(states, compiled.final))
        self.events = compiled.events
        self.moves: dict[tuple[S, str], S] = {
            (states(source), event): states(target) for source, event, target in compiled.moves
        }
        self.pairs: frozenset[tuple[S, S]] = frozenset((s, t) for (s, _), t in self.moves.items() if s != t)

    @property
    def machine(self) -> type[StateMachine]:
        """The definition that it was compiled from."""
        module, _, name = COMPILED[self.name].definition.partition(":")
        definition: Any = getattr(import_module(module), name)
        machine: type[StateMachine] = definition
        return machine

    def target(self, state: S, event: str) -> S:
        """State after ``event``. Raises :class:`IllegalTransition` and changes nothing when there is no such move."""
        to = self.moves.get((state, event))
        if to is None:
            allowed = ", ".join(self.allowed(state)) or "nothing: it is final"
            raise IllegalTransition(f"a {self.noun} that is {state} cannot {event}", hint=f"possible now: {allowed}")
        return to

    def allowed(self, state: S) -> list[str]:
        """Events that are possible in ``state``."""
        return [event for event in self.events if (state, event) in self.moves]


RUN = Table("run", "run", RunState)
ATTEMPT = Table("attempt", "attempt", AttemptState)
WORKER = Table("worker", "pool worker", WorkerState)
DISPATCHER = Table("dispatcher", "dispatcher", DispatcherState)

TABLES: dict[str, Table[RunState] | Table[AttemptState] | Table[WorkerState] | Table[DispatcherState]] = {
    "run": RUN,
    "attempt": ATTEMPT,
    "worker": WORKER,
    "dispatcher": DISPATCHER,
}
