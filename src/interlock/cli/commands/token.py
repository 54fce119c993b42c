"""``interlock token``: who may reach this daemon by HTTP from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from interlock.cli.output import cell, print_json, print_table, say, table, warn
from interlock.cli.runs import json_option
from interlock.cli.session import Session, pass_session
from interlock.cli.text import span
from interlock.domain.token import Scope

if TYPE_CHECKING:
    from interlock.cli.host import Opened


@click.group()
def token() -> None:
    """Tokens for HTTP: on this machine nobody needs one; from everywhere else everybody does.

    \b
    Examples:
      interlock token create laptop --scope agent
      interlock token list
      interlock token revoke laptop
    """


@token.command("create")
@click.argument("name")
@click.option(
    "--scope",
    type=click.Choice([str(scope) for scope in Scope]),
    default=str(Scope.AGENT),
    show_default=True,
    help="read: look at everything; agent: claim and report as well; operator: all.",
)
@pass_session
def create_token(session: Session, /, name: str, scope: str) -> None:
    """Make a token. Its secret is printed once, alone on standard output; it is not kept, and nobody can print it again.

    \b
    Examples:
      interlock token create laptop --scope agent
      INTERLOCK_TOKEN=$(interlock token create ci --scope operator)
    """

    async def make(il: Opened) -> None:
        secret = await il.service.create_token(name, Scope(scope))
        click.echo(secret)
        warn(
            f"Token '{name}' for {scope}. Keep it now: it is not shown again. Send it as `Authorization: Bearer ...`; "
            f"`interlock token revoke {name}` ends it."
        )

    session.run(make, create=True)


@token.command("list")
@json_option
@pass_session
def list_tokens(session: Session, /, as_json: bool) -> None:
    """List the tokens, never their secrets.

    \b
    Example:
      interlock token list --json
    """

    async def show(il: Opened) -> None:
        found = await il.service.tokens()
        if as_json:
            print_json([{"name": one.name, "scope": one.scope, "created_ms": one.created_ms} for one in found])
        elif not found:
            say("No tokens: HTTP is open to this machine alone. `interlock token create NAME --scope agent` makes one.")
        else:
            made = table("NAME", "SCOPE", "AGE", right=("AGE",))
            for one in found:
                age = span(il.service.clock.now_ms() - one.created_ms)
                made.add_row(cell(one.name), cell(one.scope), cell(age))
            print_table(made)

    session.run(show)


@token.command("revoke")
@click.argument("name")
@pass_session
def revoke_token(session: Session, /, name: str) -> None:
    """End a token: from its holder's next request on it is refused.

    \b
    Example:
      interlock token revoke laptop
    """

    async def end(il: Opened) -> None:
        await il.service.revoke_token(name)
        say(f"Token '{name}' is revoked.")

    session.run(end)
