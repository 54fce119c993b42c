"""``interlock up``."""

from __future__ import annotations

import click

from interlock.cli.session import Session, pass_session, run_async


@click.command()
@click.option("--peer", is_flag=True, help="Beside another dispatcher of the same data folder.")
@click.option("--listen", metavar="HOST:PORT", help="Serve HTTP there; beyond this machine it wants tokens.")
@click.option("--no-http", is_flag=True, help="Serve no HTTP.")
@click.option("--shadow", is_flag=True, help="Say what would be done, and do nothing; serves no HTTP.")
@pass_session
def up(session: Session, /, peer: bool, listen: str | None, no_http: bool, shadow: bool) -> int:
    """Start the dispatcher, here in the foreground: it runs what is queued, and goes on until it is stopped.

    Agents that pull, and everybody else, reach it by HTTP (127.0.0.1:7420, and a socket file in the data folder).

    Prints a line per event. Ctrl-C (or SIGTERM) once: nothing new starts, running agents finish. Twice: they are stopped
    and their runs queued again. Killed or crashed, its agents go on, and the next `interlock up` takes them up.

    With --shadow it decides everything and dispatches nothing: it prints what it would have started or offered and why the others
    wait, changes nothing in the data folder, and may run beside a dispatcher. What it would have started counts as active, with
    its slots, until the run ends. It serves no HTTP.

    \b
    Examples:
      interlock up
      interlock up --shadow
      interlock up >> interlock.out 2>&1 &
    """
    if shadow:
        return _shadow(session, refused=listen is not None or peer)
    from interlock.cli.daemon import Daemon  # noqa: PLC0415

    async def main() -> int:
        async with session.open(create=True) as il:
            serves = not no_http and (listen is not None or (il.settings.server.enabled and not peer))
            return await Daemon(il, verbose=session.verbose, alone=not peer, serves=serves, listen=listen).run()

    return run_async(main)


def _shadow(session: Session, *, refused: bool) -> int:
    if refused:
        raise click.UsageError(
            "--shadow goes with neither --listen nor --peer: it serves no HTTP and needs no place of its own."
        )
    from interlock.cli.shadow import Shadow  # noqa: PLC0415

    async def main() -> int:
        async with session.open() as il:
            return await Shadow(il).run()

    return run_async(main)
