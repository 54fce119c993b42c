"""``interlock up``."""

from __future__ import annotations

import click

from interlock.cli.session import Session, pass_session, run_async


@click.command()
@click.option("--peer", is_flag=True, help="Beside another dispatcher of the same data folder.")
@pass_session
def up(session: Session, /, peer: bool) -> int:
    """Start the dispatcher, here in the foreground: it runs what is queued, and goes on until it is stopped.

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
            return await Daemon(il, verbose=session.verbose, alone=not peer).run()

    return run_async(main)
