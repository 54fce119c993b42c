"""The board of offers: agents that wait for one, each told the moment there is one for it.

All of it lives on trio's loop. An agent that will claim (``claims``) is told of an offer alone, so that a hundred that wait do
not all run for the same one; when it does not take it after all, the next is told. One that only looks is told beside it.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from interlock.domain.puller import Puller
from interlock.service import Service

_LOOKED_AT = 1000
_Offer = tuple[int, int]


class Waiter:
    """Somebody who waits at the board."""

    __slots__ = ("claims", "promised", "puller", "wake")

    def __init__(self, puller: Puller, wake: Callable[[], None], *, claims: bool) -> None:
        self.puller = puller
        self.wake = wake
        self.claims = claims
        self.promised: _Offer | None = None


class Board:
    """Waiting agents, the longest wait first."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._waiting: dict[Waiter, None] = {}
        self._promised: dict[_Offer, Waiter] = {}
        self._listening: set[Callable[[], None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def run(self) -> None:
        """For ever: hear of offers, and tell of them."""
        async with self._service.changes() as changes:
            while True:
                with trio.move_on_after(self._service.settings.poll_ms / 1000):
                    news = await changes.wait()
                    self._tell_all()
                    if not news.offers:
                        continue
                self.look()

    def wait(self, waiter: Waiter) -> None:
        """Somebody begins to wait; told at once when there is something already."""
        if self._closed:
            waiter.wake()
            return
        self._waiting[waiter] = None
        self.look()

    def leave(self, waiter: Waiter) -> None:
        """Somebody waits no more, having claimed or not: what was promised to it and is still open is the next one's."""
        self._waiting.pop(waiter, None)
        if waiter.promised is not None:
            self._promised.pop(waiter.promised, None)
            waiter.promised = None
            self.look()

    def hear(self, after: int, wake: Callable[[], None]) -> None:
        """Somebody waits for an event behind sequence number ``after``; told once, perhaps for nothing."""
        if self._closed or self._service.store.peek(lambda tx: tx.last_seq()) > after:
            wake()
        else:
            self._listening.add(wake)

    def hear_no_more(self, wake: Callable[[], None]) -> None:
        """It does not any more."""
        self._listening.discard(wake)

    def look(self) -> None:
        """Tell of open offers."""
        if not self._waiting:
            return
        offers = self._service.store.peek(lambda tx: tx.offers(pull=True, limit=_LOOKED_AT))
        for run in offers:
            offer = (run.number, run.dispatch_count)
            for waiter in list(self._waiting):
                if waiter.claims and offer in self._promised:
                    continue
                if waiter.puller.takes(run):
                    if waiter.claims:
                        waiter.promised = offer
                        self._promised[offer] = waiter
                    self._tell(waiter)

    def close(self) -> None:
        """Nobody waits any more: the daemon ends."""
        self._closed = True
        for waiter in list(self._waiting):
            self._tell(waiter)
        self._tell_all()

    def _tell_all(self) -> None:
        listening, self._listening = self._listening, set()
        for wake in listening:
            wake()

    def _tell(self, waiter: Waiter) -> None:
        del self._waiting[waiter]
        waiter.wake()
