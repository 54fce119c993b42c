"""Who waits for commits: of this process at once, of others by the bell."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from interlock.ports.store import EVERYTHING, News
from interlock.store.bell import Bell


class Listening:
    """A place to wait for commits; joins those that come while nobody waits."""

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self.token = token
        self._heard = trio.Event()
        self._news = News()

    def hint(self, news: News = EVERYTHING) -> None:
        """There was a commit. To be called on the loop that listens."""
        self._news = self._news.and_also(news)
        self._heard.set()

    async def wait(self) -> News:
        """Until there was a commit since the last call."""
        await self._heard.wait()
        self._heard = trio.Event()
        news, self._news = self._news, News()
        return news


class Listeners:
    """All that listen in this process."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._all: set[Listening] = set()

    def tell(self, news: News) -> None:
        """There was a commit of this process. From any thread, with a loop or without."""
        for listening in tuple(self._all):
            try:
                listening.token.run_sync_soon(listening.hint, news)
            except trio.RunFinishedError:
                self._all.discard(listening)
        self._bell.ring()

    def tell_now(self, news: News) -> None:
        """The same on the loop that listens, before anything else happens there."""
        for listening in tuple(self._all):
            listening.hint(news)
        self._bell.ring()

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[Listening]:
        """Listen to both."""
        listening = Listening(trio.lowlevel.current_trio_token())
        self._all.add(listening)
        heard = self._bell.listen()
        failure: BaseException | None = None
        try:
            try:
                async with trio.open_nursery() as nursery:
                    if heard is not None:
                        nursery.start_soon(_hear, heard[0], listening)
                    try:
                        yield listening
                    except BaseException as error:  # noqa: BLE001 - raised again below, as itself rather than in a group
                        failure = error
                    nursery.cancel_scope.cancel()
            except BaseException:
                # Cancelled from outside at the same time: what the caller raised says more.
                if failure is None:
                    raise
            if failure is not None:
                raise failure
        finally:
            self._all.discard(listening)
            if heard is not None:
                # Only now that nobody listens to it any more.
                heard[1]()


async def _hear(heard: Any, listening: Listening) -> None:
    while True:
        await trio.lowlevel.wait_readable(heard)
        while True:
            try:
                heard.recv(16)
            except BlockingIOError:
                break
        listening.hint()
