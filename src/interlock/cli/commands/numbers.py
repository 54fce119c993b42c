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
    from interlock.service.reads import Depth, Stats


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
    """How things stand: runs by state and lane with the age of the oldest, slots in use. And of the last hours: how often what
    happened, how long runs waited, were offered, started and worked, and how many attempts failed.

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
    if found.queue:
        say("")
        _print_depths("STATE", found.queue)
    if found.lanes:
        say("")
        _print_depths("READY", found.lanes)
    if taken := [use for use in found.slots if use.used]:
        say("")
        made = table("SLOTS", "USED", "OF", right=("USED", "OF"))
        for use in taken:
            full = use.cap is not None and use.used >= use.cap
            of = "-" if use.cap is None else use.cap
            made.add_row(cell(use.key), cell(use.used, "yellow" if full else ""), cell(of))
        print_table(made)
    say("")
    _print_window(found)


def _print_depths(head: str, depths: list[Depth]) -> None:
    made = table(head, "RUNS", "OLDEST", right=("RUNS", "OLDEST"))
    for depth in depths:
        made.add_row(cell(depth.name), cell(depth.runs), cell(span(depth.oldest_ms)))
    print_table(made)


def _print_window(found: Stats) -> None:
    say(f"Last {span(found.window_ms)}: {count(found.attempts, 'attempt')} ended, {found.per_hour:.1f} an hour")
    numbers = found.counts
    counted = ((numbers.submits, "submit"), (numbers.dispatches, "dispatch"), (numbers.redispatches, "redispatch"))
    words = [count(many, what, None if what == "submit" else f"{what}es") for many, what in counted]
    words += [
        count(numbers.claims, "claim"),
        count(numbers.lapses, "lapse"),
        count(numbers.retries, "retry", "retries"),
    ]
    cut = " (of the newest events only: the window holds more)" if found.counts_cut else ""
    say(f"{', '.join(words)}{cut}")
    if found.attempts:
        ends = ", ".join(f"{number} {end}" for end, number in sorted(found.attempts_by_end.items()))
        say(f"They ended: {ends}; failure rate {found.failure_rate:.0%}")
    spreads = (
        ("waiting", found.wait_ms),
        ("offer to claim", found.claim_ms),
        ("starting", found.start_ms),
        ("working", found.work_ms),
        ("whole run", found.run_ms),
    )
    if any(spread for _, spread in spreads):
        made = table("TIME", "MEDIAN", "P95", "MAX", right=("MEDIAN", "P95", "MAX"))
        for name, spread in spreads:
            if spread:
                made.add_row(cell(name), *(cell(span(spread[key])) for key in ("p50", "p95", "max")))
        print_table(made)
