"""``interlock pause`` and ``interlock resume``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from interlock.cli.output import say
from interlock.cli.runs import outlook
from interlock.cli.session import Session, pass_session
from interlock.cli.text import span

if TYPE_CHECKING:
    from interlock.cli.host import Opened


@click.command()
@click.option("--message", "-m", default="", help="Why: `interlock why` and `interlock ps` say it.")
@pass_session
def pause(session: Session, /, message: str) -> None:
    """Start nothing new until `interlock resume`. Running agents go on.

    \b
    Example:
      interlock pause --message 'budget is used up'
    """

    async def brake(il: Opened) -> None:
        from interlock.service.brakes import paused  # noqa: PLC0415

        before = await il.service.read(lambda tx, _: paused(tx))
        if before is not None:
            since = span(il.service.clock.now_ms() - before.at_ms)
            words = f": {before.message}" if before.message else ""
            say(f"Paused already, since {since} by {before.by}{words}. `interlock resume` ends it.")
            return
        await il.service.pause(message=message)
        say("Paused: nothing new starts, running agents go on. `interlock resume` ends it.")

    session.run(brake)


@click.command()
@pass_session
def resume(session: Session, /) -> None:
    """Start new runs again after `interlock pause`.

    \b
    Example:
      interlock resume
    """

    async def go_on(il: Opened) -> None:
        was = await il.service.resume()
        said = "Dispatching goes on." if was else "It was not paused."
        say(f"{said} {await outlook(il)}".strip())

    session.run(go_on)
