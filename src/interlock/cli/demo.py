"""`interlock demo`: the program at work on a backlog of its own, in under twenty seconds, without network or agent."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING

import click

from interlock.cli.request import Request
from interlock.cli.run import run_backlog
from interlock.cli.session import Session, pass_session
from interlock.domain.errors import Conflict
from interlock.domain.places import CONFIG_FILE, DATA_FOLDER, DATABASE

if TYPE_CHECKING:
    from interlock.cli.batch import Batch
    from interlock.cli.demo_yard import Job

CONCURRENCY = 4


@click.command("demo")
@click.option("--keep/--remove", default=True, help="Keep the demo's folder, to look around in it. [default: keep]")
@pass_session
def demo_command(session: Session, /, keep: bool) -> int:
    """See it work: a small git repository, a backlog of 25 tasks, and an agent that is one shell script.

    Some tasks fail once, one fails for good, one hangs and is timed out, some need others, some share a GPU of which there is
    one. No network is used, and nothing but a temporary folder is written to. Ends with 0 when every task ended as planned.

    \b
    Example:
      interlock demo
    """
    from interlock.cli.demo_yard import make_yard  # noqa: PLC0415

    yard = Path(tempfile.mkdtemp(prefix="interlock-demo-")).resolve()
    try:
        with_git = shutil.which("git") is not None
        try:
            jobs = make_yard(yard, git=with_git)
        except subprocess.SubprocessError as error:
            said = getattr(error, "stderr", None) or b""
            shutil.rmtree(yard, ignore_errors=True)
            yard.mkdir(mode=0o700)
            click.echo(
                f"git does not work here, so the demo goes without: {said.decode(errors='replace').strip()}", err=True
            )
            jobs = make_yard(yard, git=False)
        if not with_git:
            click.echo("git is not installed: the tasks that look at the repository are left out", err=True)
        return _run(session, yard, jobs, keep=keep)
    finally:
        if not keep:
            shutil.rmtree(yard, ignore_errors=True)


def _run(session: Session, yard: Path, jobs: Sequence[Job], *, keep: bool) -> int:
    data = yard / DATA_FOLDER if session.data is None else session.data.absolute()
    if (data / DATABASE).exists():
        raise Conflict(f"there is data in {data} already", hint="the demo wants a folder of its own: leave --data away")
    # Its own configuration and data, whatever INTERLOCK_DATA or the options say about the user's.
    session.data, session.config = data, yard / CONFIG_FILE
    click.echo(f"The demo lives in {yard}:", err=True)
    click.echo(f"the files of a shop, a backlog of {len(jobs)} tasks, and agent.sh, which does them.\n", err=True)
    batches: list[Batch] = []
    with chdir(yard):
        request = Request(backlog="backlog.yaml", concurrency=CONCURRENCY, next_steps=False)
        status = run_backlog(session, request, at_end=batches.append)
    if status not in (0, 1):
        return status
    differences = _differences(batches[0], jobs)
    for difference in differences:
        click.echo(f"not as planned: {difference}", err=True)
    if keep:
        click.echo(_what_next(yard, data, batches[0], jobs, as_planned=not differences))
    return 1 if differences else 0


def _differences(batch: Batch, jobs: Sequence[Job]) -> list[str]:
    found = []
    for job in jobs:
        number = batch.number_of[f"id:{job.id}"]
        state = str(batch.states[number])
        if state != job.ends:
            found.append(f"#{number} {job.id} is {state}, and was to be {job.ends}")
    return found


def _what_next(yard: Path, data: Path, batch: Batch, jobs: Sequence[Job], *, as_planned: bool) -> str:
    def number(name: str) -> str:
        return f"'#{batch.number_of[f'id:{name}']}'"

    lines = [""]
    if as_planned:
        done = sum(1 for job in jobs if job.ends == "completed")
        lines += [
            f"All went as planned: {done} tasks were done (two of them at the second try),",
            f"one failed for good ({number('compile-legacy')}), one hung and was timed out ({number('hang')}).",
            "",
        ]
    enter = f"cd {shlex.quote(str(yard))}"
    if data != yard / DATA_FOLDER:
        enter += f" && export INTERLOCK_DATA={shlex.quote(str(data))}"
    steps = [
        ("interlock ps --all", "every run"),
        (f"interlock show {number('fetch')}", "one that failed once, with its attempts"),
        (f"interlock why {number('compile-legacy')}", "why it ended as it did"),
        (f"interlock logs {number('compile-legacy')}", "what its agent wrote"),
        (f"interlock diagram --run {number('fetch')}", "its way through the states"),
        ("interlock run backlog.yaml", "nothing runs twice; try --retry-failed"),
        ("cat agent.sh backlog.yaml", "how an agent is called"),
    ]
    columns = max(len(command) for command, _ in steps)
    return "\n".join(
        [*lines, "Look around:", f"  {enter}", *(f"  {command:<{columns}}  # {what}" for command, what in steps)]
    )
