"""``interlock version``."""

from __future__ import annotations

import click

from interlock.cli.session import Session, pass_session


@click.command()
@pass_session
def version(session: Session, /) -> None:
    """Print the version.

    \b
    Example:
      interlock version
    """
    click.echo(f"interlock {session.host.version()}")
