"""``interlock diagram``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from interlock.cli.output import say, warn
from interlock.cli.session import Session, pass_session
from interlock.domain.errors import InvalidInput, Unavailable
from interlock.domain.states import RunEvent

if TYPE_CHECKING:
    from interlock.service.reads import Story

MACHINES = ("run", "attempt", "worker", "dispatcher")
FORMATS = ("mermaid", "md", "dot", "svg", "png")
SUFFIXES = {
    ".mmd": "mermaid",
    ".mermaid": "mermaid",
    ".md": "md",
    ".dot": "dot",
    ".gv": "dot",
    ".svg": "svg",
    ".png": "png",
}


@click.command()
@click.argument("machine", type=click.Choice(MACHINES), default="run", required=False)
@click.option("--format", "format_", type=click.Choice(FORMATS), help="[default: by --output's name, else mermaid]")
@click.option("--run", "run_ref", metavar="RUN", help="Mark the way that this run took, and where it stands.")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write to a file."
)
@pass_session
def diagram(session: Session, /, machine: str, format_: str | None, run_ref: str | None, output: Path | None) -> None:
    """Draw a state machine, or with --run the way of one run through it. svg and png need graphviz (`dot`).

    \b
    Examples:
      interlock diagram
      interlock diagram --run 42 --output run-42.svg
      interlock diagram attempt --format md
    """
    from interlock.diagrams import render  # noqa: PLC0415

    if run_ref is not None and machine != "run":
        raise click.UsageError("--run goes with the machine 'run'.")
    chosen = format_ or (SUFFIXES.get(output.suffix.lower()) if output is not None else None) or "mermaid"
    taken: list[tuple[str, str, str]] = []
    current = None
    if run_ref is not None:
        story = session.run(lambda il: il.service.story(run_ref))
        taken, current = way(story), str(story.run.state)
    drawn = render(machine, chosen, taken=taken, current=current)
    if output is not None:
        _write(output, drawn.encode() if isinstance(drawn, str) else drawn)
        warn(f"Wrote {output}.")
    elif isinstance(drawn, str):
        say(drawn.rstrip("\n"))
    elif sys.stdout is not None:
        if sys.stdout.isatty():
            raise InvalidInput("a png is not for a terminal", hint="name a file: --output machine.png")
        sys.stdout.buffer.write(drawn)


def way(story: Story) -> list[tuple[str, str, str]]:
    """The moves of a run, without the notes between them."""
    moves = frozenset(map(str, RunEvent))
    return [
        (event.from_state or "", event.event, event.to_state or "")
        for event in story.events
        if event.event in moves and event.to_state is not None
    ]


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", hint="name a file that you can write") from error
