"""``interlock stop``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from interlock.cli.output import console, say, warn
from interlock.cli.session import Session, pass_session
from interlock.cli.text import count
from interlock.domain.errors import Unavailable
from interlock.domain.run import Instance

if TYPE_CHECKING:
    from interlock.cli.host import Opened

LOOK_SECONDS = 0.1
WORDS = {
    "drain": "running agents finish, nothing new starts",
    "detach": "agents are left running",
    "kill": "agents are stopped and their runs queued again",
}


@click.command()
@click.option("--drain", "how", flag_value="drain", default="drain", help="Let running agents finish (the default).")
@click.option("--detach", "how", flag_value="detach", help="Leave them running; the next `interlock up` takes them up.")
@click.option("--kill", "how", flag_value="kill", help="Stop them and queue their runs again.")
@pass_session
def stop(session: Session, /, how: str) -> int:
    """Stop the dispatcher of this data folder, and wait until it is gone.

    Nothing new starts from here on. Ctrl-C ends the waiting, not the stopping.

    \b
    Examples:
      interlock stop
      interlock stop --detach
      interlock stop --kill
    """
    return session.run(lambda il: _stop(il, how))


async def _stop(il: Opened, how: str) -> int:
    alive = await il.alive()
    if not alive:
        raise Unavailable("no dispatcher is running for this data folder", hint="`interlock up` starts one")

    await il.service.ask_to_end([instance.id for instance in alive], how)
    pids = ", ".join(str(instance.pid) for instance in alive)
    who = f"The dispatcher (pid {pids})" if len(alive) == 1 else f"{len(alive)} dispatchers (pids {pids})"
    warn(f"{who}: {WORDS[how]}.")
    try:
        await _wait(il, alive)
    except KeyboardInterrupt:
        harder = "" if how == "kill" else " `interlock stop --kill` does not wait for them."
        warn(f"It goes on stopping.{harder}")
        return 130
    left = await _agents(il, alive)
    say("Stopped." + (f" {count(left, 'agent')} left running: `interlock up` takes over." if left else ""))
    return 0


async def _agents(il: Opened, alive: Sequence[Instance]) -> int:
    ids = {instance.id for instance in alive}
    live = await il.service.store.read(lambda tx: tx.live_runs())
    return sum(run.held_by_agent and run.owner in ids for run in live)


async def _wait(il: Opened, alive: Sequence[Instance]) -> None:
    import trio  # noqa: PLC0415

    ids = {instance.id for instance in alive}
    interactive = sys.stderr is not None and sys.stderr.isatty()
    with console(sys.stderr).status("") as status:
        if not interactive:
            status.stop()
        told = -1
        while {instance.id for instance in await il.alive()} & ids:
            working = await _agents(il, alive)
            if working != told:
                words = f"{count(working, 'agent')} still working" if working else "ending"
                status.update(words)
                if not interactive and working:
                    warn(words)
                told = working
            await trio.sleep(LOOK_SECONDS)
