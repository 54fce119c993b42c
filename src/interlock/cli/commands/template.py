"""``interlock template``: tasks with blanks in them, for submits that name one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from interlock.cli.output import cell, print_json, print_table, say, table
from interlock.cli.runs import json_option
from interlock.cli.session import Session, pass_session

if TYPE_CHECKING:
    from interlock.cli.host import Opened


@click.group()
def template() -> None:
    """Templates of tasks: a submit over HTTP names one, and what goes into its blanks.

    \b
    Examples:
      interlock template set review review.yaml
      interlock template list
      curl localhost:7420/api/workflow-runs -H 'Content-Type: application/json' \\
        -d '{"template": "review", "params": {"branch": "main"}}'
    """


@template.command("set")
@click.argument("name")
@click.argument("file")
@pass_session
def set_template(session: Session, /, name: str, file: str) -> None:
    """Add or change a template. FILE is YAML or JSON: a task as the API takes it, with ${names} in its texts; - is standard input.

    \b
    Example:
      printf 'title: Review ${branch}\\nworkflow_type: review\\n' | interlock template set review -
    """
    task = _read(file)

    async def put(il: Opened) -> None:
        made = await il.service.put_template(name, task)
        asks = ", ".join(made.parameters)
        say(f"Template '{name}' is kept" + (f"; it asks for: {asks}." if asks else "; it asks for nothing."))

    session.run(put, create=True)


def _read(file: str) -> dict[str, Any]:
    from interlock.service.templating import MOST_BYTES  # noqa: PLC0415
    from interlock.sources.faults import Faults  # noqa: PLC0415
    from interlock.sources.placed import Node  # noqa: PLC0415
    from interlock.sources.text import decode, read_bytes, source_name  # noqa: PLC0415
    from interlock.sources.yaml_reader import read_yaml  # noqa: PLC0415

    faults = Faults(source_name(file))
    raw = read_yaml(decode(read_bytes(file), faults), faults)
    if raw is None:
        raise faults.fatal(1, 1, "is empty", "write a task: title: what is to be done")
    task = Node(raw, faults).free_mapping(most_bytes=MOST_BYTES)
    faults.check()
    return task or {}


@template.command("list")
@json_option
@pass_session
def list_templates(session: Session, /, as_json: bool) -> None:
    """List the templates, of interlock.yaml and of the database.

    \b
    Example:
      interlock template list --json
    """

    async def show(il: Opened) -> None:
        found = await il.service.templates()
        if as_json:
            print_json(found)
        elif not found:
            say("No templates. `interlock template set NAME FILE` keeps one; `templates:` in interlock.yaml does too.")
        else:
            made = table("NAME", "ASKS FOR", "FROM", "TITLE", flexible=("TITLE",))
            for one in found:
                origin = "interlock.yaml" if one.configured else "database"
                made.add_row(
                    cell(one.name), cell(", ".join(one.parameters) or "-"), cell(origin), cell(one.task.get("title"))
                )
            print_table(made)

    session.run(show)


@template.command("show")
@click.argument("name")
@pass_session
def show_template(session: Session, /, name: str) -> None:
    """Print the task of a template as JSON, which `template set` takes again.

    \b
    Example:
      interlock template show review
    """

    async def show(il: Opened) -> None:
        print_json((await il.service.template(name)).task)

    session.run(show)


@template.command("rm")
@click.argument("name")
@pass_session
def remove_template(session: Session, /, name: str) -> None:
    """Remove a template from the database. Runs that were made of it stay as they are.

    \b
    Example:
      interlock template rm review
    """

    async def remove(il: Opened) -> None:
        await il.service.delete_template(name)
        say(f"Template '{name}' is removed.")

    session.run(remove)
