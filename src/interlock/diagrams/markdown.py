"""A picture as tables: every event with its states, every state with its events, and the way of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.diagrams.picture import NEW, Move, Picture, numbers
from interlock.domain.states import RunEvent
from interlock.machines.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def text(picture: Picture) -> str:
    """Headings and tables, with a newline at the end."""
    parts = [f"# The {picture.noun} machine", _summary(picture)]
    if picture.path:
        parts += ["## The way that it took", _path(picture)]
    parts += ["## Events", _events(picture), "## States", _states(picture)]
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose columns line up in the source too; a bar within a cell is escaped."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    rule = "| " + " | ".join("-" * width for width in widths) + " |"
    return "\n".join([lines[0], rule, *lines[1:]])


def _summary(picture: Picture) -> str:
    ends = ", ".join(f"`{state}`" for state in picture.states if state in picture.final)
    here = f" It stands at **`{picture.current}`**." if picture.current else ""
    return f"Starts as `{picture.initial}`, ends as {ends}.{here}"


def _path(picture: Picture) -> str:
    steps = enumerate(picture.path, start=1)
    return table(
        ("step", "event", "from", "to"),
        [(str(number), f"`{move.event}`", _state(move.source), _state(move.target)) for number, move in steps],
    )


def _events(picture: Picture) -> str:
    ruled = picture.machine == "run"
    head = ["event", "from", "to"] + (["by", "slots", "when"] if ruled else []) + (["taken"] if picture.path else [])
    rows: list[list[str]] = []
    for event in picture.events:
        ways: dict[str, list[Move]] = {}
        for move in picture.moves:
            if move.event == event:
                ways.setdefault("same" if move.loops else _state(move.target), []).append(move)
        for target, into in ways.items():
            row = [f"`{event}`", _sources(picture, into), target]
            if ruled:
                rule = RULES[RunEvent(event)]
                row += [", ".join(rule.by), rule.slots.value, rule.when]
            if picture.path:
                steps = sorted(step for move in into for step in move.steps)
                row.append(f"**step {numbers(steps)}**" if steps else "")
            rows.append(row)
    return table(head, rows)


def _states(picture: Picture) -> str:
    rows: list[tuple[str, str, str]] = []
    for state in dict.fromkeys([*(move.source for move in picture.moves), *picture.states]):
        allowed = ", ".join(f"`{move.event}`" for move in picture.moves if move.source == state)
        rows.append((_marked(picture, state), _kind(picture, state), allowed or "nothing"))
    return table(("state", "", "allowed events"), rows)


def _sources(picture: Picture, moves: Sequence[Move]) -> str:
    sources = tuple(move.source for move in moves)
    if sources == picture.before_the_end:
        return "any before the end"
    return ", ".join(_state(source) for source in sources)


def _state(state: str) -> str:
    return state if state == NEW else f"`{state}`"


def _marked(picture: Picture, state: str) -> str:
    if state == picture.current:
        return f"**`{state}`** (here)"
    return f"`{state}` (passed)" if state in picture.visited else _state(state)


def _kind(picture: Picture, state: str) -> str:
    return "initial" if state == picture.initial else "final" if state in picture.final else ""
