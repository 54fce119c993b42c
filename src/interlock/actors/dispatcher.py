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

from interlock.actors.instance import InstanceLock, is_alive
from interlock.actors.run import RunActor, Surroundings
from interlock.actors.supervision import keep_running, persist
from interlock.actors.tracker import LOOK_AGAIN_SECONDS, Tracker
from interlock.domain.errors import Unavailable
from interlock.domain.run import Instance, Run
from interlock.domain.settings import Agent
from interlock.domain.states import DispatcherState, Reason
from interlock.machines.table import DISPATCHER
from interlock.service.dispatching import circumstances

log = logging.getLogger("interlock")

VIGIL_SECONDS = 5.0
ASLEEP_MS = 12_000
ROUND = 32
SMALL_ROUND = 4
SETTLE_SECONDS = 0.2
FIT_FOR_MS = 2000
"""How long the finding that an agent can be started holds."""


class Ending(StrEnum):
    """How a dispatcher ends."""

    DRAIN = "drain"
    DETACH = "detach"
    KILL = "kill"


HARDNESS = (Ending.DRAIN, Ending.KILL, Ending.DETACH)
"""What may follow upon what: each waits for less than the one before."""


class Hint:
    """Wakes one loop; hints that come while nobody waits are joined."""

    def __init__(self) -> None:
        self._given = trio.Event()

    def give(self) -> None:
        """Wake it."""
        self._given.set()

    async def wait(self) -> None:
        """Until one was given since the last call."""
        await self._given.wait()
        self._given = trio.Event()


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
        self._dispatch_hint = Hint()
        self._reap_hint = Hint()
        self.ended = trio.Event()
        self._ending: Ending | None = None
        self._ending_changed = trio.Event()
        self._admitting = trio.Lock()
        self._note: str | None = None
        self._found_fit: dict[str, int] = {}
        self._looked_at: dict[str, int] = {}

    @property
    def id(self) -> str:
        """This instance."""
        assert self._lock is not None, "not running"
        return self._lock.id

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until :meth:`end` was called and done. Reports started once what was left behind is being looked after."""
        self._lock = InstanceLock(self.around.data, alone=self._alone)
        try:
            await self._register()
            async with trio.open_nursery() as actors:
                async with trio.open_nursery() as loops:
                    await persist("taking up what was left", partial(self._take_up, actors))
                    await self._move("activate")
                    keep = partial(self._keep, loops)
                    keep("vigil", partial(self._vigil, actors))
                    keep("reaper", self._reap)
                    keep("ears", self._listen)
                    keep("dispatch", partial(self._dispatch, actors))
                    task_status.started()
                    await self._see_end()
                    loops.cancel_scope.cancel()
                if self._ending is Ending.DETACH:
                    actors.cancel_scope.cancel()
            await self._sign_off()
        finally:
            self._lock.release()
            self.ended.set()

    def _keep(self, loops: trio.Nursery, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        probe = partial(self.service.catch_up, ASLEEP_MS)
        loops.start_soon(partial(keep_running, name, loop, outage=partial(self._outage, name), probe=probe))

    def _outage(self, name: str, what: str | None) -> None:
        self.tracker.outage(name, what)
        self._dispatch_hint.give()

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

    async def _take_up(self, actors: trio.Nursery) -> None:
        """Before anything else: time in which nobody was awake counts for nothing, and what runs is looked after."""
        others = [
            one for one in await self.service.instances() if one.id != self.id and is_alive(self.around.data, one.id)
        ]
        await self.service.catch_up(ASLEEP_MS if others else 0)
        await self._adopt(actors, first=True)

    async def _adopt(self, actors: trio.Nursery, *, first: bool = False) -> None:
        runs = await self.service.store.read(lambda tx: tx.live_runs())
        owners = {run.owner for run in runs if run.held_by_agent and not run.remote and run.owner is not None}
        gone = {owner for owner in owners if owner != self.id and not is_alive(self.around.data, owner)}
        if first and self.id in owners:
            # An earlier process had our pid as well, as the first one of a container has.
            gone.add(self.id)
        if gone:
            agents = await self.service.read(lambda tx, ctx: circumstances(tx, ctx).agents)
            for run in runs:
                if self._ending is not None:
                    # One that ends takes nothing up: nobody would see it through.
                    return
                if run.held_by_agent and run.owner in gone and run.number not in self.tracker.actors:
                    adopted = await self.service.adopt(run.number, old_owner=run.owner, new_owner=self.id)
                    if adopted is not None:
                        agent = agents.get(adopted.agent or "") or Agent(name=adopted.agent or "")
                        self._spawn(actors, RunActor(self.around, adopted, agent), fresh=False)
        for instance in await self.service.instances():
            if instance.id != self.id and not is_alive(self.around.data, instance.id):
                await self.service.forget_instance(instance.id)

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
        async with self._admitting:
            # A round that was under way has its actors in the tracker now; no other one begins.
            pass
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

    # the loops

    async def _dispatch(self, actors: trio.Nursery) -> None:
        while True:
            held = await self._look_at_brakes()
            if held is None and await self.dispatch_once(actors):
                if self.around.settings.min_free_memory_bytes:
                    await trio.sleep(SETTLE_SECONDS)
                continue
            pause = LOOK_AGAIN_SECONDS if held is not None else self.around.settings.poll_ms / 1000
            with trio.move_on_after(pause):
                await self._dispatch_hint.wait()

    async def _look_at_brakes(self) -> str | None:
        held = self.tracker.hold_reason()
        stopped = held is not None or self.service.is_paused()
        if self.state is (DispatcherState.ACTIVE if stopped else DispatcherState.PAUSED):
            await self._move("pause" if stopped else "resume")
        if held != self._note:
            if held is None:
                log.info("dispatching again")
            else:
                log.warning("dispatching nothing: %s", held)
            self._note = held
            await self._show()
        return held

    async def dispatch_once(self, actors: trio.Nursery) -> bool:
        """One round. True when there may be more to dispatch at once."""
        async with self._admitting:
            if self.state is not DispatcherState.ACTIVE:
                return False
            await self._check_agents()
            if not self.service.anything_to_dispatch():
                return False
            # What was started a moment ago has not taken its memory yet: a few at a time where that is looked at.
            bound = SMALL_ROUND if self.around.settings.min_free_memory_bytes else ROUND
            done = await self.service.dispatch(owner=self.id, scope=self.scope, bound=bound, fit=self._fit())
            for run, agent in done.claimed:
                self._spawn(actors, RunActor(self.around, run, agent), fresh=True)
            if done.unchecked is not None:
                await self._check_agent(done.unchecked)
        if done.offered or done.claimed:
            self._reap_hint.give()
        return done.more

    def _fit(self) -> frozenset[str]:
        """Agents of which it was found a moment ago that they can be started."""
        now = self.around.clock.now_ms()
        return frozenset(name for name, at in self._found_fit.items() if 0 <= now - at < FIT_FOR_MS)

    async def _check_agents(self) -> None:
        """Look after agents that could not be started. When the wait of one is over and nothing is seen to be wrong with it any
        more, a run may try it; only a start shows that it can be started.
        """
        now = self.around.clock.now_ms()
        for name, health in self.service.store.peek(lambda tx: tx.healths()).items():
            if health.retry_ms > now:
                self._found_fit.pop(name, None)
            elif self._looked_at.get(name) != health.retry_ms:
                await self._check_agent(name)
                self._looked_at[name] = health.retry_ms

    async def _check_agent(self, name: str) -> None:
        """See whether an agent can be started as far as that shows without starting it; its runs wait if not."""
        agents = self.service.store.peek(lambda tx: circumstances(tx, self.service.context()).agents)
        agent = agents.get(name)
        if agent is None:
            # It is not defined any more: what was wrong with it is of no interest.
            await self.service.agent_started(name)
            return
        cwd = self.around.folder if agent.cwd is None else self.around.folder / agent.cwd
        reason = self.around.runtime.check(agent, cwd)
        if reason is None:
            self._found_fit[name] = self.around.clock.now_ms()
        else:
            self._found_fit.pop(name, None)
            await self.service.agent_cannot_start(name, reason)

    def _spawn(self, actors: trio.Nursery, actor: RunActor, *, fresh: bool) -> None:
        self.tracker.add(actor)
        actors.start_soon(self._look_after, actor, fresh)

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
            self._dispatch_hint.give()

    async def _reap(self) -> None:
        while True:
            due = self._next_due()
            now = self.around.clock.now_ms()
            if due is not None and due <= now:
                await self.reap_once()
                continue
            with trio.CancelScope() as sleeping:
                async with trio.open_nursery() as nursery:

                    async def sleep(until: int, cut: trio.CancelScope) -> None:
                        await self.around.clock.sleep_until(until)
                        cut.cancel()

                    if due is not None:
                        nursery.start_soon(sleep, due, sleeping)
                    await self._reap_hint.wait()
                    nursery.cancel_scope.cancel()

    def _next_due(self) -> int | None:
        """The next deadline of a run, or of an agent that is to be tried again."""
        dues = [self.service.next_due_ms()]
        healths = self.service.store.peek(lambda tx: tx.healths())
        dues += [health.retry_ms for name, health in healths.items() if self._looked_at.get(name) != health.retry_ms]
        return min((due for due in dues if due is not None), default=None)

    async def reap_once(self) -> None:
        """Do what is due. Time in which this process slept is given back before anything is judged."""
        await self.service.catch_up(ASLEEP_MS)
        for reaped in await self.service.reap():
            actor = self.tracker.actors.get(reaped.run.number)
            if actor is not None and reaped.run.stop is not None and reaped.run.fence == actor.run.fence:
                actor.ask_to_stop(reaped.run.stop)
        await self._check_agents()
        self._dispatch_hint.give()

    async def _vigil(self, actors: trio.Nursery) -> None:
        missing: set[int] = set()
        renew_every_ms = self.around.settings.leases.local_ms // 3
        renewed = self.around.clock.now_ms()
        while True:
            await trio.sleep(VIGIL_SECONDS)
            if await self.service.catch_up(ASLEEP_MS):
                self._reap_hint.give()
            now = self.around.clock.now_ms()
            if now - renewed >= renew_every_ms:
                await self.service.renew_owned(self.id)
                renewed = now
            self._carry_out_stops()
            await self._adopt(actors)
            missing = await self._look_after_strays(actors, missing)

    async def _look_after_strays(self, actors: trio.Nursery, missing: set[int]) -> set[int]:
        """Claims of ours without an actor, twice in a row: a commit whose answer was lost. Returns those seen once."""
        now = self.service.claimed_by(self.id) - self.tracker.actors.keys()
        for number in now & missing:
            run = await self.service.get(number)
            if run.held_by_agent and run.owner == self.id and number not in self.tracker.actors:
                log.warning("run #%d: its claim is ours and nobody looks after it; taking it up", number)
                agents = await self.service.read(lambda tx, ctx: circumstances(tx, ctx).agents)
                agent = agents.get(run.agent or "") or Agent(name=run.agent or "")
                self._spawn(actors, RunActor(self.around, run, agent), fresh=False)
        return now - missing

    async def _listen(self) -> None:
        async with self.service.changes() as changes:
            while True:
                self._dispatch_hint.give()
                self._reap_hint.give()
                self._carry_out_stops()
                await self._obey()
                with trio.move_on_after(self.around.settings.poll_ms / 1000):
                    await changes.wait()

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
