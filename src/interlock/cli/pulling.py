"""``interlock agent`` as a person sees it: where it connects to, what it says, how it takes signals."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path
from random import Random

import trio

from interlock.agent import Around, Happening, Identity, PullingAgent, Spool
from interlock.agent.link import Link
from interlock.agent.work import command_environment
from interlock.cli.daemon import print_said
from interlock.cli.lines import line_of, style_of
from interlock.cli.session import Session
from interlock.cli.speaker import Speaker
from interlock.cli.text import clock, count, plain
from interlock.client import AsyncClient, Patience
from interlock.client.places import DEFAULT_URL, place_of
from interlock.domain.errors import InterlockError, Unavailable
from interlock.domain.places import API_SOCKET, DATABASE
from interlock.domain.settings import Agent


class Pulling:
    """One ``interlock agent``; the arguments are its options."""

    def __init__(
        self,
        session: Session,
        *,
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
    ) -> None:
        self._session = session
        self._agent = Agent(name=agent_id or "agent", command=command)
        data = session.host.locate(session.data)
        self._data = data if url is None and (data / DATABASE).exists() else None
        self._place = place_of(url or (DEFAULT_URL if self._data is None else str(self._data / API_SOCKET)))
        self._identity = Identity(url=self._place.shown, agent_id=agent_id, role=role, types=types)
        self._parallel = parallel
        self._runs = runs
        self._token = token
        self._lease_seconds = None if lease_ms is None else lease_ms / 1000
        self._grace_ms = grace_ms
        self._spool = spool or (_state_folder() if self._data is None else self._data) / "spool"
        self._speaker = Speaker(print_said)
        self._rng = Random()  # noqa: S311 - it spreads retries

    async def run(self) -> int:
        """Until it was told to end and has ended. The exit status."""
        try:
            spool = Spool(self._spool.absolute())
        except OSError as error:
            raise Unavailable(
                f"{self._spool} cannot be written: {error.strerror}", hint="--spool DIR names another folder"
            ) from None
        link = Link(self._hear, self._rng)
        try:
            async with AsyncClient(
                self._place.shown,
                token=self._token,
                patience=Patience(seconds=math.inf),
                rng=self._rng,
                on_trouble=link.hear,
            ) as link.client:
                with self._session.host.command_runtime() as runtime:
                    around = Around(
                        link=link,
                        runtime=runtime,
                        agent=self._agent,
                        cwd=Path.cwd(),
                        environment=self._environment(),
                        tell=self._tell,
                        lease_seconds=self._lease_seconds,
                        grace_ms=self._grace_ms,
                    )
                    puller = PullingAgent(
                        around,
                        self._identity,
                        spool,
                        parallel=self._parallel,
                        runs=self._runs,
                        rng=self._rng,
                    )
                    await self._pull(puller)
        finally:
            self._speaker.close()
        return 0

    async def _pull(self, puller: PullingAgent) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._hear_signals, puller)
            self._greet()
            await puller.run()
            nursery.cancel_scope.cancel()
        words = "Stopped."
        if puller.left:
            words += f" {count(puller.left, 'run')} left: the next `interlock agent` with this spool takes over."
        self._speaker.say(words, "bold")

    def _environment(self) -> dict[str, str]:
        more = {"INTERLOCK_URL": self._place.shown}
        if self._data is not None:
            more |= {"INTERLOCK_DATA": str(self._data), "INTERLOCK_DB": str(self._data / DATABASE)}
        return command_environment(os.environ, **more)

    def _greet(self) -> None:
        identity = self._identity
        takes = [f"role {identity.role}"] if identity.role else []
        takes += [f"types {', '.join(identity.types)}"] if identity.types else []
        who = f"as {identity.agent_id}" if identity.agent_id else "as any agent"
        self._speaker.say(f"Pulling from {identity.url} {plain(who)}; spool {self._spool}", "bold")
        what = f"At most {self._parallel} at once" + (f"; only {'; '.join(takes)}" if takes else "")
        self._speaker.say(f"{plain(what)}. Ctrl-C finishes what runs and ends.")

    async def _hear_signals(
        self, puller: PullingAgent, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    # The terminal is gone; the work is not.
                    continue
                working = count(puller.working, "run")
                told = puller.end()
                if told == 1 and puller.working:
                    self._speaker.say(
                        f"Nothing new is taken; {working} still under way. Once more stops and gives back.", "yellow"
                    )
                elif told == 2:
                    self._speaker.say(f"Stopping {working} and giving back. Once more leaves at once.", "yellow")
                elif told == 3:
                    self._speaker.say("Leaving at once; the next `interlock agent` takes over.", "yellow")

    def _tell(self, happening: Happening) -> None:
        at_ms = int(time.time() * 1000)
        took = happening.took_seconds
        style = "yellow" if happening.warning else style_of(happening.event)
        if happening.event and happening.number is not None:
            if happening.event == "claim":
                # Told by the line that follows.
                return
            line = line_of(
                happening.event,
                at_ms,
                happening.number,
                happening.title,
                happening.message,
                fence=happening.fence,
                took_ms=None if took is None else int(took * 1000),
            )
        else:
            who = "" if happening.number is None else f"#{happening.number}: "
            line = f"{clock(at_ms)}  {'warning: ' if happening.warning else ''}{who}{plain(happening.message)}"
        self._speaker.say(line, style)

    def _hear(self, error: InterlockError | None) -> None:
        at = clock(int(time.time() * 1000))
        if error is None:
            self._speaker.say(f"{at}  {self._place.shown} answers again.")
        else:
            self._speaker.say(f"{at}  warning: {plain(error.message)}; it is tried again.", "yellow")


def _state_folder() -> Path:
    """Where a user's programs keep what is to outlive them (XDG)."""
    named = os.environ.get("XDG_STATE_HOME")
    return (Path(named) if named and named.startswith("/") else Path.home() / ".local" / "state") / "interlock"
