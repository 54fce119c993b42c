"""``interlock up``."""

from __future__ import annotations

import click

from interlock.cli.session import Session, pass_session, run_async


@click.command()
@click.option("--peer", is_flag=True, help="Beside another dispatcher of the same data folder.")
@click.option("--listen", metavar="HOST:PORT", help="Serve HTTP there; beyond this machine it wants tokens.")
@click.option("--no-http", is_flag=True, help="Serve no HTTP.")
@pass_session
def up(session: Session, /, peer: bool, listen: str | None, no_http: bool) -> int:
    """Start the dispatcher, here in the foreground: it runs what is queued, and goes on until it is stopped.

    Agents that pull, and everybody else, reach it by HTTP (127.0.0.1:7420, and a socket file in the data folder).

    Prints a line per event. Ctrl-C (or SIGTERM) once: nothing new starts, running agents finish. Twice: they are stopped
    and their runs queued again. Killed or crashed, its agents go on, and the next `interlock up` takes them up.

    \b
    Examples:
      interlock up
      interlock up >> interlock.out 2>&1 &
    """
    from interlock.cli.daemon import Daemon  # noqa: PLC0415

    async def main() -> int:
        async with session.open(create=True) as il:
            serves = not no_http and (listen is not None or (il.settings.server.enabled and not peer))
            return await Daemon(il, verbose=session.verbose, alone=not peer, serves=serves, listen=listen).run()

    return run_async(main)
