"""``interlock config``."""

from __future__ import annotations

from pathlib import Path

import click

from interlock.cli.output import cell, print_json, print_table, say, table
from interlock.cli.runs import json_option
from interlock.cli.session import Session, pass_session
from interlock.cli.text import count
from interlock.domain.errors import NotFound
from interlock.domain.places import CONFIG_FILE
from interlock.domain.settings import Agent


@click.group()
def config() -> None:
    """Look at the configuration.

    \b
    Example:
      interlock config check
    """


@config.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@json_option
@pass_session
def check(session: Session, /, file: Path | None, as_json: bool) -> int:
    """Read interlock.yaml and name every fault with its line, keys that have no effect yet, and agents that cannot start.

    Exit status 0 when it is sound, 1 when an agent could not be started, 2 when the file has faults.

    \b
    Examples:
      interlock config check
      interlock config check other.yaml
    """
    path = file or session.config or _find(session)
    settings, inactive = session.host.check_config(path)
    trouble = {
        agent.name: why
        for agent in settings.agents.values()
        if (why := session.host.check_agent(agent, path.absolute().parent)) is not None
    }
    if as_json:
        print_json({"file": str(path), "inactive": inactive, "agents": trouble, "settings": settings})
        return 1 if trouble else 0
    say(f"{path} is sound.")
    for sentence in inactive:
        say(f"not active yet: {sentence}", "yellow")
    if settings.agents:
        made = table("AGENT", "COMMAND", "", flexible=("COMMAND", ""))
        for agent in settings.agents.values():
            why = trouble.get(agent.name)
            made.add_row(cell(agent.name), cell(_command(agent)), cell(why or "ok", "red" if why else "green"))
        print_table(made)
    else:
        say("It names no agent: runs need one under `agents:`, or `interlock run BACKLOG --agent 'CMD'`.")
    if trouble:
        say(
            f"{count(len(trouble), 'agent')} cannot be started; {'its' if len(trouble) == 1 else 'their'} runs would wait."
        )
    return 1 if trouble else 0


def _command(agent: Agent) -> str:
    if isinstance(agent.command, str):
        return agent.command
    import shlex  # noqa: PLC0415

    return shlex.join(agent.command)


def _find(session: Session) -> Path:
    for candidate in (Path(CONFIG_FILE), session.host.locate(session.data).parent / CONFIG_FILE):
        if candidate.exists():
            return candidate
    raise NotFound(f"there is no {CONFIG_FILE} here", hint="`interlock init` writes one, or name its file")
