"""``interlock routes``: which agent does which type of work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from interlock.cli.options import milliseconds
from interlock.cli.output import cell, print_json, print_table, say, table
from interlock.cli.runs import json_option
from interlock.cli.session import Session, pass_session
from interlock.domain.errors import InvalidInput
from interlock.domain.run import Route

if TYPE_CHECKING:
    from interlock.cli.host import Opened

MINUTE_MS = 60_000
NONE = "none"
AS_JSON = "interlock.routes.as_json"


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def routes(ctx: click.Context, /, as_json: bool) -> None:
    """Which agent does which type of work. A run's own agent goes before its route's.

    \b
    Examples:
      interlock routes
      interlock routes set review reviewer --max-concurrent 2
      interlock routes remove review
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_routes, as_json=as_json)
    elif as_json and ctx.invoked_subcommand != "list":
        raise click.UsageError(f"--json does not go with `routes {ctx.invoked_subcommand}`.")
    else:
        ctx.meta[AS_JSON] = as_json


@routes.command("list")
@json_option
@pass_session
def list_routes(session: Session, /, as_json: bool) -> None:
    """List the routes.

    \b
    Example:
      interlock routes list --json
    """

    as_json = as_json or click.get_current_context().meta.get(AS_JSON, False)

    async def show(il: Opened) -> None:
        found = list((await il.service.store.read(lambda tx: tx.routes())).values())
        if as_json:
            print_json(found)
        elif not found:
            say(
                "No routes: runs go to their own agent, their role's, or the default. `interlock routes set TYPE AGENT` adds one."
            )
        else:
            made = table(
                "TYPE", "AGENT", "PRIORITY", "MAX", "TIMEOUT", "STALL", right=("PRIORITY", "MAX", "TIMEOUT", "STALL")
            )
            for route in found:
                made.add_row(
                    cell(route.workflow_type),
                    cell(route.agent_id),
                    cell(f"{route.priority:+d}"),
                    cell("-" if route.max_concurrent is None else route.max_concurrent),
                    cell(_minutes(route.timeout_minutes)),
                    cell(_minutes(route.stall_minutes)),
                )
            print_table(made)

    session.run(show)


def _minutes(value: int | None) -> str:
    return "-" if value is None else f"{value}m"


def _limit(_: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == NONE:
        return value
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor 'none'.", param=parameter) from None


def _in_minutes(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    if value == NONE:
        return value
    ms = milliseconds(ctx, parameter, value)
    if ms is None:
        return None
    if ms % MINUTE_MS:
        raise click.BadParameter(f"{value!r} is not a whole number of minutes.", param=parameter)
    return ms // MINUTE_MS


@routes.command("set")
@click.argument("workflow_type", metavar="TYPE")
@click.argument("agent", required=False)
@click.option("--priority", type=int, help="Added to the priority of its runs. [default: 0]")
@click.option("--max-concurrent", callback=_limit, metavar="N|none", help="Active at once. [default: 1]")
@click.option("--timeout", callback=_in_minutes, metavar="TIME|none", help="Per attempt, whole minutes. [default: 60m]")
@click.option("--stall", callback=_in_minutes, metavar="TIME|none", help="Without output and CPU time. [default: none]")
@pass_session
def set_route(session: Session, /, workflow_type: str, agent: str | None, **given: Any) -> None:
    """Add a route, or change what is named of one that is there.

    \b
    Examples:
      interlock routes set review reviewer --max-concurrent 2 --timeout 30m
      interlock routes set review --priority 5
    """

    async def put(il: Opened) -> None:
        before = (await il.service.store.read(lambda tx: tx.routes())).get(workflow_type)
        if before is None and agent is None:
            agents = list(il.settings.agents)
            raise InvalidInput(
                f"there is no route for '{workflow_type}' yet: name its agent",
                hint=f"`interlock routes set {workflow_type} {agents[0] if agents else 'AGENT'}`"
                + (
                    f"; agents: {', '.join(agents)}"
                    if agents
                    else ", with AGENT defined under `agents:` in interlock.yaml"
                ),
            )
        route = await il.service.put_route(_changed(before, workflow_type, agent, given))
        cap = "any number" if route.max_concurrent is None else f"at most {route.max_concurrent}"
        said = f"Runs of type '{workflow_type}' go to agent '{route.agent_id}', {cap} at once."
        if route.agent_id not in il.settings.agents:
            said += f" There is no agent '{route.agent_id}' in the configuration yet; until then they wait."
        say(said)

    session.run(put)


def _changed(before: Route | None, workflow_type: str, agent: str | None, given: dict[str, Any]) -> Route:
    columns: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "priority": ("priority", int),
        "max_concurrent": ("max_concurrent", lambda value: None if value == NONE else value),
        "timeout": ("timeout_minutes", lambda value: None if value == NONE else value),
        "stall": ("stall_minutes", lambda value: None if value == NONE else value),
    }
    changes = {column: read(given[option]) for option, (column, read) in columns.items() if given[option] is not None}
    if agent is not None:
        changes["agent_id"] = agent
    if before is None:
        return Route(workflow_type=workflow_type, **changes)
    return msgspec.structs.replace(before, **changes)


@routes.command("remove")
@click.argument("workflow_type", metavar="TYPE")
@pass_session
def remove_route(session: Session, /, workflow_type: str) -> None:
    """Remove a route.

    \b
    Example:
      interlock routes remove review
    """

    async def remove(il: Opened) -> None:
        await il.service.delete_route(workflow_type)
        say(f"The route for '{workflow_type}' is removed.")

    session.run(remove)
