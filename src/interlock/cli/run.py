"""`interlock run BACKLOG`: from a file of tasks to ended runs."""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from interlock.cli.session import Session, pass_session, run_async
from interlock.cli.text import count, plain, short
from interlock.domain.errors import InvalidInput
from interlock.domain.settings import Agent, Mode, Settings
from interlock.domain.states import TERMINAL
from interlock.domain.task import Task
from interlock.sources.durations import parse_duration

if TYPE_CHECKING:
    from interlock.cli.batch import Batch
    from interlock.cli.host import Opened
    from interlock.cli.running import Running
    from interlock.cli.screen import Screen
    from interlock.domain.run import Route, Run
    from interlock.service.submitting import Planned, Standing
    from interlock.sources.file import Backlog

NAMED = 5
WHYS = 40
STDIN_BATCH = "-"
UNCUT = 10_000


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What `interlock run` was asked for."""

    backlog: str
    agent: str | None = None
    concurrency: int | None = None
    retry_failed: bool = False
    again: bool = False
    format: str | None = None
    max_retries: int | None = None
    timeout_ms: int | None = None
    as_json: bool = False
    next_steps: bool = True


def _duration(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        milliseconds = parse_duration(value)
    except InvalidInput as error:
        raise click.BadParameter(f"{value!r}: {error.message} ({error.hint})") from error
    if milliseconds < 1:
        raise click.BadParameter(f"{value!r} is too short")
    return milliseconds


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
    callback=_duration,
    metavar="TIME",
    help="Longest an attempt may take: 90s, 5m. [default: as configured, 60m]",
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
    return run_backlog(session, Request(backlog=backlog, format=format_, **options))


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
        "timeout_ms": request.timeout_ms,
    }
    return {name: value for name, value in wanted.items() if value is not None}


async def _run(session: Session, request: Request, backlog: Backlog, at_end: Callable[[Batch], None]) -> int:
    from interlock.cli.screen import make_screen  # noqa: PLC0415

    screen = make_screen(as_json=request.as_json)
    async with session.open(create=True, settings_changes=settings_changes(request)) as opened:
        with _logs_to(screen, verbose=session.verbose):
            running = await _run_in(opened, request, backlog, screen)
            at_end(running.batch)
            return running.exit_status


async def _run_in(opened: Opened, request: Request, backlog: Backlog, screen: Screen) -> Running:
    from interlock.cli.running import Running  # noqa: PLC0415
    from interlock.sources.file import task_keys  # noqa: PLC0415

    began_ms = opened.service.clock.now_ms()
    for key in opened.inactive:
        screen.remark(f"not active yet: {key}")
    if opened.migrated_from is not None:
        screen.remark(f"the database was brought to this version; a backup is at {opened.migrated_from}")
    agent = _adhoc_agent(opened, request)
    routes = await opened.service.store.read(lambda tx: tx.routes())
    tasks = with_agents([placed.task for placed in backlog.tasks], agent, routes, opened.settings)
    _check_somebody_works(tasks, routes, opened.settings)
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
    running = Running(
        opened, batch, screen, name=_title(request), after=after, how_to_go_on=f"`{command_line(request)}`"
    )
    if batch.unfinished:
        await running.run()
    await _finish(opened, request, running, began_ms)
    return running


# before


def _adhoc_agent(opened: Opened, request: Request) -> Agent | str | None:
    """The agent that ``--agent`` means: a configured one by its name, or a new one. Raises InvalidInput when it could not start."""
    command = request.agent
    if command is None:
        return None
    if opened.settings.mode is Mode.PULL:
        raise InvalidInput(
            "--agent starts agents, but the configuration says `mode: pull`: agents come for the work themselves",
            hint="leave --agent away, or set dispatch.mode to push",
        )
    if not command.strip():
        raise InvalidInput("--agent is empty", hint="give the command that does a task: --agent './agent.sh'")
    if command in opened.settings.agents:
        agent = opened.settings.agents[command]
    else:
        cwd = os.getcwd()
        digest = hashlib.sha256(f"{command}\0{cwd}".encode(errors="surrogateescape")).hexdigest()[:8]
        agent = Agent(name=f"cmd:{digest}", command=command, cwd=cwd, timeout_ms=request.timeout_ms)
    fault = opened.check_agent(agent)
    if fault is not None:
        raise InvalidInput(f"the agent cannot be started: {fault}", hint="nothing was queued")
    return command if command in opened.settings.agents else agent


def with_agents(
    tasks: Iterable[Task], agent: Agent | str | None, routes: dict[str, Route], settings: Settings
) -> list[Task]:
    """The tasks, with ``agent`` for each that names none and has none by its route or role. It comes before the default agent."""
    from interlock.decide.routing import agent_for  # noqa: PLC0415

    if agent is None:
        return list(tasks)
    name = agent if isinstance(agent, str) else agent.name
    without_default = msgspec.structs.replace(settings, default_agent=None)
    return [
        task if agent_for(task, routes, without_default) is not None else msgspec.structs.replace(task, agent=name)
        for task in tasks
    ]


def _check_somebody_works(tasks: Sequence[Task], routes: dict[str, Route], settings: Settings) -> None:
    from interlock.decide.routing import agent_for  # noqa: PLC0415

    if settings.mode is Mode.PUSH and all(agent_for(task, routes, settings) is None for task in tasks):
        raise InvalidInput(
            "there is no agent for any of these tasks; nothing was queued",
            hint="give --agent 'COMMAND', or set dispatch.defaultAgent in interlock.yaml",
        )


def batch_name(backlog: str, data: Path) -> str:
    """What a backlog is recognised by: its path from the folder that the data folder lies in, else the whole path.

    Links are followed up to the file, whose own name stays: ``today.yaml`` is one backlog, whatever it points to.
    """
    if backlog == "-":
        return STDIN_BATCH
    path = Path(os.path.realpath(os.path.dirname(os.path.abspath(backlog)))) / os.path.basename(backlog)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            # A pipe of the shell's, `<(...)`: its name is another one each time.
            return STDIN_BATCH
    except OSError:
        pass
    home = Path(os.path.realpath(data)).parent
    return str(path.relative_to(home)) if path.is_relative_to(home) else str(path)


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


def findings(backlog: Backlog, tasks: Sequence[Task], planned: Sequence[Planned], batch: Batch) -> list[str]:
    """What was found, in the words that a person needs to decide on --retry-failed and --again."""
    from interlock.service.submitting import Standing  # noqa: PLC0415

    by: dict[Standing, list[Run]] = {}
    for each in planned:
        by.setdefault(each.standing, []).append(each.run)
    words = {
        Standing.NEW: "new",
        Standing.GOING_ON: "going on",
        Standing.DONE: "done before (skipped)",
        Standing.CHANGED: "changed since it was done (not run)",
        Standing.FAILED: "failed before (not run)",
        Standing.RETRIED: "failed before (run again)",
        Standing.AGAIN: "run again",
    }
    parts = [f"{len(by[standing])} {text}" for standing, text in words.items() if standing in by]
    if backlog.skipped_done:
        parts.append(f"{len(backlog.skipped_done)} ticked off")
    said = [f"{plain(backlog.source)}: {count(len(planned), 'task')}: {', '.join(parts)}"]
    if Standing.CHANGED in by:
        said.append(f"changed since done: {_named(by[Standing.CHANGED])}; --again runs everything anew")
    if Standing.FAILED in by:
        said.append(f"failed before: {_named(by[Standing.FAILED])}; --retry-failed runs what failed again")
    old = [
        each.run
        for each, task in zip(planned, tasks, strict=True)
        if each.standing is Standing.GOING_ON and each.run.content_hash != task.content_hash()
    ]
    if old:
        said.append(
            f"queued before its text changed, goes on with the old one: {_named(old)}; `interlock cancel` it first"
        )
    leftovers = len(batch.unfinished) - sum(1 for number in batch.counting() if number in batch.unfinished)
    if leftovers:
        said.append(f"{count(leftovers, 'run')} of earlier versions of this backlog go on as well")
    return said


def _named(runs: Sequence[Run]) -> str:
    some = ", ".join(f"#{run.number} {short(run.task.title, 40)}" for run in runs[:NAMED])
    return f"{some} and {len(runs) - NAMED} more" if len(runs) > NAMED else some


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
    numbers = batch.counting() if request.as_json else ending.numbers_shown(batch)
    runs: list[Run] = await service.store.read(lambda tx: [run for n in numbers if (run := tx.run(n)) is not None])
    waits = {}
    if not batch.succeeded:
        around = await opened.surroundings()
        # The dispatcher that this process was has ended, which is no news; a backoff only times what another reason says.
        quiet = {"no_dispatcher", "out_of_scope", "backoff"}
        for run in [run for run in runs if not run.terminal][:WHYS]:
            found = await service.why(run, around)
            told = [wait for wait in found if wait.kind not in quiet]
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
        next_steps=ending.next_steps(batch, how=how) if request.next_steps else (),
    )
    if request.as_json:
        import json  # noqa: PLC0415

        text = json.dumps(ending.as_data(summary, runs), indent=2, ensure_ascii=False)
    else:
        # Whoever keeps the text elsewhere can cut it himself.
        columns = terminal_size(1)[0] if sys.stdout.isatty() else UNCUT
        text = ending.as_text(summary, runs, columns, color=running.screen.color and "NO_COLOR" not in os.environ)
    running.screen.result(text)


def command_line(request: Request) -> str:
    """The command that goes on with this."""
    words = ["interlock", "run", request.backlog]
    if request.agent is not None:
        words += ["--agent", request.agent]
    if request.concurrency is not None:
        words += ["--concurrency", str(request.concurrency)]
    return plain(shlex.join(words))


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
