"""How a batch stands at its end: a table for people, an object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from interlock.cli.batch import Batch
from interlock.cli.text import count, short, span, width
from interlock.decide.reasons import Wait
from interlock.domain.run import Run
from interlock.domain.states import TERMINAL, RunState

ROWS = 40
NARROW = 76
REASONS = 5
BESIDE = 9
LONG_COMMAND = 44

_ORDER = (
    RunState.FAILED,
    RunState.TIMED_OUT,
    RunState.CANCELLED,
    RunState.BLOCKED,
    RunState.QUEUED,
    RunState.DISPATCHED,
    RunState.CLAIMED,
    RunState.RUNNING,
    RunState.COMPLETED,
)
_COLORS = {
    RunState.FAILED: "red",
    RunState.TIMED_OUT: "red",
    RunState.CANCELLED: "yellow",
    RunState.BLOCKED: "magenta",
    RunState.COMPLETED: "green",
}


def word(state: RunState) -> str:
    """A state as people write it."""
    return str(state).replace("_", " ")


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The end of `interlock run`. By number: ``waits``, why runs that have not ended did not, and ``worked_ms``, how long
    agents worked on them.
    """

    name: str
    batch: Batch
    took_ms: int
    ok: bool
    exit_status: int
    waits: dict[int, list[Wait]]
    worked_ms: dict[int, int]
    next_steps: Sequence[str] = ()


def numbers_shown(batch: Batch, lines: int | None) -> list[int]:
    """The runs that have a row: those that need somebody first, then the others, up to :data:`ROWS`.

    ``lines``: height of the terminal. Runs that are done only fill what is left of it, so that the others stay in sight.
    """
    rank = {state: index for index, state in enumerate(_ORDER)}
    ordered = sorted(batch.counting(), key=lambda number: rank[batch.states[number]])
    room = ROWS if lines is None else max(len(batch) - batch.completed, min(ROWS, lines - BESIDE))
    return ordered[: min(ROWS, max(room, 0))]


def totals(batch: Batch) -> str:
    """``24 tasks: 22 completed, 1 failed, 1 timed out``."""
    counts = [f"{batch.counts[state]} {word(state)}" for state in reversed(_ORDER) if batch.counts[state]]
    return f"{count(len(batch), 'task')}: {', '.join(counts)}"


def as_text(summary: Summary, runs: Sequence[Run], columns: int, *, color: bool) -> str:
    """The table of ``runs``, the totals, and what to do next."""
    rows = [(f"#{run.number}", word(run.state), str(run.fence or "-"), _took(summary, run)) for run in runs]
    heads = ("run", "state", "tries", "took")
    widths = [max([len(head), *(len(row[index]) for row in rows)]) for index, head in enumerate(heads)]
    fixed = sum(widths) + 2 * len(widths)
    room = max(columns - fixed, 8)
    messages = columns >= NARROW
    titles = min(max([5, *(width(short(run.task.title, 60)) for run in runs)]), room // 2 if messages else room)

    def line(cells: Sequence[str], title: str, message: str) -> str:
        left = f"{cells[0]:<{widths[0]}}  {cells[1]:<{widths[1]}}  {cells[2]:>{widths[2]}}  {cells[3]:>{widths[3]}}  "
        if not messages:
            return left + short(title, room)
        name = short(title, titles)
        return f"{left}{name}{' ' * (titles - width(name))}  {short(message, max(room - titles - 2, 4))}".rstrip()

    lines = ["", click.style(line(heads, "title", "message"), dim=True) if color else line(heads, "title", "message")]
    for cells, run in zip(rows, runs, strict=True):
        text = line(cells, run.task.title, _message(summary, run))
        lines.append(click.style(text, fg=_COLORS.get(run.state)) if color and run.state in _COLORS else text)
        if not messages and run.state is not RunState.COMPLETED:
            lines.append(f"    {short(_message(summary, run), max(columns - 4, 8))}")
    left_out = len(summary.batch) - len(rows)
    if left_out > 0:
        lines.append(f"... and {left_out} more (`interlock ps --all`)")
    lines += _reasons(summary, columns)
    total = f"{totals(summary.batch)}, in {span(summary.took_ms)}"
    lines += ["", click.style(total, bold=True) if color else total, *summary.next_steps]
    return "\n".join(lines) + "\n"


def as_data(summary: Summary, runs: Sequence[Run]) -> dict[str, Any]:
    """The same for programs, with every run."""
    keys = {number: key for key, number in summary.batch.number_of.items()}
    return {
        "backlog": summary.name,
        "batch": summary.batch.name,
        "ok": summary.ok,
        "exit_status": summary.exit_status,
        "tasks": len(summary.batch),
        "states": {str(state): number for state, number in summary.batch.counts.items() if number},
        "took_ms": summary.took_ms,
        "runs": [
            {
                "number": run.number,
                "id": run.id,
                "key": keys.get(run.number),
                "title": run.task.title,
                "state": str(run.state),
                "attempts": run.fence,
                "took_ms": summary.worked_ms.get(run.number, 0),
                "reason": run.reason,
                "message": run.message,
                "result": run.result,
                "waits_for": [msgspec.to_builtins(wait) for wait in summary.waits.get(run.number, [])],
            }
            for run in runs
        ],
    }


def _reasons(summary: Summary, columns: int) -> list[str]:
    """Why what did not end did not, in full: the table cuts it. Runs with the same reasons are told together."""
    by_reason: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for number, waits in summary.waits.items():
        by_reason.setdefault(tuple((wait.message, wait.remedy) for wait in waits), []).append(number)
    lines: list[str] = []
    for reasons, numbers in list(by_reason.items())[:REASONS]:
        who = ", ".join(f"#{number}" for number in numbers[:6]) + (" ..." if len(numbers) > 6 else "")
        lines += ["", f"{who} did not end:"]
        for message, remedy in reasons:
            lines.append(f"  {short(message, max(columns - 2, 8))}")
            if remedy:
                lines.append(f"    {short(remedy, max(columns - 4, 8))}")
    return lines


def _took(summary: Summary, run: Run) -> str:
    return span(summary.worked_ms.get(run.number, 0)) if run.fence else "-"


def _message(summary: Summary, run: Run) -> str:
    if run.state in TERMINAL:
        return run.message or ""
    if run.number not in summary.waits:
        return "stopped, and queued again" if run.fence else "not started"
    return "; ".join(wait.message for wait in summary.waits.get(run.number, []))


def next_steps(batch: Batch, *, how: str) -> list[str]:
    """Commands that fit how it ended."""
    ended = [n for n in batch.counting() if batch.states[n] in TERMINAL and batch.states[n] is not RunState.COMPLETED]
    open_ones = [n for n in batch.counting() if batch.states[n] not in TERMINAL]
    steps = []
    if ended:
        steps.append((f"interlock logs '#{ended[0]}'", "what its agent wrote"))
        steps.append((f"{how} --retry-failed", "runs what failed again"))
    if open_ones:
        steps.append((f"interlock why '#{open_ones[0]}'", "what it waits for, and what would change that"))
        steps.append((how, "goes on"))
    if not steps:
        return []
    columns = max(len(command) for command, _ in steps)
    if columns > LONG_COMMAND:
        return ["", *(line for command, what in steps for line in (f"  # {what}", f"  {command}"))]
    return ["", *(f"  {command:<{columns}}  # {what}" for command, what in steps)]
