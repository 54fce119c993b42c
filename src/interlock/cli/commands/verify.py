"""``interlock verify``: the property and simulation checks, under the user's own settings."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from interlock.cli.output import cell, print_json, print_table, say, table, warn
from interlock.cli.runs import json_option
from interlock.cli.session import Session, pass_session
from interlock.cli.text import count
from interlock.domain.errors import Unavailable
from interlock.domain.places import CONFIG_FILE
from interlock.domain.settings import Settings
from interlock.domain.states import RunEvent, RunState

if TYPE_CHECKING:
    from interlock.domain.run import Route
    from interlock.testing.explored import Explored
    from interlock.testing.verifying import Exploration, Finding

INTERRUPTED = 130
NOT_RECORDED = frozenset({RunEvent.RENEW})
"""A heartbeat leaves no line in the event log."""
STORY_LINES = 400


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="N",
    help="How long to explore.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="S", help="Go the one way of this seed again, and nothing else."
)
@json_option
@pass_session
def verify(session: Session, /, seconds: float, seed: int | None, as_json: bool) -> int:
    """Explore what your configuration (limits, routes, agents, budgets) leads to, and check after every step what always holds.

    Walks draw any order of commands, with the projects, tags, roles and agents of your configuration, beside a model of what runs
    do. Simulations let days pass: dispatchers are killed, agents vanish, clocks jump. Nothing of yours is touched: your database is
    read for its routes only, no agent is started, no daemon is needed. Needs the extra `testing`.

    Exit status 0 when every invariant held, 1 when one failed; then the smallest story that leads to it is printed.

    \b
    Examples:
      interlock verify
      interlock verify --seconds 300 --config interlock.yaml
      interlock verify --seed 4711
    """
    verifying = _engine()
    settings, source = _settings(session)
    routes = _routes(session)
    exploration: Exploration = verifying.Exploration(settings, routes, seed=_fresh() if seed is None else seed)
    began = time.monotonic()
    interrupted = False
    with _progress(exploration, began, seconds if seed is None else None, quiet=as_json) as seen:
        try:
            exploration.run(time.monotonic, until=began + seconds, once=seed is not None, seen=seen)
        except BaseException as error:
            if not _is_ctrl_c(error):
                raise
            interrupted = True
    took = time.monotonic() - began
    if as_json:
        _print_json(session, exploration, source, routes, settings, took, interrupted=interrupted)
    else:
        _print(session, exploration, source, routes, settings, took, interrupted=interrupted)
    if exploration.finding is not None:
        return 1
    return INTERRUPTED if interrupted else 0


def _engine() -> Any:
    """The testing kit. It is an extra: who only dispatches does not need it."""
    try:
        from interlock.testing import verifying  # noqa: PLC0415
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] == "interlock":
            raise
        raise Unavailable(
            f"`interlock verify` needs the extra `testing`, and {error.name} is not installed",
            hint="pip install 'interlock[testing]'",
        ) from error
    return verifying


def _settings(session: Session) -> tuple[Settings, str | None]:
    """The settings to verify, and the file that they are from; None: there is none, and all is default."""
    path = session.config
    if path is None:
        candidates = (Path(CONFIG_FILE), session.host.locate(session.data).parent / CONFIG_FILE)
        path = next((candidate for candidate in candidates if candidate.exists()), None)
    if path is None:
        return Settings(), None
    return session.host.check_config(path)[0], str(path)


def _routes(session: Session) -> list[Route]:
    """Routes are in the database; they are looked at, and it stays as it is."""
    from interlock.store.sqlite.glance import stored_routes  # noqa: PLC0415

    try:
        return stored_routes(session.host.locate(session.data))
    except Unavailable as error:
        warn(f"verified without routes: {error.message}")
        return []


def _fresh() -> int:
    from random import SystemRandom  # noqa: PLC0415

    return SystemRandom().randrange(1_000_000_000)


def _is_ctrl_c(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_is_ctrl_c(inner) for inner in error.exceptions)
    return isinstance(error, KeyboardInterrupt)


@contextmanager
def _progress(exploration: Exploration, began: float, seconds: float | None, *, quiet: bool) -> Iterator[Any]:
    """A line on the terminal that says how far it is; nothing away from one."""
    stream = sys.stderr
    if quiet or stream is None or not stream.isatty():
        yield lambda: None
        return

    def seen() -> None:
        explored = exploration.explored
        of = f" of {seconds:g}" if seconds is not None else ""
        line = f"{time.monotonic() - began:.0f}{of} s: {_amounts(explored)}"[:79]
        click.echo(f"\r{line}\x1b[K", nl=False, file=stream)

    seen()
    try:
        yield seen
    finally:
        click.echo("\r\x1b[K", nl=False, file=stream)


def _amounts(explored: Explored) -> str:
    return (
        f"{count(explored.walks, 'walk')} ({count(explored.steps, 'step')}), "
        f"{count(explored.simulations, 'simulation')} ({explored.simulated_hours:.0f} hours), "
        f"{count(explored.runs, 'run')}"
    )


def _print(
    session: Session,
    exploration: Exploration,
    source: str | None,
    routes: list[Route],
    settings: Settings,
    took: float,
    *,
    interrupted: bool,
) -> None:
    from interlock.testing.impossible import impossible  # noqa: PLC0415

    explored = exploration.explored
    say(
        f"{source or f'No {CONFIG_FILE}: the defaults'}, with {count(len(routes), 'route')}, explored for {took:.1f} s."
    )
    if interrupted:
        say("Interrupted; up to here:", "yellow")
    say(f"  {_amounts(explored)}")
    say(f"  transitions: {_counted(explored.events, [e for e in RunEvent if e not in NOT_RECORDED])}")
    say(f"  states reached: {_counted(explored.states, list(RunState))}")
    say(f"  went wrong on purpose: {_counted(explored.faults)}")
    say(f"  refused, as it must be: {_counted(explored.refusals)}")
    _print_limits(explored)
    say(f"Routes taken: {_counted(explored.routes)}")
    for sentence in impossible(settings, routes, explored):
        say(f"note: {sentence}", "yellow")
    if exploration.finding is None:
        say("No invariant failed.", "" if interrupted else "green")
    else:
        _print_finding(session, exploration.finding)


def _counted(numbers: Mapping[str, int], known: list[Any] | None = None) -> str:
    """``12 submit, 7 claim; never: reject``."""
    found = ", ".join(
        f"{number} {name}" for name, number in sorted(numbers.items(), key=lambda entry: -entry[1]) if number
    )
    never = ", ".join(str(name) for name in known or () if not numbers.get(str(name)))
    return "; ".join([found or "none", *([f"never: {never}"] if never else [])])


def _print_limits(explored: Explored) -> None:
    if not explored.limits:
        return
    made = table("LIMIT", "OF", "MOST AT ONCE", "TIMES FULL", right=("OF", "MOST AT ONCE", "TIMES FULL"))
    for key, use in sorted(explored.limits.items()):
        made.add_row(cell(key), cell(use.cap), cell(use.highest), cell(use.filled or "never"))
    print_table(made)


def _print_finding(session: Session, finding: Finding) -> None:
    say(f"An invariant failed, in a {finding.how}:", "bold red")
    say(f"  {finding.fault}")
    say("The smallest story that leads to it:" if finding.smallest else "The story that leads to it, as it was found:")
    for number, line in enumerate(finding.lines[:STORY_LINES], 1):
        say(f"  {number}. {line}")
    if len(finding.lines) > STORY_LINES:
        say(f"  (and {len(finding.lines) - STORY_LINES} more lines: --json has them all)")
    say(f"Seed {finding.seed}. To see it again: {_again(session, finding)}")


def _again(session: Session, finding: Finding) -> str:
    """The command that goes the same way. What the options and the environment named is named in it."""
    words = ["interlock", "verify", "--seed", str(finding.seed)]
    for name, value in (("--config", session.config), ("--data", session.data)):
        if value is not None:
            words += [name, str(value)]
    return shlex.join(words)


def _print_json(
    session: Session,
    exploration: Exploration,
    source: str | None,
    routes: list[Route],
    settings: Settings,
    took: float,
    *,
    interrupted: bool,
) -> None:
    from interlock.testing.impossible import impossible  # noqa: PLC0415

    finding = exploration.finding
    print_json(
        {
            "config": source,
            "routes": routes,
            "seconds": round(took, 3),
            "seed": exploration.seed,
            "interrupted": interrupted,
            "explored": exploration.explored,
            "notes": impossible(settings, routes, exploration.explored),
            "finding": finding,
            "again": None if finding is None else _again(session, finding),
        }
    )
