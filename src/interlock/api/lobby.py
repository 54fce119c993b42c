"""Where requests wait, on the server's side: for an offer, for an event; never longer than their client is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from interlock.api.board import Board, Waiter
from interlock.api.bridge import Bridge
from interlock.domain.puller import Puller

Receive = Callable[[], Awaitable[Any]]


class Lobby:
    """Used on the server's loop; the board is on the other side of the bridge."""

    def __init__(self, bridge: Bridge, board: Board) -> None:
        self._bridge = bridge
        self._board = board

    def enter(self, puller: Puller, *, claims: bool) -> Seat:
        """Somebody comes who may have to wait for an offer."""
        return Seat(self._bridge, self._board, puller, claims=claims)

    async def event(self, after: int, seconds: float) -> None:
        """Until there may be an event behind ``after``, or so long."""
        loop = asyncio.get_running_loop()
        told = loop.create_future()

        def hear() -> None:
            if not told.done():
                told.set_result(None)

        def wake() -> None:
            self._bridge.there(hear)

        self._bridge.tell(self._board.hear, after, wake)
        try:
            async with asyncio.timeout(seconds):
                await told
        except TimeoutError:
            pass
        finally:
            self._bridge.tell(self._board.hear_no_more, wake)


class Seat:
    """One that may have to wait for an offer. To be left (:meth:`leave`) in any case."""

    def __init__(self, bridge: Bridge, board: Board, puller: Puller, *, claims: bool) -> None:
        self._bridge = bridge
        self._board = board
        self._told: asyncio.Future[None] | None = None
        self._waiter = Waiter(puller, self._wake, claims=claims)
        self._sat = False

    async def wait(self, seconds: float, receive: Receive) -> bool:
        """Until there is an offer, so many seconds have passed, or the client is gone: whether it is still there."""
        loop = asyncio.get_running_loop()
        self._told = loop.create_future()
        if self._sat:
            self._bridge.tell(self._board.leave, self._waiter)
        self._sat = True
        self._bridge.tell(self._board.wait, self._waiter)
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({self._told, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return not gone.done()
        finally:
            gone.cancel()

    def leave(self) -> None:
        """It waits no more."""
        if self._sat:
            self._bridge.tell(self._board.leave, self._waiter)

    def _wake(self) -> None:
        self._bridge.there(self._hear)

    def _hear(self) -> None:
        if self._told is not None and not self._told.done():
            self._told.set_result(None)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
