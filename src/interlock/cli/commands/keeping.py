"""``interlock backup`` and ``interlock export``."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from interlock.cli.output import json_text, say
from interlock.cli.session import Session, pass_session
from interlock.cli.text import plain

if TYPE_CHECKING:
    from interlock.cli.host import Opened
    from interlock.ports.store import Tx

PAGE = 200


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@pass_session
def backup(session: Session, /, file: Path) -> None:
    """Copy the database to a new file while it is in use.

    To put it back: stop the dispatcher, then copy the file over interlock.db in the data folder and remove the -wal and
    -shm files beside it. Outputs of attempts are files in the same folder and are not part of it.

    \b
    Example:
      interlock backup interlock-2026-07-01.db
    """

    async def copy(il: Opened) -> None:
        await il.backup(file.absolute())
        say(f"Wrote {file} ({file.stat().st_size / 1024**2:.1f} MiB).")

    session.run(copy)


@click.command()
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "json", "csv", "tsv"]),
    default="jsonl",
    show_default=True,
    help="jsonl: one JSON value per line; json: one array.",
)
@click.option(
    "--table", type=click.Choice(["runs", "attempts", "events"]), help="One table only; csv and tsv: runs, if left out."
)
@pass_session
def export(session: Session, /, format_: str, table: str | None) -> None:
    """Print runs as data, the oldest first: by default one JSON line per run, with its attempts and events.

    \b
    Examples:
      interlock export > runs.jsonl
      interlock export --format csv --table attempts > attempts.csv
      interlock export | jq 'select(.state == "failed") | .task.title'
    """

    async def print_all(il: Opened) -> None:
        if format_ in ("csv", "tsv"):
            await _print_rows(il, table or "runs", delimiter="," if format_ == "csv" else "\t")
        elif format_ == "jsonl":
            async for row in _rows(il, table):
                click.echo(json_text(row, indent=0))
        else:
            first = True
            click.echo("[", nl=False)
            async for row in _rows(il, table):
                click.echo(("\n" if first else ",\n") + json_text(row, indent=0), nl=False)
                first = False
            click.echo("\n]" if not first else "]")

    session.run(print_all)


async def _rows(il: Opened, table: str | None) -> AsyncIterator[dict[str, Any]]:
    """Page by page, so that a long history neither fills the memory nor holds back the log of the database."""
    start = 0
    last = await il.service.store.read(_last_number)
    while start < last:
        numbers = range(start + 1, min(start + PAGE, last) + 1)
        for row in await il.service.store.read(lambda tx, numbers=numbers: list(_page(tx, numbers, table))):  # type: ignore[misc]
            yield row
        start += PAGE


def _last_number(tx: Tx) -> int:
    from interlock.service.reads import Filter  # noqa: PLC0415

    newest = tx.find_runs(Filter(limit=1))
    return newest[0].number if newest else 0


def _page(tx: Tx, numbers: range, table: str | None) -> Iterator[dict[str, Any]]:
    for number in numbers:
        run = tx.run(number)
        if run is None:
            continue
        if table in (None, "runs"):
            row = msgspec.to_builtins(run)
            if table is None:
                row["attempts"] = msgspec.to_builtins(tx.attempts(number))
                row["events"] = msgspec.to_builtins(tx.events_of(number))
            yield row
        elif table == "attempts":
            yield from msgspec.to_builtins(tx.attempts(number))
        else:
            yield from msgspec.to_builtins(tx.events_of(number))


async def _print_rows(il: Opened, table: str, *, delimiter: str) -> None:
    import csv  # noqa: PLC0415
    import io  # noqa: PLC0415

    from interlock.domain.run import Attempt, Event, Run  # noqa: PLC0415

    kind = {"runs": Run, "attempts": Attempt, "events": Event}[table]
    # The title is what a spreadsheet is opened for; the rest of the task stands beside it as JSON.
    columns = [*(("number", "title") if table == "runs" else ()), *kind.__struct_fields__]
    columns = list(dict.fromkeys(columns))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    to_person = sys.stdout is not None and sys.stdout.isatty()
    async for row in _rows(il, table):
        flat = {
            name: json_text(value, indent=0) if isinstance(value, dict | list) else value for name, value in row.items()
        }
        if table == "runs":
            flat["title"] = row["task"]["title"]
        if to_person:
            # CSV has no escapes of its own: into a file the words go as they are, onto a screen they do not.
            flat = {name: plain(value) if isinstance(value, str) else value for name, value in flat.items()}
        writer.writerow(flat)
        click.echo(buffer.getvalue(), nl=False)
        buffer.seek(0)
        buffer.truncate()
    click.echo(buffer.getvalue(), nl=False)
