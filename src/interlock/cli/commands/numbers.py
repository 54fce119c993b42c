"""``interlock limits`` and ``interlock stats``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from interlock.cli.options import milliseconds
from interlock.cli.output import cell, print_json, print_table, say, table
from interlock.cli.runs import json_option
from interlock.cli.session import Session, pass_session
from interlock.cli.text import count, short, span

if TYPE_CHECKING:
    from interlock.cli.host import Opened
    from interlock.service.reads import Stats


@click.command()
@json_option
@pass_session
def limits(session: Session, /, as_json: bool) -> None:
    """Limits, how much of each is used, and by which runs.

    \b
    Example:
      interlock limits
    """

    async def show(il: Opened) -> None:
        found = await il.service.limits()
        if as_json:
            print_json(found)
            return
        made = table("LIMIT", "USED", "OF", "BY", right=("USED", "OF"), flexible=("BY",))
        for use in found:
            by = ", ".join(f"#{number} {short(title, 24)}" for number, title in use.holders)
            more = f" and {use.used - len(use.holders)} more" if use.used > len(use.holders) else ""
            full = use.cap is not None and use.used >= use.cap
            made.add_row(
                cell(use.key),
                cell(use.used, "yellow" if full else ""),
                cell("-" if use.cap is None else use.cap),
                cell(by + more),
            )
        print_table(made)

    session.run(show)


@click.command()
@click.option(
    "--since", callback=milliseconds, default="24h", show_default=True, metavar="TIME", help="How far to look back."
)
@json_option
@pass_session
def stats(session: Session, /, since: int, as_json: bool) -> None:
    """Counts by state; and of the runs that ended lately: how long they waited, started and worked, and how many failed.

    \b
    Examples:
      interlock stats
      interlock stats --since 1h --json
    """

    async def show(il: Opened) -> None:
        found = await il.service.stats(since)
        if as_json:
            print_json(found)
        else:
            _print(found)

    session.run(show)


def _print(found: Stats) -> None:
    counts = ", ".join(f"{number} {state}" for state, number in found.states.items()) or "none"
    say(f"Runs: {counts}")
    say(f"Last {span(found.window_ms)}: {count(found.attempts, 'attempt')} ended, {found.per_hour:.1f} an hour")
    if not found.attempts:
        return
    ends = ", ".join(f"{number} {end}" for end, number in sorted(found.attempts_by_end.items()))
    say(f"They ended: {ends}; failure rate {found.failure_rate:.0%}")
    made = table("TIME", "MEDIAN", "P95", "MAX", right=("MEDIAN", "P95", "MAX"))
    for name, spread in (("waiting", found.wait_ms), ("starting", found.start_ms), ("working", found.work_ms)):
        if spread:
            made.add_row(cell(name), *(cell(span(spread[key])) for key in ("p50", "p95", "max")))
    print_table(made)
