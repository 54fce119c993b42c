"""``interlock add``."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from interlock.cli.output import print_json, say
from interlock.cli.runs import json_option, outlook, run_words
from interlock.cli.session import Session, pass_session
from interlock.domain.errors import InvalidInput

if TYPE_CHECKING:
    from interlock.cli.host import Opened
    from interlock.domain.task import Task

MANY = {"files": "--file", "tags": "--tag", "needs": "--needs"}


@click.command()
@click.argument("title")
@click.option("--content", metavar="TEXT", help="What is to be done, in full; - reads it from standard input.")
@click.option("--file", "files", multiple=True, metavar="PATH", help="A file that matters. May be repeated.")
@click.option("--tag", "tags", multiple=True, help="May be repeated.")
@click.option("--priority", type=int, default=0, show_default=True, help="Higher goes first.")
@click.option("--project", help="Project, as the limits know it.")
@click.option("--tracker", help="Name of the issue tracker that it comes from.")
@click.option("--role", help="Role: picks the agent and adds to the prompt.")
@click.option("--type", "type_", metavar="TYPE", help="Workflow type: picks the route.")
@click.option("--agent", metavar="NAME", help="Agent, by its name in interlock.yaml.")
@click.option("--needs", multiple=True, metavar="RUN", help="Starts after this run completed. May be repeated.")
@click.option("--timeout", metavar="TIME", help="Longest that an attempt may take: 90s, 5m, 1h30m.")
@click.option("--stall", metavar="TIME", help="Longest that it may show neither output nor CPU time.")
@click.option("--at", metavar="MOMENT", help="Not before: 2026-07-01T09:00Z; without a zone, local time.")
@click.option("--in", "in_", metavar="TIME", help="Not before this much time from now: 10m.")
@click.option("--unique", metavar="KEY", help="At most one unfinished run has this key.")
@click.option("--held", is_flag=True, help="Put it on hold: it starts after `interlock unhold`.")
@click.option("--id", "id_", metavar="ID", help="A name of your own for the task.")
@json_option
@pass_session
def add(session: Session, /, as_json: bool, held: bool, **given: Any) -> None:
    """Queue one task. The data folder is made if there is none.

    \b
    Examples:
      interlock add 'Fix the parser' --content 'It fails on tabs.' --tag bug --priority 5
      git diff | interlock add 'Review this' --content - --role reviewer
      interlock add 'Deploy' --needs '#12' --in 10m
    """
    task = task_of(given)
    session.run(lambda il: _add(il, task, held=held, as_json=as_json), create=True)


async def _add(il: Opened, task: Task, *, held: bool, as_json: bool) -> None:
    if task.agent is not None and task.agent not in il.settings.agents:
        adhoc = await il.service.read(lambda tx, _: tx.adhoc_agents())
        if task.agent not in adhoc:
            known = ", ".join(il.settings.agents) or "none so far"
            raise InvalidInput(
                f"there is no agent '{task.agent}'",
                hint=f"agents are named here and defined under `agents:` in interlock.yaml ({known}); "
                "`interlock run BACKLOG --agent 'CMD'` takes a command",
            )
    submitted = await il.service.submit(task, held=held)
    run = submitted.run
    if as_json:
        print_json(run)
        return
    if not submitted.created:
        say(f"{run_words(run)} has the key '{task.unique}' already and is {run.state}; nothing was added.")
        return
    said = f"#{run.number} added ({run.id})."
    if run.terminal:
        said += f" It is {run.state} already: {run.message}"
    elif run.held:
        said += f" It is on hold: `interlock unhold {run.number}` lets it start."
    elif following := await outlook(il):
        said += f" {following}"
    say(said)


def task_of(given: dict[str, Any]) -> Task:
    """The task of the options, under the same rules as one of a backlog. Raises :class:`InvalidInput`."""
    import json  # noqa: PLC0415
    import time  # noqa: PLC0415

    from interlock.sources.faults import Faults  # noqa: PLC0415
    from interlock.sources.json_reader import read_json  # noqa: PLC0415
    from interlock.sources.placed import Node  # noqa: PLC0415
    from interlock.sources.task_schema import read_task  # noqa: PLC0415

    fields = {
        "title": given["title"],
        "id": given["id_"],
        "type": given["type_"],
        "content": _content(given["content"]),
        "context": {"files": list(given["files"])},
        "tags": list(given["tags"]),
        "needs": list(given["needs"]),
        "not_before": _moment(given["at"], given["in_"]),
        **{
            name: given[name]
            for name in ("priority", "project", "tracker", "role", "agent", "timeout", "stall", "unique")
        },
    }
    faults = Faults("add")
    raw = read_json(json.dumps({name: value for name, value in fields.items() if value is not None}), faults)
    task = None if raw is None else read_task(Node(raw, faults), now_ms=int(time.time() * 1000))
    if task is None:
        fault = faults.kept[0]
        raise InvalidInput(f"{_option(fault.path)}: {fault.problem}" if fault.path else fault.problem, hint=fault.hint)
    return task


def _option(path: str) -> str:
    """What the command line calls a field."""
    field = path.removeprefix("context.").partition("[")[0]
    if field == "title":
        return "TITLE"
    if field == "not_before":
        return "--at"
    return MANY.get(field, f"--{field}")


def _content(text: str | None) -> str | None:
    if text != "-":
        return text
    from interlock.sources.text import read_bytes  # noqa: PLC0415

    try:
        return read_bytes("-").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"--content: byte {error.start} of standard input is not UTF-8", hint="pass it as UTF-8 text"
        ) from None


def _moment(at: str | None, in_: str | None) -> str | None:
    if at is not None and in_ is not None:
        raise click.UsageError("Give --at or --in, not both.")
    if in_ is not None:
        return f"in {in_}"
    if at is None:
        return None
    try:
        given = datetime.fromisoformat(at)
    except ValueError:
        return at
    # In a file a time without a zone would be ambiguous; at this prompt it is the time on the wall.
    return given.astimezone().isoformat() if given.tzinfo is None and len(at) > len("2026-07-01") else at
