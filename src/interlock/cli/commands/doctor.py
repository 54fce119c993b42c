"""``interlock doctor``."""

from __future__ import annotations

import os
import shutil
import sqlite3
from typing import TYPE_CHECKING

import click

from interlock.cli.output import cell, on_terminal, print_json, print_table, say, table, warn
from interlock.cli.runs import json_option, run_words
from interlock.cli.session import Session, pass_session
from interlock.cli.text import count
from interlock.domain.errors import Conflict
from interlock.domain.places import DATABASE

if TYPE_CHECKING:
    from interlock.cli.host import Opened

LITTLE_SPACE = 256 * 1024 * 1024


@click.command()
@click.option("--repair", is_flag=True, help="Mend what can be mended.")
@click.option("--forget", metavar="RUN", help="Declare that the agent of this run is gone, when nobody else can tell.")
@click.option("--yes", "-y", is_flag=True, help="With --forget: do not ask.")
@json_option
@pass_session
def doctor(session: Session, /, repair: bool, forget: str | None, yes: bool, as_json: bool) -> int:
    """Look for faults: the database, the counts of slots, runs that nobody looks after, files without a run.

    Exit status 0 when all is sound, 1 when something is not.

    --forget is for one case only: the machine cannot tell whether the agent of a run still lives, and you can. The run goes
    on at once; if its agent lives after all, two of them work on the same task.

    \b
    Examples:
      interlock doctor
      interlock doctor --repair
      interlock doctor --forget 42
    """
    if forget is not None:
        return session.run(lambda il: _forget(il, forget, yes=yes))
    return session.run(lambda il: _examine(session, il, repair=repair, as_json=as_json))


async def _forget(il: Opened, ref: str, *, yes: bool) -> int:
    run = await il.service.get(ref)
    if not run.held_by_agent:
        raise Conflict(f"run #{run.number} is {run.state}: no agent has it", hint="there is nothing to forget")
    if run.owner in {instance.id for instance in await il.alive()}:
        raise Conflict(
            f"the dispatcher that looks after run #{run.number} is up ({run.owner})",
            hint=f"`interlock cancel {run.number}` stops its agent; to declare it gone, `interlock stop --detach` first",
        )
    warn(f"{run_words(run)} is {run.state}, held by {run.holder}, looked after by {run.owner or 'nobody'}.")
    warn("If its agent still lives, a second one will work on the same task.")
    if not yes:
        if not on_terminal():
            raise Conflict("forgetting an agent has to be confirmed", hint="make sure that it is gone, then add --yes")
        click.confirm("Is its agent gone?", abort=True, err=True)
    run = await il.forget(run)
    say(f"{run_words(run)} is {run.state} now.")
    return 0


async def _examine(session: Session, il: Opened, *, repair: bool, as_json: bool) -> int:
    import trio  # noqa: PLC0415

    faults = await il.doctor(repair=repair)
    faults += await _stray_files(il, repair=repair)
    usage = await trio.to_thread.run_sync(shutil.disk_usage, il.data)
    if usage.free < LITTLE_SPACE:
        faults.append(f"only {usage.free // 1024**2} MiB are free on the disk of {il.data}")
    # What was mended is told, and is no fault any more.
    open_faults = [fault for fault in faults if not fault.endswith("(mended)")]
    facts = _facts(session, il, usage.free) | {"dispatchers": len(await il.alive())}
    if as_json:
        print_json({"sound": not open_faults, "faults": faults, **facts})
        return 1 if open_faults else 0
    made = table("", "")
    made.show_header = False
    for name, value in facts.items():
        shown = ("yes" if value else "no") if isinstance(value, bool) else value
        made.add_row(cell(name.replace("_", " "), "dim"), cell(shown))
    print_table(made)
    for fault in faults:
        say(f"- {fault}", "green" if fault.endswith("(mended)") else "red")
    if not open_faults:
        say("All is sound.", "green")
        return 0
    say(
        f"{count(len(open_faults), 'fault')}."
        + ("" if repair else " `interlock doctor --repair` mends what can be mended.")
    )
    return 1


def _facts(session: Session, il: Opened, free: int) -> dict[str, object]:
    database = il.data / DATABASE
    return {
        "version": session.host.version(),
        "sqlite": sqlite3.sqlite_version,
        "data": str(il.data),
        "configuration": str(il.config_path or "none (defaults)"),
        "database_mib": round(database.stat().st_size / 1024**2, 1),
        "disk_free_mib": free // 1024**2,
        "agents_in_cgroups": il.contained,
        "dot_for_svg_and_png": shutil.which("dot") is not None,
        "open_files_limit": _open_files(),
    }


def _open_files() -> int:
    import resource  # noqa: PLC0415

    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


async def _stray_files(il: Opened, *, repair: bool) -> list[str]:
    import trio  # noqa: PLC0415

    from interlock.runtimes.leftovers import attempt_folders, remove_folder, without_attempt  # noqa: PLC0415

    # The folders first: one that is made while we look belongs to an attempt that was there before it.
    folders = await trio.to_thread.run_sync(lambda: list(attempt_folders(il.data)))
    stray = await il.service.store.read(lambda tx: without_attempt(tx, folders))
    faults = []
    if not os.access(il.data, os.W_OK):
        faults.append(f"{il.data} cannot be written")
    if stray and repair:
        left = [folder for folder in stray if not await trio.to_thread.run_sync(remove_folder, il.data, folder)]
        gone = len(stray) - len(left)
        if gone:
            faults.append(f"{count(gone, 'attempt folder')} without a run removed (mended)")
        faults += [
            f"{folder} belongs to no attempt, and a process still works in it or it cannot be removed"
            for folder in left
        ]
    elif stray:
        some = ", ".join(stray[:3]) + (" ..." if len(stray) > 3 else "")
        faults.append(f"{count(len(stray), 'attempt folder')} without a run: {some}")
    return faults
