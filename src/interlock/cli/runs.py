"""Runs in words, and what several commands do with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import click

from interlock.cli.output import print_json, say, warn
from interlock.cli.text import count, plain, short, span
from interlock.domain.errors import InterlockError
from interlock.domain.run import Run
from interlock.domain.states import RunState

if TYPE_CHECKING:
    from rich.text import Text

    from interlock.cli.host import Opened

SHORT_ID = 8
STATE_STYLES = {
    "queued": "",
    "dispatched": "cyan",
    "claimed": "cyan",
    "running": "cyan",
    "stopping": "yellow",
    "blocked": "magenta",
    "completed": "green",
    "failed": "red",
    "timed_out": "red",
    "cancelled": "dim",
}
"""Rich style of each state; no state is told by its colour alone."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
runs_argument = click.argument("runs", nargs=-1, metavar="RUN...")
run_argument = click.argument("run", metavar="RUN")


def shown_state(run: Run) -> str:
    """Its state as people see it: ``stopping`` while its agent is being stopped."""
    return "stopping" if run.stop is not None and run.held_by_agent else str(run.state)


def state_cell(state: str) -> Text:
    """A state with its colour."""
    from interlock.cli.output import cell  # noqa: PLC0415

    return cell(state, STATE_STYLES.get(state, ""))


def run_words(run: Run) -> str:
    """``#12 (fix the parser)``."""
    return f"#{run.number} ({short(run.task.title, 60)})"


def age_ms(run: Run, now_ms: int) -> int:
    """How long it took (ended), takes (an agent has it), or has been there (otherwise)."""
    if run.ended_ms is not None:
        return max(0, run.ended_ms - (run.first_claimed_ms or run.created_ms))
    since = run.claimed_ms if run.held_by_agent and run.claimed_ms is not None else run.created_ms
    return max(0, now_ms - since)


def note(run: Run, now_ms: int) -> str:
    """In a few words, from the run alone, why it is where it is; ``interlock why`` knows more."""
    if run.stop is not None:
        return f"{run.stop.kind}: {run.stop.message}"
    if run.terminal:
        return "" if run.state is RunState.COMPLETED else run.message or ""
    if run.state is RunState.BLOCKED:
        return f"asks: {run.question or run.message or ''}"
    if run.state is RunState.DISPATCHED:
        return "offered, not yet claimed" if run.pull else "to be started"
    if run.state is not RunState.QUEUED:
        return f"attempt {run.fence}" if run.fence > 1 else ""
    notes = []
    if run.held:
        notes.append("on hold")
    if run.needs_left:
        notes.append(f"needs {count(run.needs_left, 'more run')}")
    if run.not_before_ms is not None and run.not_before_ms > now_ms:
        left = span(run.not_before_ms - now_ms)
        notes.append(f"in {left}: {run.not_before_why}" if run.not_before_why else f"starts in {left} or later")
    return ", ".join(notes)


async def outlook(il: Opened) -> str:
    """What has to happen before anything starts, if something has to; else empty."""
    from interlock.service.brakes import paused  # noqa: PLC0415

    if not await il.alive():
        return "No dispatcher is running: `interlock up` starts one."
    if await il.service.read(lambda tx, _: paused(tx)) is not None:
        return "Dispatching is paused: `interlock resume`."
    return ""


async def each_run(
    il: Opened,
    refs: Sequence[str],
    act: Callable[[Run], Awaitable[Run]],
    *,
    words: Callable[[Run], str],
    as_json: bool,
) -> int:
    """Do ``act`` to every run that is named, once; one that refuses does not keep the others from it. The exit status."""
    status = 0
    done: dict[int, Run] = {}
    for ref in refs:
        try:
            found = await il.service.get(ref)
            if found.number in done:
                continue
            run = done[found.number] = await act(found)
        except InterlockError as error:
            status = status or error.exit_status
            warn(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""))
            continue
        if not as_json:
            say(words(run))
    if as_json:
        print_json(list(done.values()))
    return status


def named(refs: Sequence[str], what: str = "RUN") -> None:
    """Refuse an empty list of runs."""
    if not refs:
        raise click.UsageError(f"Missing argument '{what}...'.")


def indented(text: str, by: str = "  ") -> str:
    """A text of several lines, neutralised, each line set in."""
    return "\n".join(f"{by}{line}" for line in plain(text, lines=True).splitlines())
