"""``interlock why``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from interlock.cli.output import print_json, say
from interlock.cli.runs import json_option, run_argument, run_words, shown_state
from interlock.cli.session import Session, pass_session

if TYPE_CHECKING:
    from interlock.cli.host import Opened


@click.command()
@run_argument
@json_option
@pass_session
def why(session: Session, /, run: str, as_json: bool) -> None:
    """Why a run has not started or ended: every reason, the most binding first, each with what would change it.

    \b
    Examples:
      interlock why 42
      interlock why '#42' --json
    """

    async def ask(il: Opened) -> None:
        found = await il.service.get(run)
        waits = await il.service.why(found.number, await il.surroundings())
        if as_json:
            print_json({"run": found.number, "id": found.id, "state": shown_state(found), "reasons": waits})
            return
        say(f"{run_words(found)} is {shown_state(found)}:", "bold")
        for wait in waits:
            say(f"  - {wait.message}")
            if wait.remedy:
                say(f"    {wait.remedy}", "dim")

    session.run(ask)
