"""What every format draws: the states and arrows of one machine, with the way of one run laid over them.

Two things make a machine of forty moves readable. Events between the same two states share an arrow
("withdraw / retry / defer"). And where the same states all have the same moves ("cancel, from anywhere"), one
dashed *gate* that names these states stands for all of these arrows. A state that has no other way out is led
to its gate, so that the plain way does not break off. A move that a run took is always an arrow of its own,
from the very state it was in.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from interlock.domain.errors import InvalidInput
from interlock.domain.states import RunEvent
from interlock.machines.table import TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

MACHINES: tuple[str, ...] = tuple(TABLES)

NEW = "(new)"
# A gate costs the reader a look at its caption, so it has to save many arrows. Two states never hide behind
# one: the plain way through the machine would be cut in pieces.
ARROWS_SAVED_BY_A_GATE = 5
STATES_BEHIND_A_GATE = 3


@dataclass(frozen=True, slots=True)
class Move:
    """In ``source``, ``event`` leads to ``target``. ``steps``: when the run took it, counted from 1."""

    source: str
    event: str
    target: str
    steps: tuple[int, ...] = ()

    @property
    def loops(self) -> bool:
        """Whether the state stays as it is."""
        return self.source == self.target


@dataclass(frozen=True, slots=True)
class Gate:
    """A stand-in for several states that share moves."""

    name: str
    members: tuple[str, ...]
    caption: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """From a state, a gate (by name) or :data:`NEW` to a state, or without a label to a gate."""

    source: str
    target: str
    label: str
    taken: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """One machine, ready to be written down in any format."""

    machine: str
    noun: str
    about: str
    states: tuple[str, ...]
    initial: str
    final: frozenset[str]
    events: tuple[str, ...]
    moves: tuple[Move, ...]
    gates: tuple[Gate, ...]
    arrows: tuple[Arrow, ...]
    path: tuple[Move, ...] = ()
    visited: frozenset[str] = field(default_factory=frozenset)
    current: str | None = None

    @property
    def before_the_end(self) -> tuple[str, ...]:
        """The states that are not final."""
        return tuple(state for state in self.states if state not in self.final)


def picture(machine: str, *, taken: Sequence[tuple[str, str, str]] = (), current: str | None = None) -> Picture:
    """Compile the picture of ``machine``. Raises ``InvalidInput`` for what the machine does not know."""
    table = TABLES.get(machine)
    if table is None:
        raise InvalidInput(f"no such machine: {machine}", hint=f"one of: {', '.join(MACHINES)}")
    targets = {(str(source), event): str(target) for (source, event), target in table.moves.items()}
    states = tuple(str(state) for state in table.states)
    declared = list(table.events)
    if machine == "run":
        # The machine starts where this event leads: it is no move, but a reader looks for it.
        declared.insert(0, RunEvent.SUBMIT.value)
        targets[NEW, RunEvent.SUBMIT.value] = str(table.initial)
    if current is not None and current not in states:
        raise InvalidInput(f"a {table.noun} is never {current}", hint=f"one of: {', '.join(states)}")

    path = tuple(_step(table.noun, targets, step) for step in taken)
    steps: dict[tuple[str, str], list[int]] = {}
    for number, move in enumerate(path, start=1):
        steps.setdefault((move.source, move.event), []).append(number)
    moves = tuple(
        Move(source, event, targets[source, event], tuple(steps.get((source, event), ())))
        for source in (NEW, *states)
        for event in declared
        if (source, event) in targets
    )
    final = frozenset(str(state) for state in table.final)
    before_the_end = tuple(state for state in states if state not in final)
    gates, gated = _gates(moves, before_the_end)
    arrows = _arrows(moves, gates, gated)
    if machine != "run":
        arrows = (Arrow(NEW, str(table.initial), "", taken=bool(path)), *arrows)
    return Picture(
        machine=machine,
        noun=table.noun,
        about=sys.modules[table.machine.__module__].__doc__ or "",
        states=states,
        initial=str(table.initial),
        final=final,
        events=tuple(declared),
        moves=moves,
        gates=gates,
        arrows=arrows,
        path=path,
        visited=frozenset(state for move in path for state in (move.source, move.target) if state != NEW),
        current=current,
    )


def _step(noun: str, targets: dict[tuple[str, str], str], step: tuple[str, str, str]) -> Move:
    source, event, target = (str(word) for word in step)
    source = source or NEW
    if targets.get((source, event)) != target:
        raise InvalidInput(
            f"the {noun} machine has no move {source} -> {event} -> {target}",
            hint="a path holds moves only: leave notes out, and write the state before the first one as ''",
        )
    return Move(source, event, target)


def _gates(
    moves: Sequence[Move], before_the_end: tuple[str, ...]
) -> tuple[tuple[Gate, ...], dict[tuple[str, str], str]]:
    """The gates that pay, and which (event, target) goes through which of them."""
    sources: dict[tuple[str, str], list[str]] = {}
    for move in moves:
        if not move.loops and move.source != NEW:
            sources.setdefault((move.event, move.target), []).append(move.source)
    shared: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for pair, members in sources.items():
        shared.setdefault(tuple(members), []).append(pair)
    gates: list[Gate] = []
    gated: dict[tuple[str, str], str] = {}
    for behind, pairs in shared.items():
        saved = (len(behind) - 1) * len(pairs)
        if len(behind) < STATES_BEHIND_A_GATE or saved < ARROWS_SAVED_BY_A_GATE:
            continue
        everywhere = behind == before_the_end
        caption = "any state before the end" if everywhere else f"{', '.join(behind[:-1])} or {behind[-1]}"
        gate = Gate(f"gate{len(gates) + 1}", behind, caption)
        gates.append(gate)
        gated.update(dict.fromkeys(pairs, gate.name))
    return tuple(gates), gated


def _arrows(moves: Sequence[Move], gates: Sequence[Gate], gated: dict[tuple[str, str], str]) -> tuple[Arrow, ...]:
    labels: dict[tuple[str, str, bool], list[str]] = {}
    through: dict[tuple[str, str], list[str]] = {}
    for move in moves:
        gate = gated.get((move.event, move.target)) if not move.loops else None
        if gate is not None:
            events = through.setdefault((gate, move.target), [])
            if move.event not in events:
                events.append(move.event)
        if move.steps:
            label = f"[{numbers(move.steps)}] {move.event}"
            labels.setdefault((move.source, move.target, True), []).append(label)
        elif gate is None:
            labels.setdefault((move.source, move.target, False), []).append(move.event)
    drawn = [Arrow(source, target, " / ".join(words), taken) for (source, target, taken), words in labels.items()]
    leaving = {source for source, target, _ in labels if source != target}
    drawn += [Arrow(state, gate.name, "") for gate in gates for state in gate.members if state not in leaving]
    drawn += [
        Arrow(gate.name, target, " / ".join(events))
        for gate in gates
        for (name, target), events in through.items()
        if name == gate.name
    ]
    return tuple(drawn)


def numbers(steps: Sequence[int]) -> str:
    """Steps as a reader wants them: ``2, 5-7``; ``12x`` when that gets too long for an arrow."""
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    if len(ranges) > 4:
        return f"{len(steps)}x"
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
