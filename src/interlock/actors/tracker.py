"""The tracker: which runs this process looks after, and whether the machine has room for one more.

The limits themselves are counted in the database, inside the transaction that dispatches: that is what makes them hold across
processes. What is kept here is what only this process knows: its actors, and what holds its dispatching back as a whole
(too little free memory, a store that cannot serve).
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from interlock.actors.run import RunActor
from interlock.domain.run import Brake

LOOK_AGAIN_SECONDS = 1.0


class Tracker:
    """Actors by run number, and the brakes on dispatching."""

    def __init__(self, min_free_memory_bytes: int, free_memory: Callable[[], int | None]) -> None:
        self.actors: dict[int, RunActor] = {}
        self._floor = min_free_memory_bytes
        self._free_memory = free_memory
        self._outages: dict[str, str] = {}
        self._emptied = trio.Event()

    def add(self, actor: RunActor) -> None:
        """Look after a run."""
        self.actors[actor.run.number] = actor

    def remove(self, actor: RunActor) -> None:
        """Its attempt is over."""
        if self.actors.get(actor.run.number) is actor:
            del self.actors[actor.run.number]
        if not self.actors:
            self._emptied.set()
            self._emptied = trio.Event()

    async def empty(self) -> None:
        """Until no actor is left."""
        while self.actors:
            await self._emptied.wait()

    def outage(self, who: str, what: str | None) -> None:
        """The store failed ``who`` (``what`` says how), or serves it again (None)."""
        if what is None:
            self._outages.pop(who, None)
        else:
            self._outages[who] = what

    def hold_reason(self) -> str | None:
        """Why nothing may be dispatched by this process now, if so; see :class:`Brake`."""
        for what in self._outages.values():
            return Brake.STORE.note(what)
        if self._floor:
            free = self._free_memory()
            if free is not None and free < self._floor:
                mib = 1024 * 1024
                return Brake.MEMORY.note(f"{free // mib} MiB are free, under the floor of {self._floor // mib} MiB")
        return None
