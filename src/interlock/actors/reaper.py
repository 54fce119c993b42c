"""The reaper: does what is due, when it is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from interlock.actors.admission import Admission
from interlock.actors.hint import Hint
from interlock.actors.tracker import Tracker
from interlock.ports.store import News

if TYPE_CHECKING:
    from interlock.actors.run import Surroundings


class Reaper:
    """Sleeps until the next deadline of a run, or of an agent that is to be tried again."""

    def __init__(self, around: Surroundings, tracker: Tracker, admission: Admission) -> None:
        self.around = around
        self.service = around.service
        self.tracker = tracker
        self.admission = admission
        self.hint = Hint()
        self._until_ms: int | None = None
        self._sleeping = False

    def hear(self, news: News) -> None:
        """Wake when a deadline was set that lies before the one that is slept for."""
        if news.due_ms is not None and (not self._sleeping or self._until_ms is None or news.due_ms < self._until_ms):
            self.hint.give()

    async def run(self) -> None:
        """For ever."""
        while True:
            due = self._next_due()
            if due is not None and due <= self.around.clock.now_ms():
                await self.once()
            else:
                await self._sleep(due)

    async def once(self) -> None:
        """Do what is due."""
        for reaped in await self.service.reap():
            actor = self.tracker.actors.get(reaped.run.number)
            if actor is not None and reaped.run.stop is not None and reaped.run.fence == actor.run.fence:
                actor.ask_to_stop(reaped.run.stop)
        await self.admission.look_after_agents()
        self.admission.hint.give()

    def _next_due(self) -> int | None:
        dues = [self.service.next_due_ms(), self.admission.next_retry_ms()]
        return min((due for due in dues if due is not None), default=None)

    async def _sleep(self, due: int | None) -> None:
        self._until_ms, self._sleeping = due, True
        try:
            with trio.CancelScope() as sleeping:
                async with trio.open_nursery() as nursery:

                    async def sleep(until: int, cut: trio.CancelScope) -> None:
                        await self.around.clock.sleep_until(until)
                        cut.cancel()

                    if due is not None:
                        nursery.start_soon(sleep, due, sleeping)
                    await self.hint.wait()
                    nursery.cancel_scope.cancel()
        finally:
            self._sleeping = False
