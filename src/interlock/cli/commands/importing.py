"""``interlock import``: runs of another dispatcher."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from interlock.cli.output import cell, print_json, print_table, say, table, warn
from interlock.cli.runs import json_option, outlook
from interlock.cli.session import Session, pass_session, run_async
from interlock.cli.text import count, plain, short
from interlock.domain.errors import NotFound
from interlock.domain.settings import Mode

if TYPE_CHECKING:
    from interlock.cli.host import Opened
    from interlock.service.importing import TakenOver, Wanted
    from interlock.sources.records import RecordFile
    from interlock.sources.workflow_runs import OldRun

PAGE = 1000
NAMED = 5
PROGRESS_SECONDS = 0.2

_HERE = {
    "queued": "queued",
    "held": "on hold",
    "ended": "ended, as it did there",
    "held_now": "imported before, on hold now: in flight there",
    "ended_now": "imported before, ended now as it did there",
    "known": "imported before: nothing to do",
    "clash": "at work here as well: nothing changed",
}


class Request(NamedTuple):
    """What was asked for."""

    file: str
    format: str | None
    status_needed: bool
    batch: str
    finished: bool
    hold: bool
    skip_bad: bool
    dry_run: bool
    as_json: bool


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.option("--dry-run", is_flag=True, help="Say what would become of each, and change nothing."),
            click.option(
                "--finished", is_flag=True, help="Take what has ended as well, as ended. [default: leave it out]"
            ),
            click.option("--hold", is_flag=True, help="Put everything on hold; `interlock unhold` lets it start."),
            click.option(
                "--skip-bad", is_flag=True, help="Leave out the records that are at fault. [default: take none]"
            ),
            click.option(
                "--batch",
                default="imported",
                show_default=True,
                metavar="NAME",
                help="Runs are known again within it: a name for each system that they come from.",
            ),
        )
    ):
        command = option(command)
    return json_option(command)


@click.group("import")
def import_group() -> None:
    """Take over the runs of another dispatcher.

    What waits there is queued here, in the order of the file. What is in flight there is put on hold: nothing is started twice.
    What has ended there is left out. The same file again, or a newer one, imports nothing twice: what has ended there meanwhile
    ends here, what was begun there is put on hold. docs/how-to/switch.md takes you from the other dispatcher to this one.

    \b
    Examples:
      interlock import pickup /tmp/dashboard-workflow-pickup.json --dry-run
      interlock import dump workflow_runs.csv
    """


@import_group.command()
@click.argument("file")
@_options
@pass_session
def pickup(session: Session, /, file: str, **given: Any) -> None:
    """Import the pickup file of a gateway dispatcher: a JSON object or a list of objects, also below a key such as `runs`.

    A record without a status waits. FILE - is standard input.

    \b
    Examples:
      interlock import pickup /tmp/dashboard-workflow-pickup.json --dry-run
      interlock import pickup /tmp/dashboard-workflow-pickup.json --hold
    """
    _import(session, Request(file=file, format="json", status_needed=False, **given))


@import_group.command()
@click.argument("file")
@click.option(
    "--format",
    "format",
    type=click.Choice(["csv", "json", "jsonl"]),
    help="How FILE is written. [default: by its name, or look]",
)
@_options
@pass_session
def dump(session: Session, /, file: str, **given: Any) -> None:
    """Import a dump of the table workflow_runs: CSV with a line of names, JSON or JSONL. FILE - is standard input.

    \b
    Examples:
      psql -c '\\copy (SELECT * FROM workflow_runs ORDER BY created_at) TO runs.csv CSV HEADER'
      interlock import dump runs.csv --dry-run
      interlock import dump runs.csv --finished
    """
    _import(session, Request(file=file, status_needed=True, **given))


def _import(session: Session, request: Request) -> None:
    from interlock.sources.faults import Faults  # noqa: PLC0415
    from interlock.sources.records import RecordFile  # noqa: PLC0415

    with closing(RecordFile(request.file)) as file, closing(_Progress()) as progress, closing(_Kept()) as kept:
        faults = Faults(file.source)
        found = _Findings()
        for old in progress.over("checked", _old_runs(file, request, faults)):
            found.see(old)
            kept.add(old)
        if not request.skip_bad:
            faults.check()
        run_async(lambda: _carry_out(session, request, found, progress.over("done", kept.runs(), of=found.runs)))
    if faults.count:
        warn(f"{count(faults.count, 'fault')}; the records are left out:\n{faults.error().message}")


def _old_runs(file: RecordFile, request: Request, faults: Any) -> Iterator[OldRun]:
    from interlock.sources.workflow_runs import Reader  # noqa: PLC0415

    reader = Reader(faults, status_needed=request.status_needed)
    for record in file.records(faults, format=request.format):
        old = reader.read(record)
        if old is not None:
            yield old


class _Findings:
    """What there is to be said of the file as a whole, and what became of its runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.without_status = 0
        self.in_order = True
        self.fates: Counter[tuple[str, str, str]] = Counter()
        self.numbers: list[int] = []
        self.named: dict[str, list[TakenOver]] = {}
        self.agents: Counter[str] = Counter()
        self._created_ms = 0

    def see(self, old: OldRun) -> None:
        """A run of the file."""
        self.runs += 1
        self.without_status += not old.status
        if old.created_ms is not None:
            self.in_order = self.in_order and old.created_ms >= self._created_ms
            self._created_ms = old.created_ms

    def see_fate(self, taken: TakenOver) -> None:
        """What becomes of one."""
        fate = str(taken.fate)
        self.fates[taken.old.status or "none", fate, str(taken.old.state)] += 1
        if fate in ("queued", "held", "ended") and taken.run is not None:
            self.numbers.append(taken.run.number)
        if fate in ("held", "held_now", "clash"):
            some = self.named.setdefault(fate, [])
            if len(some) < NAMED:
                some.append(taken)
        if fate == "queued" and taken.old.task.agent is not None:
            self.agents[taken.old.task.agent] += 1

    def many(self, *fates: str) -> int:
        """How many of them there are."""
        return sum(number for (_, fate, _), number in self.fates.items() if fate in fates)


class _Kept:
    """Runs that were read and checked, in a file of their own: a million would not fit into memory, and another reading of the file
    may find another one.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()

    def add(self, old: OldRun) -> None:
        """Keep one more."""
        self._file.write(msgspec.json.encode(old) + b"\n")

    def runs(self) -> Iterator[OldRun]:
        """All of them."""
        from interlock.sources.workflow_runs import OldRun  # noqa: PLC0415

        decoder = msgspec.json.Decoder(OldRun)
        self._file.seek(0)
        return map(decoder.decode, self._file)

    def close(self) -> None:
        """They are not needed any more."""
        self._file.close()


async def _carry_out(session: Session, request: Request, found: _Findings, runs: Iterator[OldRun]) -> None:
    from interlock.service.importing import Wanted, plan  # noqa: PLC0415

    wanted = Wanted(batch=request.batch, finished=request.finished, hold=request.hold)

    async def with_pages(act: Callable[[list[OldRun]], Awaitable[list[TakenOver]]]) -> None:
        while page := list(islice(runs, PAGE)):
            for taken in await act(page):
                found.see_fate(taken)

    async def all_new(page: list[OldRun]) -> list[TakenOver]:
        return _all_new(page, wanted)

    try:
        async with session.open(create=not request.dry_run) as il:
            if request.dry_run:
                await with_pages(lambda page: il.service.read(lambda tx, _: plan(tx, page, wanted)))
            else:
                await with_pages(lambda page: il.service.take_over(page, wanted))
            await _tell(il, request, found)
    except NotFound:
        if not request.dry_run:
            raise
        await with_pages(all_new)
        await _tell(None, request, found)


def _all_new(page: list[OldRun], wanted: Wanted) -> list[TakenOver]:
    """The plan for a data folder that is not there yet."""
    from interlock.service.importing import TakenOver, new_fate  # noqa: PLC0415

    return [TakenOver(old=old, fate=new_fate(old, wanted)) for old in page]


async def _tell(il: Opened | None, request: Request, found: _Findings) -> None:
    from interlock.sources.text import source_name  # noqa: PLC0415

    source = source_name(request.file)
    if request.as_json:
        print_json(
            {
                "file": source,
                "dry_run": request.dry_run,
                "records": found.runs,
                "runs": [
                    {"status": status, "fate": fate, "runs": number}
                    for (status, fate, _), number in found.fates.items()
                ],
                "numbers": found.numbers,
            }
        )
        return
    if not found.runs:
        say(f"{source}: there is no run in it.")
        return
    say(f"{source}: {count(found.runs, 'run')}")
    made = table("STATUS", "RUNS", "HERE", right=("RUNS",))
    for (status, fate, state), number in found.fates.items():
        made.add_row(cell(status), cell(number), cell(_here(request, fate, state)))
    print_table(made)
    _remark(il, found)
    if request.dry_run:
        say("Nothing was changed: this is what would be.")
    elif il is not None:
        new = found.numbers
        said = "Nothing new." if not new else f"Imported {count(len(new), 'run')}: {_span(new)}."
        say(" ".join(filter(None, (said, await outlook(il) if found.many("queued") else ""))))


def _here(request: Request, fate: str, state: str) -> str:
    if fate == "held":
        return "on hold: in flight there" if state == "in flight" else "on hold (--hold)"
    if fate == "left_out":
        if state == "timed_out":
            return "left out: here a run times out only in an attempt"
        return "left out" if request.finished else "left out (--finished takes it as ended)"
    return _HERE[fate]


def _span(numbers: list[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"#{first}"
    return f"#{first} to #{last}" if last - first == len(numbers) - 1 else f"#{first} to #{last}, with gaps"


def _remark(il: Opened | None, found: _Findings) -> None:
    if held := found.many("held", "held_now") and [*found.named.get("held", ()), *found.named.get("held_now", ())]:
        names = _names(held, found.many("held", "held_now"))
        say(f"On hold: {names}. `interlock why RUN` says why, and how each goes on.")
    if clashing := found.named.get("clash"):
        names = _names(clashing, found.many("clash"))
        warn(
            f"warning: begun or ended there and at work here: {names}; `interlock cancel` the ones that are not wanted"
        )
    if found.without_status:
        warn(
            f"{count(found.without_status, 'record')} without a status: taken as waiting; if an agent may have picked them up, "
            "import with --hold"
        )
    if not found.in_order:
        warn("The records are not in the order of created_at; they are queued in the order of the file.")
    if il is not None and il.settings.mode is Mode.PUSH:
        unknown = [agent for agent in found.agents if agent not in il.settings.agents]
        if unknown:
            names = ", ".join(plain(agent) for agent in unknown[:NAMED])
            more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
            warn(f"No such agent in the configuration yet: {names}{more}; their runs wait until there is.")


def _names(some: list[TakenOver], many: int) -> str:
    words = [f"{f'#{one.run.number} ' if one.run else ''}{short(one.old.task.title, 40)}" for one in some[:NAMED]]
    more = f" and {many - len(words)} more" if many > len(words) else ""
    return f"{', '.join(words)}{more}"


class _Progress:
    """How far it is, on a terminal, on one line that is gone at the end."""

    def __init__(self) -> None:
        self._shows = sys.stderr is not None and sys.stderr.isatty()
        self._shown = False
        self._next = time.monotonic() + PROGRESS_SECONDS

    def over(self, what: str, runs: Iterator[OldRun], *, of: int | None = None) -> Iterator[OldRun]:
        """The same runs, counted."""
        for number, old in enumerate(runs, start=1):
            if self._shows and number % 256 == 0 and time.monotonic() >= self._next:
                self._next = time.monotonic() + PROGRESS_SECONDS
                total = "" if of is None else f" of {of}"
                click.echo(f"\r{what} {number}{total}\x1b[K", err=True, nl=False)
                self._shown = True
            yield old
        self.close()

    def close(self) -> None:
        """Take the line away."""
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._shown = False
