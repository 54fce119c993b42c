"""The daemon as a person sees it: what it says, and how it takes signals."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence

import trio

from interlock.actors import Dispatcher, Ending
from interlock.actors.supervision import keep_running
from interlock.cli.host import Listening, Opened
from interlock.cli.lines import event_line, event_style, is_news
from interlock.cli.output import console
from interlock.cli.painter import write_all
from interlock.cli.speaker import Said, Speaker
from interlock.cli.text import clock, count, plain
from interlock.domain.run import Event

ENDINGS = frozenset({"complete", "close", "fail", "reject", "time_out", "cancel", "retry", "release", "defer", "block"})
KEPT_TITLES = 10_000


def print_said(said: Sequence[Said]) -> None:
    """Onto standard output; whoever read there may be gone."""
    if sys.stdout is None:
        return
    try:
        if sys.stdout.isatty():
            out = console()
            for line, style in said:
                out.print(line, style=style or None, soft_wrap=True)
            sys.stdout.flush()
        else:
            # Past Python's buffer: whoever waits here holds no lock that the end of the process would wait for.
            text = "".join(f"{line}\n" for line, _ in said)
            write_all(1, text.encode(sys.stdout.encoding or "utf-8", "backslashreplace"))
    except (OSError, ValueError):
        # Whoever read is gone. The work goes on.
        return


class SaidByLog(logging.Handler):
    """What the actors report, in lines like the others."""

    def __init__(self, speaker: Speaker, *, verbose: bool) -> None:
        super().__init__(logging.DEBUG if verbose else logging.INFO)
        self._speaker = speaker
        self._verbose = verbose

    def emit(self, record: logging.LogRecord) -> None:
        """One record."""
        words = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            words += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        text = f"{clock(int(record.created * 1000))}  {level}{plain(words)}"
        if self._verbose and record.exc_info:
            text += "\n" + plain(logging.Formatter().formatException(record.exc_info), lines=True)
        style = "" if record.levelno < logging.WARNING else "yellow" if record.levelno < logging.ERROR else "red"
        self._speaker.say(text, style)


class Daemon:
    """One ``interlock up``."""

    def __init__(
        self, il: Opened, *, verbose: bool, alone: bool, serves: bool = False, listen: str | None = None
    ) -> None:
        self.il = il
        self.verbose = verbose
        self.alone = alone
        self.serves = serves
        self.listen = listen
        self.speaker = Speaker(print_said)
        self._titles: dict[int, str] = {}
        self._started: dict[int, int] = {}
        self._signals = 0
        self._told = 0
        self._listening: Listening | None = None

    async def run(self) -> int:
        """Until it was told to end and has ended. The exit status."""
        dispatcher = self.il.dispatcher(alone=self.alone)
        log = logging.getLogger("interlock")
        handler = SaidByLog(self.speaker, verbose=self.verbose)
        log.addHandler(handler)
        log.setLevel(handler.level)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._hear_signals, dispatcher)
                listening = await self._listen()
                self._told = await self.il.service.store.read(lambda tx: tx.last_seq())
                await nursery.start(dispatcher.run)
                self._greet(dispatcher)
                nursery.start_soon(keep_running, "what is told here", self._tell)
                if listening is not None:
                    await nursery.start(self.il.gateway(dispatcher, listening).run)
                    self.speaker.say(f"HTTP: {', '.join(listening.addresses)}")
                await dispatcher.ended.wait()
                nursery.cancel_scope.cancel()
            await self._part()
        finally:
            if self._listening is not None:
                self._listening.close()
            log.removeHandler(handler)
            self.speaker.close()
        return 0

    async def _listen(self) -> Listening | None:
        """Listen before anything is dispatched: an address that cannot be had is told instead."""
        if not self.serves or (self.alone and await self.il.alive()):
            # A second one for the folder: the dispatcher says so.
            return None
        self._listening = self.il.listening(self.listen)
        self._listening.open()
        return self._listening

    def _greet(self, dispatcher: Dispatcher) -> None:
        il, settings = self.il, self.il.settings
        self.speaker.say(
            f"Interlock is up: data {il.data}, configuration {il.config_path or 'none (defaults)'}", "bold"
        )
        mode = "" if settings.mode == "push" else f", mode {settings.mode}"
        agents = ", ".join(settings.agents) or "none configured"
        self.speaker.say(f"At most {settings.limits.total} at once{mode}; agents: {plain(agents)}.")
        if il.migrated_from is not None:
            self.speaker.say(f"The database was brought up to this version; its backup is {il.migrated_from}", "yellow")
        for sentence in il.inactive:
            self.speaker.say(f"not active yet: {plain(sentence)}", "yellow")
        if not settings.enabled:
            self.speaker.say("dispatch.enabled is false: nothing is dispatched.", "yellow")
        if taken_up := sorted(run.number for run in dispatcher.active_runs()):
            names = ", ".join(f"#{number}" for number in taken_up[:10])
            more = f" and {len(taken_up) - 10} more" if len(taken_up) > 10 else ""
            self.speaker.say(f"Took up {count(len(taken_up), 'run')} that an earlier dispatcher left: {names}{more}")
        self.speaker.say("Ctrl-C lets running agents finish and ends; `interlock stop --detach` leaves them running.")

    async def _part(self) -> None:
        live = await self.il.service.store.read(lambda tx: tx.live_runs())
        left = sum(run.held_by_agent and not run.remote for run in live)
        states = await self.il.service.store.read(lambda tx: tx.count_states(finished=False))
        words = ["Stopped."]
        if left:
            words.append(f"{count(left, 'agent')} left running: `interlock up` takes over.")
        if queued := states.get("queued", 0):
            words.append(f"{count(queued, 'run')} queued for the next `interlock up`.")
        self.speaker.say(" ".join(words), "bold")

    async def _hear_signals(
        self, dispatcher: Dispatcher, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    # The terminal is gone; the agents and their supervision are not.
                    continue
                self._signals += 1
                working = len(dispatcher.active_runs())
                if self._signals == 1:
                    dispatcher.end(Ending.DRAIN)
                    if working:
                        self.speaker.say(
                            f"Nothing new starts; {count(working, 'agent')} still working. "
                            "Once more stops them and queues their runs again.",
                            "yellow",
                        )
                elif self._signals == 2:
                    dispatcher.end(Ending.KILL)
                    self.speaker.say(
                        f"Stopping {count(working, 'agent')} and queueing the runs again. Once more leaves at once.",
                        "yellow",
                    )
                elif self._signals == 3:
                    dispatcher.end(Ending.DETACH)
                    left = f"{count(working, 'agent')} still being stopped: " if working else ""
                    self.speaker.say(f"Leaving at once; {left}the next `interlock up` sees to it.", "yellow")

    async def _tell(self) -> None:
        service = self.il.service
        async with service.changes() as changes:
            while True:
                found = await service.events(self._told)
                if found:
                    self._told = found[-1].seq
                    await self._lines(found)
                    continue
                with trio.move_on_after(self.il.settings.poll_ms / 1000):
                    await changes.wait()

    async def _lines(self, events: Sequence[Event]) -> None:
        unknown = {event.run for event in events} - self._titles.keys()
        if unknown:
            if len(self._titles) > KEPT_TITLES:
                self._titles.clear()
            runs = await self.il.service.store.read(lambda tx: [tx.run(number) for number in unknown])
            self._titles |= {run.number: run.task.title for run in runs if run is not None}
        for event in events:
            took = None
            if event.event in ("claim", "start"):
                self._started.setdefault(event.run, event.at_ms)
            elif event.event in ENDINGS and (began := self._started.pop(event.run, None)) is not None:
                took = event.at_ms - began
            if is_news(event) or self.verbose:
                line = event_line(event, self._titles.get(event.run, ""), took_ms=took)
                self.speaker.say(line, event_style(event))
