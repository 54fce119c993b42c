"""What is settled around `interlock run` queueing its tasks: who does which, what the backlog is called, what was found."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from interlock.cli.text import count, plain, short
from interlock.decide.routing import agent_for
from interlock.domain.errors import InvalidInput
from interlock.domain.settings import Agent, Mode, Settings
from interlock.domain.task import Task
from interlock.service.submitting import Planned, Standing

if TYPE_CHECKING:
    from interlock.cli.batch import Batch
    from interlock.cli.host import Opened
    from interlock.cli.request import Request
    from interlock.domain.run import Route, Run
    from interlock.sources.file import Backlog

NAMED = 5
STDIN_BATCH = "-"


def adhoc_agent(opened: Opened, request: Request) -> Agent | str | None:
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
        agent = Agent(name=f"cmd:{digest}", command=command, cwd=cwd)
    fault = opened.check_agent(agent)
    if fault is not None:
        raise InvalidInput(f"the agent cannot be started: {fault}", hint="nothing was queued")
    return command if command in opened.settings.agents else agent


def with_agents(
    tasks: Iterable[Task], agent: Agent | str | None, routes: dict[str, Route], settings: Settings
) -> list[Task]:
    """The tasks, with ``agent`` for each that names none and has none by its route or role. It comes before the default agent."""
    if agent is None:
        return list(tasks)
    name = agent if isinstance(agent, str) else agent.name
    without_default = msgspec.structs.replace(settings, default_agent=None)
    return [
        task if agent_for(task, routes, without_default) is not None else msgspec.structs.replace(task, agent=name)
        for task in tasks
    ]


def with_timeout(tasks: Iterable[Task], timeout_ms: int | None) -> list[Task]:
    """The tasks, with the timeout for each that has none. In the task it counts whatever its agent, and whoever dispatches it."""
    if timeout_ms is None:
        return list(tasks)
    return [
        task if task.timeout_ms is not None else msgspec.structs.replace(task, timeout_ms=timeout_ms) for task in tasks
    ]


def check_somebody_works(tasks: Sequence[Task], routes: dict[str, Route], settings: Settings) -> None:
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


def findings(backlog: Backlog, tasks: Sequence[Task], planned: Sequence[Planned], batch: Batch) -> list[str]:
    """What was found, in the words that a person needs to decide on --retry-failed and --again."""
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
        Standing.TWIN: "queued elsewhere under the same unique key (not queued twice)",
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
