"""The way to the server, as an agent needs it: what has to be said is said, however long the server is away."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

import trio

from interlock.client import AsyncClient, Patience, Request, Trouble
from interlock.domain.errors import Forbidden, InterlockError, Unauthorized

T = TypeVar("T")
SLOW = Patience(first_wait=1.0, longest_wait=30.0)
"""For what an operator has to put right."""


class Link:
    """A client that does not give up. ``tell``: what went wrong, once per outage, and that it is over (None).

    The client is to be made with ``patience=Patience(seconds=math.inf)`` and ``on_trouble=link.hear``.
    """

    def __init__(self, tell: Callable[[InterlockError | None], object], rng: Random) -> None:
        self.client: AsyncClient | None = None
        self._tell = tell
        self._rng = rng
        self._met = False
        self._troubled = False

    async def send(self, request: Request[T]) -> T:
        """The answer, or a refusal that will stay one.

        A server that is away, at fault (500), or does not know the token any more, is asked again until that has changed. A token
        that is refused from the beginning is raised.
        """
        assert self.client is not None
        tries = 0
        while True:
            try:
                answer = await self.client.send(request)
            except InterlockError as error:
                if not self._may_pass(error):
                    self._well()
                    raise
                self._hear(error)
            else:
                self._well()
                return answer
            tries += 1
            await trio.sleep(SLOW.wait(tries, self._rng))

    def hear(self, trouble: Trouble) -> None:
        """Of a try that failed."""
        self._hear(trouble.error)

    def _may_pass(self, error: InterlockError) -> bool:
        if isinstance(error, Unauthorized | Forbidden):
            return self._met
        return error.http_status >= 500

    def _hear(self, error: InterlockError) -> None:
        if not self._troubled:
            self._troubled = True
            self._tell(error)

    def _well(self) -> None:
        self._met = True
        if self._troubled:
            self._troubled = False
            self._tell(None)
