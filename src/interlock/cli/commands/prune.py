"""``interlock prune``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from interlock.cli.options import milliseconds
from interlock.cli.output import console, print_json, say, warn
from interlock.cli.runs import json_option
from interlock.cli.session import Session, pass_session
from interlock.cli.text import count, moment, span

if TYPE_CHECKING:
    from interlock.cli.host import Opened

PAGE = 200
MOST = 10_000_000


@click.command()
@click.option(
    "--older-than", callback=milliseconds, required=True, metavar="TIME", help="Ended longer ago than this: 30d, 12h."
)
@click.option("--dry-run", is_flag=True, help="Only say how many they are.")
@json_option
@pass_session
def prune(session: Session, /, older_than: int, dry_run: bool, as_json: bool) -> int:
    """Delete runs that ended long ago, with their events, attempts and outputs. Runs that have not ended stay.

    A backlog whose runs were deleted is new to `interlock run`: its tasks would be run again.

    \b
    Examples:
      interlock prune --older-than 30d --dry-run
      interlock prune --older-than 30d
    """
    return session.run(lambda il: _prune(il, older_than, dry_run=dry_run, as_json=as_json))


async def _prune(il: Opened, older_than: int, *, dry_run: bool, as_json: bool) -> int:
    before = il.service.clock.now_ms() - older_than
    chosen = len(await il.service.store.read(lambda tx: tx.prunable(before, MOST)))
    when = f"ended before {moment(before)} ({span(older_than)} ago)"
    if dry_run or not chosen:
        if as_json:
            print_json({"dry_run": dry_run, "runs": chosen})
        elif not chosen:
            say(f"No run {when}.")
        else:
            say(f"{count(chosen, 'run')} {when}. Nothing was deleted.")
        return 0
    gone, folders, left = await _delete(il, before, chosen)
    if as_json:
        print_json({"dry_run": False, "runs": gone, "folders": folders, "folders_left": left})
    else:
        say(f"Deleted {count(gone, 'run')} that {when}, and {count(folders, 'attempt folder')}.")
    for folder in left:
        warn(f"{folder} could not be removed: a process still works in it, or it is not yours")
    return 1 if left else 0


async def _delete(il: Opened, before: int, chosen: int) -> tuple[int, int, list[str]]:
    import trio  # noqa: PLC0415

    from interlock.runtimes.leftovers import remove_folder  # noqa: PLC0415

    gone = folders = 0
    left: list[str] = []
    interactive = sys.stderr is not None and sys.stderr.isatty()
    with console(sys.stderr).status("") as status:
        if not interactive:
            status.stop()
        while True:
            # The rows first: a folder without a run is found by `interlock doctor`, a run without its folder by nobody.
            page = await il.service.prune(before, bound=PAGE)
            for _, of_run in page:
                for folder in of_run:
                    if await trio.to_thread.run_sync(remove_folder, il.data, folder):
                        folders += 1
                    else:
                        left.append(folder)
            gone += len(page)
            status.update(f"{gone} of {chosen} runs deleted")
            if len(page) < PAGE:
                return gone, folders, left
