"""Compile the machines into ``compiled.py``, or say that it is stale: ``python -m interlock.machines.compile [--check]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from statemachine import StateMachine

from interlock.machines.attempt import AttemptMachine
from interlock.machines.dispatcher import DispatcherMachine
from interlock.machines.pool_worker import WorkerMachine
from interlock.machines.run import RunMachine

COMMAND = "python -m interlock.machines.compile"
TARGET = Path(__file__).with_name("compiled.py")
DEFINITIONS: dict[str, type[StateMachine]] = {
    "run": RunMachine,
    "attempt": AttemptMachine,
    "worker": WorkerMachine,
    "dispatcher": DispatcherMachine,
}
_HEAD = f'''"""The moves of the machines, as plain values. Compiled by `{COMMAND}`. Do not edit."""

from __future__ import annotations

from typing import NamedTuple


class Compiled(NamedTuple):
    """One machine. ``moves`` are (state, event, state)."""

    definition: str
    initial: str
    final: tuple[str, ...]
    events: tuple[str, ...]
    moves: tuple[tuple[str, str, str], ...]


COMPILED: dict[str, Compiled] = {{
'''


def compiled() -> str:
    """The text of the module."""
    return _HEAD + "".join(_entry(name, machine) for name, machine in DEFINITIONS.items()) + "}\n"


def _entry(name: str, machine: type[StateMachine]) -> str:
    states = cast("Iterable[Any]", machine.states)
    (initial,) = [state.value for state in states if state.initial]
    moves = [
        (state.value, event, transition.target.value)
        for state in states
        for transition in state.transitions
        for event in transition.events
    ]
    return (
        f"    {_text(name)}: Compiled(\n"
        f"        definition={_text(f'{machine.__module__}:{machine.__name__}')},\n"
        f"        initial={_text(initial)},\n"
        f"        final={_lines([_text(state.value) for state in states if state.final])},\n"
        f"        events={_lines([_text(event) for event in cast('Iterable[object]', machine.events)])},\n"
        f"        moves={_lines([f'({_text(a)}, {_text(b)}, {_text(c)})' for a, b, c in moves])},\n"
        "    ),\n"
    )


def _text(word: object) -> str:
    return f'"{word}"'


def _lines(items: Sequence[str]) -> str:
    if len(items) == 1:
        return f"({items[0]},)"
    return "(\n" + "".join(f"            {item},\n" for item in items) + "        )"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 when the module is current (afterwards), 1 when it is not."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Compile the state machines, or check that they are.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the module is stale")
    options = parser.parse_args(arguments)
    if not options.check:
        TARGET.write_text(compiled(), "utf-8")
    elif not TARGET.exists() or TARGET.read_text("utf-8") != compiled():
        sys.stderr.write(f"{TARGET} is stale; renew with: {COMMAND}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
