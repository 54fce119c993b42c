"""``interlock agent``."""

from __future__ import annotations

from pathlib import Path

import click

from interlock.cli.options import milliseconds
from interlock.cli.session import Session, pass_session, run_async
from interlock.domain.settings import LONGEST_LEASE_MS


@click.command()
@click.option("--exec", "command", metavar="CMD", required=True, help="The command that does the work.")
@click.option("--agent-id", metavar="NAME", help="Take what is offered to this agent, or to any. Else: any offer.")
@click.option("--role", metavar="NAME", help="Take runs of this role only, and those that name none.")
@click.option(
    "--types",
    metavar="TYPE,...",
    multiple=True,
    help="Take these workflow types only, and runs without one. review.* is every type that begins so.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="So many runs at once.",
)
@click.option("--runs", type=click.IntRange(1), metavar="N", help="End after so many runs. Else it goes on.")
@click.option(
    "--url",
    metavar="URL",
    envvar="INTERLOCK_URL",
    help="http(s)://HOST:PORT, or a socket file. Else INTERLOCK_URL, else the data folder's socket file, "
    "else http://127.0.0.1:7420.",
)
@click.option(
    "--token",
    metavar="TOKEN",
    envvar="INTERLOCK_TOKEN",
    help="For a server on another machine. Else INTERLOCK_TOKEN, which other users of this machine cannot see.",
)
@click.option(
    "--lease",
    "lease_ms",
    metavar="DURATION",
    callback=milliseconds,
    help="So long without a heartbeat, and a run is offered to others. Else as the server has it (10m).",
)
@click.option(
    "--grace",
    "grace_ms",
    metavar="DURATION",
    callback=milliseconds,
    default="10s",
    show_default=True,
    help="Between TERM and KILL when a command is stopped.",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where work is kept until the server has its outcome. Else `spool` in the data folder, "
    "or ~/.local/state/interlock/spool with --url.",
)
@pass_session
def agent(
    session: Session,
    /,
    command: str,
    agent_id: str | None,
    role: str | None,
    types: tuple[str, ...],
    parallel: int,
    runs: int | None,
    url: str | None,
    token: str | None,
    lease_ms: int | None,
    grace_ms: int,
    spool: Path | None,
) -> int:
    """Pull runs from a dispatcher (dispatch.mode: pull), and run CMD for each, here, in this folder.

    CMD is run as `interlock up` runs an agent's command: the prompt on standard input, INTERLOCK_* variables, a result file,
    exit status 0 for completed, 75 for later. It is kept alive by heartbeats, its output sent on as it comes, and it is
    stopped when the run is cancelled.

    The server may be away meanwhile: CMD works on, and no outcome is lost. Killed or crashed, what it ran goes on, and the
    next `interlock agent` with the same spool takes it up and reports it. Ctrl-C (or SIGTERM) once: nothing new is taken,
    what runs is finished. Twice: it is stopped and given back. Three times: it is left running for the next agent.

    \b
    Examples:
      interlock agent --exec './agent.sh'
      interlock agent --exec 'claude -p' --agent-id claude --types 'review.*,build' --parallel 4
      INTERLOCK_TOKEN=... interlock agent --exec ./agent.sh --url https://dispatch.example.org
    """
    from interlock.cli.pulling import Pulling  # noqa: PLC0415

    if lease_ms is not None and lease_ms > LONGEST_LEASE_MS:
        raise click.BadParameter("it lies between 1 ms and a day.", param_hint="--lease")
    if not command.strip():
        raise click.BadParameter("there is no command in it.", param_hint="--exec")
    return run_async(
        Pulling(
            session,
            command=command,
            agent_id=agent_id,
            role=role,
            types=tuple(name.strip() for each in types for name in each.split(",") if name.strip()),
            parallel=parallel,
            runs=runs,
            url=url,
            token=token,
            lease_ms=lease_ms,
            grace_ms=grace_ms,
            spool=spool,
        ).run
    )
