"""Calls from the HTTP server's thread (asyncio) into trio's loop, and their answers back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import outcome
import trio

from interlock.domain.errors import Unavailable

T = TypeVar("T")
ENDING = "the daemon is ending"


class _Call(Generic[T]):
    """One call under way. ``work`` runs on trio's loop, ``future`` is the other loop's."""

    __slots__ = ("future", "scope", "work")

    def __init__(self, work: Callable[[], Awaitable[T]], future: asyncio.Future[T]) -> None:
        self.work = work
        self.future = future
        self.scope = trio.CancelScope()


class Bridge:
    """Made on trio's loop, in the nursery in which the calls run; used from the other loop once :meth:`meet` was called there."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._here = trio.lowlevel.current_trio_token()
        self._there: asyncio.AbstractEventLoop | None = None
        self._answers: deque[tuple[asyncio.Future[Any], outcome.Outcome[Any]]] = deque()

    def meet(self) -> None:
        """On the other loop: it is this one."""
        self._there = asyncio.get_running_loop()

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """On the other loop: run ``work`` on trio's and return what it returns. Cancelled here, it is cancelled there.

        Raises what it raises, and Unavailable when there is no loop any more to run it.
        """
        call = _Call(work, asyncio.get_running_loop().create_future())
        self.tell(self._begin, call)
        try:
            answer: T = await call.future
        except asyncio.CancelledError:
            self.tell(call.scope.cancel)
            raise
        return answer

    def tell(self, act: Callable[..., object], *arguments: object) -> None:
        """On the other loop: have a plain function called on trio's. Raises Unavailable when that is over."""
        try:
            self._here.run_sync_soon(act, *arguments)
        except trio.RunFinishedError:
            raise Unavailable(ENDING, hint="try again when it is up") from None

    def answer(self, future: asyncio.Future[T], result: outcome.Outcome[T]) -> None:
        """On trio's loop: settle a future of the other one. Those of one moment are carried over together."""
        self._answers.append((future, result))
        if len(self._answers) == 1:
            self.there(self._deliver)

    def there(self, act: Callable[[], object]) -> None:
        """On trio's loop: have a plain function called on the other one, if that is still there."""
        assert self._there is not None, "calls come from there"
        try:
            self._there.call_soon_threadsafe(act)
        except RuntimeError:
            # Its loop is closed: nobody waits for answers any more.
            self._answers.clear()

    def _begin(self, call: _Call[Any]) -> None:
        try:
            self._nursery.start_soon(self._run, call)
        except RuntimeError:
            self.answer(call.future, outcome.Error(Unavailable(ENDING, hint="try again when it is up")))

    async def _run(self, call: _Call[Any]) -> None:
        result: outcome.Outcome[Any] = outcome.Error(Unavailable(ENDING, hint="try again when it is up"))
        try:
            with call.scope:
                try:
                    result = outcome.Value(await call.work())
                except Exception as error:  # noqa: BLE001 - it is the caller's
                    result = outcome.Error(error)
        finally:
            self.answer(call.future, result)

    def _deliver(self) -> None:
        while self._answers:
            future, result = self._answers.popleft()
            if future.done():
                continue
            if isinstance(result, outcome.Error):
                future.set_exception(result.error)
            else:
                future.set_result(result.unwrap())
