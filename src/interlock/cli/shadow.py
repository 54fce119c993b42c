"""``interlock up --shadow``: what a dispatcher would do, in lines like a daemon's. Nothing is dispatched, nothing is written."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import trio

from interlock.cli.daemon import print_said
from interlock.cli.host import Opened
from interlock.cli.speaker import Speaker
from interlock.cli.text import clock, count, plain, short
from interlock.decide.reasons import Wait
from interlock.domain.errors import Unavailable
from interlock.domain.run import Instance
from interlock.ports.store import Tx
from interlock.runtimes import available_memory_bytes
from interlock.service.context import Context
from interlock.service.shadow import Gone, Round, Taken, Waits, shadow

TITLE_COLUMNS = 48
MESSAGE_COLUMNS = 200
SHORTEST_SECONDS = 0.25
"""Between two looks: writers of the same folder wait while one is taken."""
SHARE = 20
"""A look that took long is followed by a pause of so many times its length."""
FIT_MS = 5000
WAIT_LINES = 20
TOLD = 1000
MISFILED = (
    "queued runs are filed by the limits of another configuration: some that would start may be missed here until a dispatcher "
    "with this one was up"
)
MIB = 1024 * 1024


class Shadow:
    """One ``interlock up --shadow``."""

    def __init__(self, il: Opened) -> None:
        self.il = il
        self.speaker = Speaker(print_said)
        self.started = 0
        self._active: dict[int, Taken] = {}
        self._looked: dict[str, tuple[int, str | None]] = {}
        self._told: dict[int, tuple[object, ...]] = {}
        self._remarks: dict[str, str | None] = {}
        self._me = Instance(
            id="shadow", host="", pid=os.getpid(), boot_id="", ordinal=0, state="active", total=il.settings.limits.total
        )

    async def run(self) -> int:
        """Until it is interrupted. The exit status."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._hear_signals, nursery.cancel_scope)
                self._greet()
                await self._look_again_and_again()
            self._say(f"Shadow ends: {count(self.started, 'run')} would have been started or offered.", "bold")
        finally:
            self.speaker.close()
        return 0

    async def _hear_signals(
        self, everything: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                everything.cancel()

    def _greet(self) -> None:
        il, settings = self.il, self.il.settings
        self._say(
            f"Shadow of a dispatcher: data {il.data}, configuration {il.config_path or 'none (defaults)'}", "bold"
        )
        mode = "" if settings.mode == "push" else f", mode {settings.mode}"
        agents = ", ".join(settings.agents) or "none configured"
        self._say(f"At most {settings.limits.total} at once{mode}; agents: {plain(agents)}.")
        for sentence in il.inactive:
            self._say(f"not active yet: {plain(sentence)}", "yellow")
        if not settings.enabled:
            self._say("dispatch.enabled is false: nothing would be dispatched.", "yellow")
        self._say("Nothing is started, offered, changed or served. Ctrl-C ends it.")

    async def _look_again_and_again(self) -> None:
        async with self.il.service.changes() as changes:
            while True:
                began = trio.current_time()
                try:
                    found = await self._look()
                    self._remark("store", None)
                except Unavailable as error:
                    self._remark("store", f"cannot look: {error.message}")
                    await trio.sleep(1)
                    continue
                pause = max(SHORTEST_SECONDS, SHARE * (trio.current_time() - began))
                if not found.again:
                    with trio.move_on_after(self._until_next(found)):
                        await changes.wait()
                    await trio.sleep(pause)

    def _until_next(self, found: Round) -> float:
        """How long nothing changes by time alone, in seconds."""
        longest = self.il.settings.poll_ms / 1000
        if any(why is not None for _, why in self._looked.values()):
            longest = min(longest, FIT_MS / 1000)
        if found.next_ms is None:
            return longest
        # What is overdue is for a real dispatcher to see to.
        return max(1.0, min(longest, (found.next_ms - self.il.service.clock.now_ms()) / 1000))

    async def _look(self) -> Round:
        held = self._too_little_memory()
        self._remark("memory", held)
        bound = 0 if held is not None else 64
        now = self.il.service.clock.now_ms()
        known = {name: why for name, (at, why) in self._looked.items() if 0 <= now - at < FIT_MS}
        self._looked = {name: self._looked[name] for name in known}
        fit = [name for name, why in known.items() if why is None]
        unfit = {name: why for name, why in known.items() if why is not None}
        active = list(self._active.values())

        def decide(tx: Tx, ctx: Context) -> Round:
            return shadow(tx, ctx, active, me=self._me, fit=fit, unfit=unfit, bound=bound)

        found = await self.il.rehearse(decide)
        self._tell(found)
        if found.unchecked is not None:
            self._looked[found.unchecked.name] = (now, self.il.check_agent(found.unchecked))
        elif bound == 0:
            return found if not found.again else _at_rest(found)
        return found

    def _too_little_memory(self) -> str | None:
        floor, free = self.il.settings.min_free_memory_bytes, available_memory_bytes()
        if not floor or free is None or free >= floor:
            return None
        return f"would start nothing now: {free // MIB} MiB of memory are free, under the floor of {floor // MIB} MiB"

    # what is said

    def _tell(self, found: Round) -> None:
        for gone in found.gone:
            del self._active[gone.number]
            self._line(_gone_words(gone))
        for taken in found.taken:
            self._active[taken.number] = taken
            self._told.pop(taken.number, None)
            self.started += 1
            self._line(_taken_words(taken), "green")
        self._remark("paused", "dispatching is paused: nothing would start" if found.paused else None)
        self._remark("misfiled", MISFILED if found.misfiled else None)
        self._tell_waits(found)

    def _tell_waits(self, found: Round) -> None:
        news = [each for each in found.waits if self._told.get(each.number) != _reason(each.wait)]
        for each in news:
            self._told.pop(each.number, None)
            self._told[each.number] = _reason(each.wait)
        while len(self._told) > TOLD:
            del self._told[next(iter(self._told))]
        for each in news[:WAIT_LINES]:
            self._line(_wait_words(each), "dim")
        if len(news) > WAIT_LINES:
            waiting = max(found.queued, len(news))
            self._line(f"and {len(news) - WAIT_LINES} more for other reasons than before; {waiting} wait in all", "dim")

    def _remark(self, about: str, words: str | None) -> None:
        """Say it when it is new."""
        if self._remarks.get(about) != words and words is not None:
            self._line(words, "yellow")
        self._remarks[about] = words

    def _line(self, words: str, style: str = "") -> None:
        self._say(f"{clock(self.il.service.clock.now_ms())}  {words}", style)

    def _say(self, words: str, style: str = "") -> None:
        self.speaker.say(words, style)


def _at_rest(found: Round) -> Round:
    import msgspec  # noqa: PLC0415

    return msgspec.structs.replace(found, again=False)


def _title(title: str) -> str:
    return short(title, TITLE_COLUMNS)


def _taken_words(taken: Taken) -> str:
    by = f" ({plain(taken.by)})" if taken.by else ""
    if taken.pull:
        whom = plain(taken.agent) if taken.agent is not None else "any agent that takes it"
        return f"would offer #{taken.number} to {whom}{by}  {_title(taken.task.title)}"
    return f"would start #{taken.number} by {plain(taken.agent or '')}{by}  {_title(taken.task.title)}"


def _gone_words(gone: Gone) -> str:
    run = gone.run
    if run is None:
        return f"#{gone.number} was deleted: its slots are free"
    if run.terminal:
        return f"#{gone.number} has ended ({run.state}): its slots are free  {_title(run.task.title)}"
    if run.active:
        who = f" by {plain(run.agent)}" if run.agent else ""
        return f"#{gone.number} is {run.state}{who} in truth: a dispatcher is up  {_title(run.task.title)}"
    return f"#{gone.number} would be back in the queue  {_title(run.task.title)}"


def _reason(wait: Wait) -> tuple[object, ...]:
    """What makes one reason another, the time that it still takes left out."""
    return (wait.kind, *(wait.details.get(name) for name in ("key", "cap", "need", "agent", "why")))


def _wait_words(waits: Waits) -> str:
    return f"#{waits.number} waits: {short(waits.wait.message, MESSAGE_COLUMNS)}  {_title(waits.title)}"


__all__: Sequence[str] = ["Shadow"]
