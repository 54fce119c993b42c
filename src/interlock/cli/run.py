"""`interlock run BACKLOG`: from a file of tasks to ended runs."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from interlock.cli.options import milliseconds
from interlock.cli.request import Request, command_line
from interlock.cli.session import Session, pass_session, run_async
from interlock.cli.text import plain
from interlock.decide.reasons import WaitKind
from interlock.domain.settings import Agent, Mode
from interlock.domain.states import TERMINAL

if TYPE_CHECKING:
    from interlock.cli.batch import Batch
    from interlock.cli.host import Opened
    from interlock.cli.running import Running
    from interlock.cli.screen import Screen
    from interlock.domain.run import Route, Run
    from interlock.service.submitting import Planned
    from interlock.sources.file import Backlog

WHYS = 40
UNCUT = 10_000


@click.command("run")
@click.argument("backlog")
@click.option(
    "--agent", metavar="CMD", help="Command that does a task (prompt on stdin), or a configured agent's name."
)
@click.option(
    "--concurrency", "-j", type=click.IntRange(min=1), metavar="N", help="Agents at once. [default: as configured, 10]"
)
@click.option("--retry-failed", is_flag=True, help="Run what failed before again.")
@click.option("--again", is_flag=True, help="Run everything again, what is done included.")
@click.option("--format", "format_", metavar="F", help="yaml, json, jsonl, markdown. [default: by name, or look]")
@click.option(
    "--max-retries", type=click.IntRange(min=0), metavar="N", help="Tries after the first. [default: as configured, 3]"
)
@click.option(
    "--timeout",
    "timeout_ms",
    callback=milliseconds,
    metavar="TIME",
    help="Longest an attempt may take, of tasks that do not say: 90s, 5m. [default: as configured, 60m]",
)
@click.option("--json", "as_json", is_flag=True, help="Print nothing but a summary, as JSON.")
@pass_session
def run_command(session: Session, /, backlog: str, format_: str | None, **options: Any) -> int:
    """Run every task of BACKLOG (YAML, JSON, JSONL, a Markdown checklist; - is standard input) to its end.

    Started again after whatever interruption it goes on where it was: what is done is skipped, nothing runs twice. Ends with
    0 only when every task is done.

    \b
    Examples:
      interlock run backlog.yaml --agent 'claude -p' --concurrency 4
      interlock run TODO.md --agent ./agent.sh --timeout 20m
      interlock run backlog.yaml --agent ./agent.sh --retry-failed
      jq -c '.items[]' export.json | interlock run - --format jsonl --agent ./agent.sh
    """
    places = (("--data", session.data), ("--config", session.config))
    where = tuple(word for option, path in places if path is not None for word in (option, str(path)))
    return run_backlog(session, Request(backlog=backlog, format=format_, where=where, **options))


def run_backlog(session: Session, request: Request, *, at_end: Callable[[Batch], None] = lambda _: None) -> int:
    """Do it; the exit status. What is wrong with the backlog is raised before anything is made or queued.

    ``at_end`` is told how the tasks stand at the end.
    """
    from interlock.sources.file import read_backlog  # noqa: PLC0415

    backlog = read_backlog(request.backlog, format=request.format, now_ms=int(time.time() * 1000))
    return run_async(lambda: _run(session, request, backlog, at_end))


def settings_changes(request: Request) -> dict[str, object]:
    """The options that stand for settings."""
    wanted = {
        "limits.total": request.concurrency,
        "retry.max_retries": request.max_retries,
    }
    return {name: value for name, value in wanted.items() if value is not None}


async def _run(session: Session, request: Request, backlog: Backlog, at_end: Callable[[Batch], None]) -> int:
    from interlock.cli.screen import make_screen  # noqa: PLC0415

    screen = make_screen(as_json=request.as_json)
    try:
        async with session.open(create=True, settings_changes=settings_changes(request)) as opened:
            with _logs_to(screen, verbose=session.verbose):
                running = await _run_in(opened, request, backlog, screen)
                at_end(running.batch)
                return running.exit_status
    finally:
        screen.hush()


async def _run_in(opened: Opened, request: Request, backlog: Backlog, screen: Screen) -> Running:
    from interlock.cli.plan import (  # noqa: PLC0415
        adhoc_agent,
        batch_name,
        check_somebody_works,
        findings,
        with_agents,
        with_timeout,
    )
    from interlock.cli.running import Running  # noqa: PLC0415
    from interlock.sources.file import task_keys  # noqa: PLC0415

    began_ms = opened.service.clock.now_ms()
    for key in opened.inactive:
        screen.remark(f"not active yet: {key}")
    if opened.migrated_from is not None:
        screen.remark(f"the database was brought to this version; a backup is at {opened.migrated_from}")
    agent = adhoc_agent(opened, request)
    routes = await opened.service.store.read(lambda tx: tx.routes())
    given = with_timeout([placed.task for placed in backlog.tasks], request.timeout_ms)
    tasks = with_agents(given, agent, routes, opened.settings)
    check_somebody_works(tasks, routes, opened.settings)
    if isinstance(agent, Agent):
        await opened.service.put_adhoc_agent(agent)
    keys = task_keys(tasks)
    name = batch_name(request.backlog, opened.data)
    after = await opened.service.store.read(lambda tx: tx.last_seq())
    planned = await opened.service.reconcile_batch(
        name, list(zip(keys, tasks, strict=True)), retry_failed=request.retry_failed, again=request.again
    )
    batch = await _batch(opened, name, list(zip(keys, planned, strict=True)))
    for text in findings(backlog, tasks, planned, batch):
        screen.remark(text)
    await _warn(opened, request, routes, planned, screen)
    running = Running(opened, batch, screen, name=_title(request), after=after)
    if batch.unfinished:
        await running.run()
    await _finish(opened, request, running, began_ms)
    return running


# before


async def _batch(opened: Opened, name: str, planned: Sequence[tuple[str, Planned]]) -> Batch:
    from interlock.cli.batch import Batch  # noqa: PLC0415

    runs = [(key, each.run) for key, each in planned]
    numbers = {run.number for _, run in runs}
    counts = await opened.service.store.read(lambda tx: tx.count_states(batch=name, finished=False))
    unfinished = sum(number for state, number in counts.items() if state not in TERMINAL)
    leftovers: list[Run] = []
    if unfinished > sum(1 for _, run in runs if not run.terminal and run.batch == name):
        found = await opened.service.batch(name)
        leftovers = [run for run in found if not run.terminal and run.number not in numbers]
    return Batch(name, runs, leftovers)


async def _warn(
    opened: Opened, request: Request, routes: dict[str, Route], planned: Sequence[Planned], screen: Screen
) -> None:
    from interlock.cli.git_tree import clash_warning  # noqa: PLC0415
    from interlock.decide.routing import agent_for  # noqa: PLC0415
    from interlock.service.dispatching import circumstances  # noqa: PLC0415

    settings = opened.settings
    if any(instance.scope is None for instance in await opened.alive()):
        ignored = [
            option
            for option, value in (("--concurrency", request.concurrency), ("--max-retries", request.max_retries))
            if value is not None
        ]
        if ignored:
            screen.remark(f"{' and '.join(ignored)}: ignored, the daemon keeps to its own settings")
    if settings.mode is Mode.PULL:
        return
    agents = await opened.service.read(lambda tx, ctx: circumstances(tx, ctx).agents)
    named = [agent_for(each.run.task, routes, settings) for each in planned if not each.run.terminal]
    folder = opened.config_path.parent if opened.config_path is not None else Path.cwd()
    work: Counter[Path] = Counter(
        folder / (agents[name].cwd or "") for name in named if name is not None and name in agents
    )
    for place, tasks in work.items():
        warning = clash_warning(place, min(tasks, settings.limits.total))
        if warning is not None:
            screen.remark(f"warning: {warning}")
            return


# after


async def _finish(opened: Opened, request: Request, running: Running, began_ms: int) -> None:
    from interlock.cli import summary as ending  # noqa: PLC0415
    from interlock.cli.painter import terminal_size  # noqa: PLC0415

    batch, service = running.batch, opened.service
    # Whoever keeps the text elsewhere can cut it himself.
    columns, lines = terminal_size(1) if sys.stdout is not None and sys.stdout.isatty() else (UNCUT, None)
    numbers = batch.counting() if request.as_json else ending.numbers_shown(batch, lines)
    runs: list[Run] = await service.store.read(lambda tx: [run for n in numbers if (run := tx.run(n)) is not None])
    waits = {}
    if not batch.succeeded:
        around = await opened.surroundings()
        # The dispatcher that this process was has ended, which is no news; a backoff only times what another reason says.
        quiet = {WaitKind.NO_DISPATCHER, WaitKind.OUT_OF_SCOPE}
        for run in [run for run in runs if not run.terminal][:WHYS]:
            found = await service.why(run, around)
            told = [
                wait
                for wait in found
                if wait.kind not in quiet and not (wait.kind is WaitKind.BACKOFF and wait.by_itself)
            ]
            if told or running.interrupted is None:
                waits[run.number] = told or found
    how = command_line(request)
    summary = ending.Summary(
        name=_title(request),
        batch=batch,
        took_ms=service.clock.now_ms() - began_ms,
        ok=batch.succeeded,
        exit_status=running.exit_status,
        waits=waits,
        worked_ms=await service.worked_ms(numbers),
        next_steps=ending.next_steps(batch, how=how) if request.next_steps else (),
    )
    if request.as_json:
        import json  # noqa: PLC0415

        text = json.dumps(ending.as_data(summary, runs), indent=2, ensure_ascii=False)
    else:
        text = ending.as_text(summary, runs, columns, color=running.screen.color and "NO_COLOR" not in os.environ)
    running.screen.result(text)


def _title(request: Request) -> str:
    return "standard input" if request.backlog == "-" else plain(request.backlog)


class _logs_to:  # noqa: N801 - read as a word: with _logs_to(screen)
    """What the dispatcher logs goes to the screen meanwhile, and nowhere else."""

    def __init__(self, screen: Screen, *, verbose: bool) -> None:
        import logging  # noqa: PLC0415

        from interlock.cli.screen import Remarks  # noqa: PLC0415

        self._logger = logging.getLogger("interlock")
        self._handler = Remarks(screen, verbose=verbose)
        self._before = (self._logger.propagate, self._logger.level)

    def __enter__(self) -> None:
        self._logger.addHandler(self._handler)
        self._logger.propagate = False
        self._logger.setLevel(self._handler.level)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self._handler)
        self._logger.propagate, self._logger.level = self._before
