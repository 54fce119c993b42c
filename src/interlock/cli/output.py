"""How results are printed: tables, sentences, JSON.

On a terminal a table fits its width; away from one it is as wide as its content, so that grep and a pager see all of it. Every
cell is a rich ``Text`` of neutralised words: nothing that a task says is read as markup or reaches the terminal as a
control sequence. NO_COLOR is respected (rich looks at it).
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from interlock.cli.text import plain, short

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

PIPED_COLUMNS = 10_000
CELL_COLUMNS = 200

# What JSON leaves as it is and a terminal would obey: DEL, C1 controls, marks that turn the direction of text.
_OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def console(file: IO[str] | None = None) -> Console:
    """A rich console on standard output (or ``file``) that takes nothing for markup, links or emoji codes."""
    from rich.console import Console  # noqa: PLC0415 - 60 ms that `version` and `--help` need not wait for

    stream = file if file is not None else sys.stdout
    wide = None if stream is not None and stream.isatty() else PIPED_COLUMNS
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=wide)


def table(*columns: str, right: Sequence[str] = (), flexible: Sequence[str] = ()) -> Table:
    """An empty table. ``flexible`` columns give way (with an ellipsis) when the terminal is narrow; the others stay whole."""
    from rich.table import Table  # noqa: PLC0415

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column not in flexible,
            # Rich narrows a column to nothing before it gives up on the table.
            min_width=8 if column in flexible else None,
        )
    return made


def cell(words: object, style: str = "", *, columns: int = CELL_COLUMNS) -> Text:
    """One line of a table's cell."""
    from rich.text import Text  # noqa: PLC0415

    return Text("" if words is None else short(str(words), columns), style=style, no_wrap=True, overflow="ellipsis")


def print_table(made: Table) -> None:
    """Print it; away from a terminal without the blanks at the ends of lines."""
    out = console()
    if out.is_terminal:
        out.print(made)
        return
    buffer = io.StringIO()
    console(buffer).print(made)
    click.echo("\n".join(line.rstrip() for line in buffer.getvalue().splitlines()))


def say(words: str, style: str = "") -> None:
    """A line (or several) on standard output."""
    if not style or sys.stdout is None or not sys.stdout.isatty():
        click.echo(plain(words, lines=True))
        return
    from rich.text import Text  # noqa: PLC0415

    console().print(Text(plain(words, lines=True), style=style), soft_wrap=True)


def warn(words: str) -> None:
    """A line on standard error: standard output is for what was asked."""
    click.echo(plain(words, lines=True), err=True)


def json_text(value: Any, *, indent: int = 2) -> str:
    """``value`` as JSON; ``indent`` 0: on one line."""
    encoded = msgspec.json.encode(value)
    if indent:
        encoded = msgspec.json.format(encoded, indent=indent)
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded.decode())


def print_json(value: Any) -> None:
    """``value`` as JSON on standard output, and nothing else."""
    click.echo(json_text(value))


def on_terminal() -> bool:
    """Whether a person sits at both ends, to be asked."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
