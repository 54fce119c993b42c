"""Admission: what may start is started, and an agent that could not be started is tried again.

A round is one transaction of the service. The end of an attempt has a round behind it in its own transaction (see
:meth:`Admission.write`): the slot that it frees is taken again by the commit that frees it. So has a submit in the process of
the dispatcher: what may start at once is claimed by the commit that accepts it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import trio

from interlock.actors.hint import Hint
from interlock.actors.tracker import LOOK_AGAIN_SECONDS, Tracker
from interlock.domain.run import Run
from interlock.domain.settings import Agent
from interlock.ports.store import Tx, Undone
from interlock.service.context import Context
from interlock.service.dispatching import Dispatched, Outlook, circumstances, dispatch

if TYPE_CHECKING:
    from interlock.actors.run import Surroundings

T = TypeVar("T")
log = logging.getLogger("interlock")

ROUND = 32
SMALL_ROUND = 4
SETTLE_SECONDS = 0.2
FIT_FOR_MS = 2000
"""How long the finding that an agent can be started holds."""


class Admission:
    """Starts what may start for one dispatcher. ``start`` is given every claim; it is called on the loop, at once.

    ``stopped`` is told whether dispatching is held back (paused, or by this process itself), and the words for the latter.
    """

    def __init__(
        self,
        around: Surroundings,
        tracker: Tracker,
        *,
        scope: str | None,
        start: Callable[[Run, Agent], None],
        stopped: Callable[[bool, str | None], Awaitable[None]],
    ) -> None:
        self.around = around
        self.service = around.service
        self.tracker = tracker
        self.hint = Hint()
        self.owner: str | None = None
        self._scope = scope
        self._start = start
        self._stopped = stopped
        self._open = False
        self._rounds = 0
        self._round_over = trio.Event()
        self._found_fit: dict[str, int] = {}
        self._looked_at: dict[str, int] = {}

    # what the dispatcher does with it

    def begin(self, owner: str) -> None:
        """Admit runs from here on, claimed by ``owner``."""
        self.owner = owner
        self._open = True
        self.service.dispatcher = self.write

    async def end(self) -> None:
        """Admit nothing more. Returns when no round is under way: what was claimed has been given to ``start``."""
        self.close()
        while self._rounds:
            self._round_over = trio.Event()
            await self._round_over.wait()

    def close(self) -> None:
        """Admit nothing more, as from now."""
        self._open = False
        if self.service.dispatcher == self.write:
            self.service.dispatcher = None

    async def run(self) -> None:
        """Rounds, whenever there is a hint, for ever."""
        while True:
            outlook = self.service.outlook()
            held = self.tracker.hold_reason()
            await self._stopped(held is not None or outlook.paused, held)
            if held is None and await self.once(outlook):
                if self.around.settings.min_free_memory_bytes:
                    await trio.sleep(SETTLE_SECONDS)
                continue
            pause = LOOK_AGAIN_SECONDS if held is not None else self.around.settings.poll_ms / 1000
            with trio.move_on_after(pause):
                await self.hint.wait()

    async def once(self, outlook: Outlook | None = None) -> bool:
        """One round. True when there may be more to dispatch at once."""
        if not self._open:
            return False
        with self._under_way():
            outlook = outlook or self.service.outlook()
            await self.look_after_agents(outlook)
            if outlook.paused or not outlook.anything or not self._open:
                return False
            done = await self.service.write(self._round)
            self._carry_out(done)
            if done.unchecked is not None:
                await self._check_agent(done.unchecked)
        return done.more

    async def write(self, command: Callable[[Tx, Context], T]) -> T:
        """Run a command after which something may start, and a round behind it in the same transaction."""
        rounds: list[Dispatched] = []

        def both(tx: Tx, ctx: Context) -> T:
            value = command(tx, ctx)
            rounds[:] = self._behind(tx, ctx)
            return value

        with self._under_way():
            value = await self.service.write(both)
            for done in rounds:
                self._carry_out(done)
                if done.more:
                    self.hint.give()
        return value

    # a round

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        self._rounds += 1
        try:
            yield
        finally:
            self._rounds -= 1
            if not self._rounds:
                self._round_over.set()

    def _round(self, tx: Tx, ctx: Context) -> Dispatched:
        assert self.owner is not None
        # What was started a moment ago has not taken its memory yet: a few at a time where that is looked at.
        bound = SMALL_ROUND if self.around.settings.min_free_memory_bytes else ROUND
        return dispatch(tx, ctx, owner=self.owner, scope=self._scope, bound=bound, fit=self._fit(ctx.now_ms))

    def _behind(self, tx: Tx, ctx: Context) -> list[Dispatched]:
        """The round behind a command. Whatever goes wrong in it is undone, and left to the next one."""
        if not self._open or self.around.settings.min_free_memory_bytes or self.tracker.hold_reason() is not None:
            return []
        try:
            with tx.apart():
                done = self._round(tx, ctx)
        except Undone as error:
            log.warning("a round of dispatching was undone: %s", error.cause)
            return []
        if not done.more:
            tx.all_started()
        return [done]

    def _carry_out(self, done: Dispatched) -> None:
        for run, agent in done.claimed:
            self._start(run, agent)

    # agents

    def _fit(self, now_ms: int) -> frozenset[str]:
        """Agents of which it was found a moment ago that they can be started."""
        return frozenset(name for name, at in self._found_fit.items() if 0 <= now_ms - at < FIT_FOR_MS)

    async def look_after_agents(self, outlook: Outlook | None = None) -> None:
        """Look after agents that could not be started. When the wait of one is over and nothing is seen to be wrong with it any
        more, a run may try it; only a start shows that it can be started.
        """
        now = self.around.clock.now_ms()
        for name, health in (outlook or self.service.outlook()).healths.items():
            if health.retry_ms > now:
                self._found_fit.pop(name, None)
            elif self._looked_at.get(name) != health.retry_ms:
                await self._check_agent(name)
                self._looked_at[name] = health.retry_ms

    def next_retry_ms(self) -> int | None:
        """When an agent that could not be started is to be tried next."""
        healths = self.service.store.peek(lambda tx: tx.healths())
        dues = [health.retry_ms for name, health in healths.items() if self._looked_at.get(name) != health.retry_ms]
        return min(dues, default=None)

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
