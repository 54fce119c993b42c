"""The dispatcher: one supervised nursery that starts what may start, looks after what runs, and ends in order.

Its parts are loops of ``look, decide, one transaction``: dispatch (what may start), reap (what is due), vigil (still here:
leases, downtime, other dispatchers that are gone), ears (commits of this and other processes: wake the others, carry out
stop intents and commands). Wake-ups are hints; the vigil comes round every few seconds in case one is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import partial

import trio

from interlock.actors.admission import Admission
from interlock.actors.instance import InstanceLock, is_alive
from interlock.actors.reaper import Reaper
from interlock.actors.run import RunActor, Surroundings
from interlock.actors.supervision import keep_running, persist
from interlock.actors.tracker import Tracker
from interlock.domain.errors import Unavailable
from interlock.domain.run import Brake, Instance, Run
from interlock.domain.settings import Agent
from interlock.domain.states import DispatcherState, Reason
from interlock.machines.table import DISPATCHER
from interlock.ports.store import EVERYTHING
from interlock.service.dispatching import circumstances
from interlock.service.supervising import ASLEEP_MS

log = logging.getLogger("interlock")

VIGIL_SECONDS = 5.0
ADOPTED_AT_ONCE = 100


class Ending(StrEnum):
    """How a dispatcher ends."""

    DRAIN = "drain"
    DETACH = "detach"
    KILL = "kill"


HARDNESS = (Ending.DRAIN, Ending.KILL, Ending.DETACH)
"""What may follow upon what: each waits for less than the one before."""


class Dispatcher:
    """A dispatcher process. ``scope``: a batch to keep to. ``alone``: refuse to be the second one of a data folder."""

    def __init__(
        self,
        around: Surroundings,
        *,
        scope: str | None = None,
        alone: bool = True,
        free_memory: Callable[[], int | None] = lambda: None,
        version: str = "",
    ) -> None:
        self.around = around
        self.service = around.service
        self.scope = scope
        self.tracker = Tracker(around.settings.min_free_memory_bytes, free_memory)
        self.state = DISPATCHER.initial
        self._alone = alone
        self._version = version
        self._lock: InstanceLock | None = None
        self._actors: trio.Nursery | None = None
        self._admission = Admission(
            around,
            self.tracker,
            scope=scope,
            start=lambda run, agent: self._spawn(run, agent, fresh=True),
            stopped=self._show_brakes,
        )
        self._reaper = Reaper(around, self.tracker, self._admission)
        self.ended = trio.Event()
        self._ending: Ending | None = None
        self._ending_changed = trio.Event()
        self._note: str | None = None

    @property
    def id(self) -> str:
        """This instance."""
        assert self._lock is not None, "not running"
        return self._lock.id

    @property
    def draining(self) -> bool:
        """Whether it was told to end."""
        return self._ending is not None

    @property
    def ready(self) -> bool:
        """Whether it does its work: what was left is taken up, and the store serves."""
        up = self.state in (DispatcherState.ACTIVE, DispatcherState.PAUSED)
        return up and not self.draining and not (self._note or "").startswith(f"{Brake.STORE}:")

    def drain(self) -> None:
        """:meth:`end` gently."""
        self.end(Ending.DRAIN)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until :meth:`end` was called and done. Reports started once what was left behind is being looked after."""
        self._lock = InstanceLock(self.around.data, alone=self._alone)
        try:
            await self._register()
            async with trio.open_nursery() as actors:
                self._actors = actors
                async with trio.open_nursery() as loops:
                    await persist("taking up what was left", self._take_up)
                    await self._move("activate")
                    self._admission.begin(self.id)
                    keep = partial(self._keep, loops)
                    keep("vigil", self._vigil)
                    keep("reaper", self._reaper.run)
                    keep("ears", self._listen)
                    keep("dispatch", self._admission.run)
                    task_status.started()
                    await self._see_end()
                    loops.cancel_scope.cancel()
                if self._ending is Ending.DETACH:
                    actors.cancel_scope.cancel()
            await self._sign_off()
        finally:
            self._admission.close()
            self._actors = None
            self._lock.release()
            self.ended.set()

    def _keep(self, loops: trio.Nursery, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        probe = partial(self.service.catch_up, ASLEEP_MS)
        loops.start_soon(partial(keep_running, name, loop, outage=partial(self._outage, name), probe=probe))

    def _outage(self, name: str, what: str | None) -> None:
        self.tracker.outage(name, what)
        self._admission.hint.give()

    # beginning and ending

    async def _register(self) -> None:
        now = self.around.clock.now_ms()
        instance = Instance(
            id=self.id,
            host=self.id.split(":", maxsplit=1)[0],
            pid=int(self.id.split(":")[1]),
            boot_id=self.around.clock.epoch()[0],
            ordinal=self._lock.ordinal if self._lock is not None else 0,
            state=str(self.state),
            scope=self.scope,
            total=self.around.settings.limits.total,
            started_ms=now,
            version=self._version,
        )
        await self.service.write(lambda tx, _: tx.put_instance(instance))
        await self.service.rekey_lanes()

    async def _take_up(self) -> None:
        """Before anything else: time in which nobody was awake counts for nothing, and what runs is looked after."""
        others = [
            one for one in await self.service.instances() if one.id != self.id and is_alive(self.around.data, one.id)
        ]
        await self.service.catch_up(ASLEEP_MS if others else 0)
        await self._adopt(first=True)

    async def _adopt(self, *, first: bool = False) -> None:
        owners = self.service.owners()
        gone = {owner for owner in owners if owner != self.id and not is_alive(self.around.data, owner)}
        if first and self.id in owners:
            # An earlier process had our pid as well, as the first one of a container has.
            gone.add(self.id)
        if gone:
            await self._adopt_from(gone)
        for instance in await self.service.instances():
            if instance.id != self.id and not is_alive(self.around.data, instance.id):
                await self.service.forget_instance(instance.id)

    async def _adopt_from(self, gone: set[str]) -> None:
        live = await self.service.store.read(lambda tx: tx.live_runs())
        theirs = [(run.number, run.owner) for run in live if run.held_by_agent and run.owner in gone]
        orphans = [(number, owner) for number, owner in theirs if owner and number not in self.tracker.actors]
        agents = await self.service.read(lambda tx, ctx: circumstances(tx, ctx).agents)
        for start in range(0, len(orphans), ADOPTED_AT_ONCE):
            if self._ending is not None:
                # One that ends takes nothing up: nobody would see it through.
                return
            page = orphans[start : start + ADOPTED_AT_ONCE]
            for run in await self.service.adopt_all(page, new_owner=self.id):
                agent = agents.get(run.agent or "") or Agent(name=run.agent or "")
                self._spawn(run, agent, fresh=False)

    def end(self, how: Ending) -> None:
        """Begin to end: ``drain`` lets agents finish, ``detach`` leaves them running, ``kill`` stops and requeues them.

        May be called again with a harder one: drain, then kill, then detach, which waits for nobody.
        """
        if self._ending is not None and HARDNESS.index(how) <= HARDNESS.index(self._ending):
            return
        self._ending = how
        self._ending_changed.set()
        self._ending_changed = trio.Event()

    async def _see_end(self) -> None:
        while self._ending is None:
            await self._ending_changed.wait()
        await self._move("drain")
        await self._admission.end()
        while True:
            # Taken before the first pause: a harder ending that comes meanwhile is to be heard.
            how, changed = self._ending, self._ending_changed
            async with trio.open_nursery() as waiting:
                waiting.start_soon(self._escalated, changed, waiting.cancel_scope)
                await self._end_by(how)
                waiting.cancel_scope.cancel()
            if self._ending is how:
                return

    async def _escalated(self, changed: trio.Event, scope: trio.CancelScope) -> None:
        await changed.wait()
        scope.cancel()

    async def _end_by(self, how: Ending) -> None:
        """Until nothing runs here any more; at once when all is to be left as it is."""
        if how is Ending.DETACH:
            return
        if how is Ending.DRAIN:
            await persist("draining", self._withdraw_offers)
        else:
            for actor in list(self.tracker.actors.values()):
                await persist("stopping an agent", partial(self._interrupt, actor))
        await self.tracker.empty()
        # What was lost or given back meanwhile waits as an offer that nobody here would take any more.
        await persist("stopping", self._withdraw_offers)

    async def _withdraw_offers(self) -> None:
        others = [
            one for one in await self.service.instances() if one.id != self.id and is_alive(self.around.data, one.id)
        ]
        if not others:
            await self.service.withdraw_offers(Reason.DRAINING, "the dispatcher is stopping")

    async def _interrupt(self, actor: RunActor) -> None:
        run = await self.service.interrupt(actor.run.number, by=self.id, message="the dispatcher was told to stop")
        if run.stop is not None:
            actor.ask_to_stop(run.stop)

    async def _sign_off(self) -> None:
        self.state = DispatcherState(DISPATCHER.target(self.state, "stop"))
        try:
            await self.service.write(lambda tx, _: tx.delete_instance(self.id))
        except Unavailable as error:
            # The free lock says the same to everybody.
            log.warning("could not sign off: %s", error)

    async def _move(self, event: str) -> None:
        self.state = DispatcherState(DISPATCHER.target(self.state, event))
        await self._show()

    async def _show(self) -> None:
        state, note = str(self.state), self._note
        try:
            await self.service.write(lambda tx, _: tx.set_instance_state(self.id, state, note))
        except Unavailable as error:
            log.warning("could not show my state: %s", error)

    async def _show_brakes(self, stopped: bool, held: str | None) -> None:  # noqa: FBT001 - the shape of a callback
        """What the admission says of itself, for everybody to see."""
        if self.state is (DispatcherState.ACTIVE if stopped else DispatcherState.PAUSED):
            await self._move("pause" if stopped else "resume")
        if held != self._note:
            if held is None:
                log.info("dispatching again")
            else:
                log.warning("dispatching nothing: %s", held)
            self._note = held
            await self._show()

    # the loops

    def _spawn(self, run: Run, agent: Agent, *, fresh: bool) -> None:
        if self._actors is None:
            # This one was cancelled while a submit was under way: the run is taken up by the next.
            return
        actor = RunActor(self.around, run, agent, end=self._admission.write)
        self.tracker.add(actor)
        self._actors.start_soon(self._look_after, actor, fresh)

    async def _look_after(self, actor: RunActor, fresh: bool) -> None:  # noqa: FBT001 - start_soon takes no keywords
        """Keep one run's actor going; what goes wrong in it stays in it."""
        tries = 0
        try:
            while True:
                try:
                    await (actor.execute() if fresh and tries == 0 else actor.recover())
                except Exception:
                    tries += 1
                    log.exception("the actor of run #%d crashed; it takes its agent up again", actor.run.number)
                    await trio.sleep(min(0.5 * 2 ** min(tries, 7), 60))
                else:
                    return
        finally:
            self.tracker.remove(actor)

    async def _vigil(self) -> None:
        missing: set[int] = set()
        # By trio's clock: the other one follows the wall clock when somebody sets it.
        renew_every = self.around.settings.leases.local_ms / 3000
        renewed = trio.current_time()
        while True:
            await trio.sleep(VIGIL_SECONDS)
            if await self.service.catch_up(ASLEEP_MS):
                self._reaper.hint.give()
            now = trio.current_time()
            if now - renewed >= renew_every:
                await self.service.renew_owned(self.id)
                renewed = now
            self._carry_out_stops()
            await self._adopt()
            missing = await self._look_after_strays(missing)

    async def _look_after_strays(self, missing: set[int]) -> set[int]:
        """Claims of ours without an actor, twice in a row: a commit whose answer was lost. Returns those seen once."""
        now = self.service.claimed_by(self.id) - self.tracker.actors.keys()
        for number in now & missing:
            run = await self.service.get(number)
            if run.held_by_agent and run.owner == self.id and number not in self.tracker.actors:
                log.warning("run #%d: its claim is ours and nobody looks after it; taking it up", number)
                agents = await self.service.read(lambda tx, ctx: circumstances(tx, ctx).agents)
                agent = agents.get(run.agent or "") or Agent(name=run.agent or "")
                self._spawn(run, agent, fresh=False)
        return now - missing

    async def _listen(self) -> None:
        async with self.service.changes() as changes:
            news = EVERYTHING
            while True:
                if news.may_start:
                    self._admission.hint.give()
                self._reaper.hear(news)
                if news.stops:
                    self._carry_out_stops()
                if news.commands:
                    await self._obey()
                # A hint may be lost: a look at everything now and then.
                news = EVERYTHING
                with trio.move_on_after(self.around.settings.poll_ms / 1000):
                    news = await changes.wait()

    def _carry_out_stops(self) -> None:
        for run in self.service.stopping(self.id):
            actor = self.tracker.actors.get(run.number)
            if actor is not None and run.stop is not None and actor.run.fence == run.fence:
                actor.ask_to_stop(run.stop)

    async def _obey(self) -> None:
        """Commands that other processes left for this one."""
        wanted = self.service.store.peek(lambda tx: {one.id: one.wanted for one in tx.instances()}).get(self.id)
        if wanted is not None and wanted in tuple(Ending):
            self.end(Ending(wanted))

    def active_runs(self) -> list[Run]:
        """Runs whose agents this process looks after."""
        return [actor.run for actor in self.tracker.actors.values()]
