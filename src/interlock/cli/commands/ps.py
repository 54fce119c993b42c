"""``interlock ps``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from interlock.cli.output import cell, print_json, print_table, say, table, warn
from interlock.cli.runs import SHORT_ID, age_ms, json_option, note, shown_state, state_cell
from interlock.cli.session import Session, pass_session
from interlock.cli.text import count, span
from interlock.domain.run import Run
from interlock.domain.states import RunState

if TYPE_CHECKING:
    from interlock.cli.host import Opened

UNFINISHED = (
    (RunState.RUNNING, RunState.CLAIMED, RunState.DISPATCHED),
    (RunState.BLOCKED,),
    (RunState.QUEUED,),
)
"""What a person looks for first comes first: a long queue does not hide what runs."""
ORDER = ("running", "claimed", "dispatched", "blocked", "queued", "completed", "failed", "timed_out", "cancelled")


@click.command()
@click.option("--all", "-a", "everything", is_flag=True, help="Ended runs as well, the newest first.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([str(state) for state in RunState]),
    help="Only runs in this state. May be repeated.",
)
@click.option("--tag", help="Only runs with this tag.")
@click.option("--project", help="Only runs of this project.")
@click.option("--limit", "-n", type=click.IntRange(min=1), default=100, show_default=True, help="At most this many.")
@json_option
@pass_session
def ps(
    session: Session,
    /,
    everything: bool,
    states: Sequence[str],
    tag: str | None,
    project: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List runs: those that are active, blocked or queued, and with --all those that ended.

    \b
    Examples:
      interlock ps
      interlock ps --all --tag gpu
      interlock ps --state failed --json
    """

    async def list_runs(il: Opened) -> None:
        groups: Sequence[Sequence[str]] = UNFINISHED
        if states or everything:
            groups = [states]
        runs, more = await _find(il, groups, tag=tag, project=project, limit=limit)
        if as_json:
            print_json(runs)
            return
        for sentence in il.inactive:
            warn(f"not active yet: {sentence}")
        say(await header(il))
        if runs:
            _print(runs, il.service.clock.now_ms())
        elif not (states or everything or tag or project):
            say(
                "Nothing is queued or running. `interlock ps --all` lists ended runs, `interlock add TITLE` queues a task."
            )
        else:
            say("No such runs.")
        if more:
            say(f"... there are more than {limit}: --limit N shows them")

    session.run(list_runs)


async def _find(
    il: Opened, groups: Sequence[Sequence[str]], *, tag: str | None, project: str | None, limit: int
) -> tuple[list[Run], bool]:
    from interlock.service.reads import Filter  # noqa: PLC0415

    runs: list[Run] = []
    for states in groups:
        left = limit + 1 - len(runs)
        if left > 0:
            wanted = Filter(states=tuple(str(state) for state in states), tag=tag, project=project, limit=left)
            runs += await il.service.find(wanted)
    return runs[:limit], len(runs) > limit


async def header(il: Opened) -> str:
    """One line: the dispatcher, the pause, counts by state."""
    from interlock.service.brakes import paused  # noqa: PLC0415

    alive = await il.alive()
    now = il.service.clock.now_ms()
    pause = await il.service.read(lambda tx, _: paused(tx))
    states = await il.service.store.read(lambda tx: tx.count_states())
    parts = []
    if not alive:
        parts.append("no dispatcher is running")
    for instance in alive:
        what = f" for {instance.scope}" if instance.scope else ""
        remark = f", {instance.note}" if instance.note else ""
        parts.append(f"dispatcher {instance.state} (pid {instance.pid}{what}{remark})")
    if pause is not None:
        words = f": {pause.message}" if pause.message else ""
        parts.append(f"PAUSED since {span(now - pause.at_ms)}{words}")
    counts = [f"{states[state]} {state}" for state in ORDER if states.get(state)]
    parts.append(", ".join(counts) if counts else count(0, "run"))
    return " · ".join(parts)


def _print(runs: Sequence[Run], now_ms: int) -> None:
    made = table("#", "ID", "STATE", "TITLE", "AGENT", "TIME", "NOTE", right=("#", "TIME"), flexible=("TITLE", "NOTE"))
    for run in runs:
        made.add_row(
            cell(run.number),
            cell(run.id[:SHORT_ID], "dim"),
            state_cell(shown_state(run)),
            cell(run.task.title),
            cell(run.agent or run.task.agent or "", columns=24),
            cell(span(age_ms(run, now_ms))),
            cell(note(run, now_ms)),
        )
    print_table(made)
