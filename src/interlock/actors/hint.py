"""A wake-up for one loop."""

from __future__ import annotations

import trio


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
