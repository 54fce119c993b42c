"""`interlock run` at work: who dispatches, what is shown, how it ends.

Three tasks share the state of the batch. *drive* sees to it that somebody dispatches: a dispatcher of this process that
keeps to the batch, or the daemon that is up on the same data, for as long as it is up. *follow* reads the event log. *signals*
turns Ctrl-C into an orderly end. Whoever finds that it is over says so; then the dispatcher is ended and the summary made.
"""

from __future__ import annotations

import os
import signal
from itertools import islice
from typing import TYPE_CHECKING

import trio

from interlock.actors import Dispatcher, Ending
from interlock.cli.batch import Batch
from interlock.cli.screen import News, Screen
from interlock.cli.standstill import Group, first_that_goes_on, groups
from interlock.cli.text import count
from interlock.domain.errors import Unavailable
from interlock.domain.run import Instance
from interlock.service.waiting import Hold, Waiting

if TYPE_CHECKING:
    from interlock.cli.host import Opened
    from interlock.ports.store import Tx
    from interlock.service.context import Context

LOOK_SECONDS = 0.05
"""Shortest time between two looks at the event log: hundreds of commits a second are read together."""
SAFETY_SECONDS = 1.0
EVENTS_AT_ONCE = 1000
RUNS_LOOKED_AT = 200

INTERRUPTED, HUNG_UP, TERMINATED = 130, 129, 143
_STATUS = {signal.SIGINT: INTERRUPTED, signal.SIGHUP: HUNG_UP, signal.SIGTERM: TERMINATED}


class Running:
    """One `interlock run`, from the moment that its tasks are queued. ``after``: the event log is read from behind it."""

    def __init__(self, opened: Opened, batch: Batch, screen: Screen, *, name: str, after: int) -> None:
        self.opened = opened
        self.batch = batch
        self.screen = screen
        self.name = name
        self.interrupted: signal.Signals | None = None
        self.stuck = False
        self._after = after
        self._over = trio.Event()
        self._dispatcher: Dispatcher | None = None
        self._daemon: Instance | None = None
        self._everything: trio.CancelScope | None = None
        self._killing = False
        self._left = False
        self._looking = trio.CancelScope()
        self._goes_on: int | None = None
        self._groups_at = 0.0
        self._groups_stale = True

    @property
    def exit_status(self) -> int:
        """0 only when every task of the backlog is done."""
        if self.batch.succeeded:
            return 0
        return 1 if self.interrupted is None else _STATUS[self.interrupted]

    async def run(self) -> None:
        """Until nothing of the batch can go on by itself, or somebody ended it."""
        try:
            async with trio.open_nursery() as nursery:
                self._everything = nursery.cancel_scope
                await nursery.start(self._signals)
                nursery.start_soon(self._drive)
                nursery.start_soon(self._follow)
                nursery.start_soon(self.screen.show, self.batch, self.opened, self.name)
                await self._over.wait()
                await self._end_dispatcher()
                nursery.cancel_scope.cancel()
            if not self._left:
                await self._look()
        finally:
            self.screen.close()

    # who dispatches

    async def _drive(self) -> None:
        while not self._over.is_set():
            daemon = await self._find_daemon()
            if daemon is not None:
                await self._watch(daemon)
            elif not self._over.is_set():
                await self._dispatch()

    async def _find_daemon(self) -> Instance | None:
        alive = await self.opened.alive()
        return next((instance for instance in alive if instance.scope is None), None)

    async def _dispatch(self) -> None:
        self._dispatcher = self.opened.dispatcher(scope=self.batch.name, alone=False)
        self.screen.hint = "Ctrl-C: start nothing new; twice: stop the agents too"
        async with trio.open_nursery() as nursery:
            await nursery.start(self._dispatcher.run)
        # It ends only when it was told to: by us, or by `interlock stop`.
        if not self._over.is_set() and self.interrupted is None:
            self.screen.remark("the dispatcher was stopped; the same command goes on")
        self._over.set()

    async def _watch(self, daemon: Instance) -> None:
        self._daemon = daemon
        self.screen.hint = "Ctrl-C: stop watching; the daemon goes on"
        self.screen.remark(f"a daemon is up for this data folder (pid {daemon.pid}): it does the work, this watches")
        while True:
            await trio.sleep(SAFETY_SECONDS / 2)
            if daemon.id not in {instance.id for instance in await self.opened.alive()}:
                break
        self._daemon = None
        if not self._over.is_set():
            self.screen.remark("the daemon has gone: this takes over")

    async def _end_dispatcher(self) -> None:
        dispatcher = self._dispatcher
        if dispatcher is None or dispatcher.ended.is_set():
            return
        strangers = [run for run in dispatcher.active_runs() if not self.batch.knows(run.number)]
        if strangers and self.interrupted is None:
            # Taken up because nobody else looked after them; they are not what this command was asked to wait for.
            agents = count(len(strangers), "agent")
            dispatcher.end(Ending.DETACH)
            self.screen.remark(f"{agents} of other work still run; `interlock up` looks after them")
        else:
            dispatcher.end(Ending.DRAIN)
        await dispatcher.ended.wait()

    # what happens

    async def _follow(self) -> None:
        async with self.opened.service.changes() as changes:
            while True:
                try:
                    await self._look()
                    if await self._is_over():
                        self._over.set()
                        return
                except Unavailable as error:
                    # The dispatcher waits for the store, and says so; so do we.
                    self.screen.waiting([], error.message, self.opened.service.clock.now_ms(), idle=True)
                    await trio.sleep(SAFETY_SECONDS)
                pause = SAFETY_SECONDS
                if self._groups_stale:
                    pause = min(max(self._groups_at - trio.current_time(), LOOK_SECONDS), pause)
                with trio.move_on_after(pause):
                    await changes.wait()
                await trio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        """Read what is new in the event log."""
        # Shielded: what was read is told, also when it is just over; unless somebody insists on leaving.
        with trio.CancelScope(shield=True) as self._looking:
            while await self._look_once():
                pass

    async def _look_once(self) -> bool:
        events = await self.opened.service.events(self._after, EVENTS_AT_ONCE)
        told: list[News] = []
        for event in events:
            self._after = event.seq
            if event.event == "submit":
                # Of the known ones their number was told; another process may add more.
                if self.batch.knows(event.run) or not self.batch.join(await self.opened.service.get(event.run)):
                    continue
                told.append(News(event, self.batch.title(event.run)))
            elif self.batch.knows(event.run):
                worked = self.batch.working.get(event.run)
                self.batch.see(event)
                ended = worked is not None and event.run not in self.batch.working
                took_ms = event.at_ms - worked.since_ms if worked is not None and ended else None
                told.append(News(event, self.batch.title(event.run), took_ms))
        if told:
            self._groups_stale = True
            self.screen.changed()
            await self.screen.tell(told)
        return len(events) == EVENTS_AT_ONCE

    async def _is_over(self) -> bool:
        batch = self.batch
        if not batch.unfinished:
            return True
        await self._look_at_waiting()
        if batch.working or self.interrupted is not None or not self._somebody_dispatches():
            return False
        around = await self.opened.surroundings()
        candidates = [*([self._goes_on] if self._goes_on in batch.unfinished else []), *batch.unfinished]
        self._goes_on = await self.opened.service.read(
            lambda tx, ctx: first_that_goes_on(Waiting(tx, ctx, around), candidates)
        )
        self.stuck = self._goes_on is None
        return self.stuck

    def _somebody_dispatches(self) -> bool:
        own = self._dispatcher
        return self._daemon is not None or (own is not None and str(own.state) in ("active", "paused"))

    async def _look_at_waiting(self) -> None:
        """What the waiting ones wait for; as seldom as keeps it cheap beside the work itself."""
        began = trio.current_time()
        if began < self._groups_at or not self._somebody_dispatches():
            return
        batch = self.batch
        numbers = list(islice((number for number in batch.unfinished if number not in batch.working), RUNS_LOOKED_AT))
        around = await self.opened.surroundings()

        def ask(tx: Tx, ctx: Context) -> tuple[list[Group], Hold | None]:
            waiting = Waiting(tx, ctx, around)
            return groups(tx, waiting, numbers), waiting.hold()

        found, hold = await self.opened.service.read(ask)
        words = None if hold is None else hold.words
        self.screen.waiting(found, words, self.opened.service.clock.now_ms(), idle=not batch.working)
        cost = trio.current_time() - began
        self._groups_at = began + max(0.25, 20 * cost)
        self._groups_stale = False

    # signals

    async def _signals(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        wanted = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP]
        # What a parent made us ignore (nohup, a background job) stays ignored.
        heard = [each for each in wanted if signal.getsignal(each) is not signal.SIG_IGN]
        with trio.open_signal_receiver(*heard) as received:
            task_status.started()
            async for number in received:
                kind = signal.Signals(number)
                if kind is signal.SIGWINCH:
                    self.screen.changed()
                elif kind is signal.SIGTSTP:
                    await self.screen.pause()
                    os.kill(os.getpid(), signal.SIGSTOP)
                    self.screen.changed()
                else:
                    self._interrupt(kind)

    def _interrupt(self, kind: signal.Signals) -> None:
        again = self.interrupted is not None
        if not again:
            self.interrupted = kind
        dispatcher = self._dispatcher
        if dispatcher is None or dispatcher.ended.is_set():
            self._over.set()
            if self._daemon is not None:
                self.screen.remark("no longer watching; the daemon goes on with the work")
            return
        working = len(dispatcher.active_runs())
        if self._killing and self._everything is not None:
            # Somebody insists. Those of which it is on disk already that they are to be stopped are stopped by the next start,
            # which takes up the others.
            self._left = True
            self._looking.cancel()
            self._everything.cancel()
            self.screen.remark("leaving at once; the next start sees to what still runs")
            return
        # First the deed, then the words.
        if kind is signal.SIGHUP:
            # The terminal went away, not the wish: agents go on, as after a crash, and the next start takes them up.
            dispatcher.end(Ending.DETACH)
        elif kind is signal.SIGTERM or again:
            self._killing = True
            dispatcher.end(Ending.KILL)
            self.screen.hint = "stopping the agents"
            if working:
                self.screen.remark(
                    f"stopping {count(working, 'agent')}; their runs go back to the queue; the same command goes on"
                )
        else:
            dispatcher.end(Ending.DRAIN)
            self.screen.hint = "ending; Ctrl-C again stops the agents too"
            waiting = (
                f"{count(working, 'agent')} may finish (Ctrl-C again stops them)" if working else "no agent is running"
            )
            self.screen.remark(f"nothing new is started; {waiting}. The same command goes on later")
        self.screen.changed()
