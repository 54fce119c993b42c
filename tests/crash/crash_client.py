"""Submits and operates from outside, several at once, and says what was acknowledged: crash_client.py DATA SEED COUNT KIND...

A line before each request (``try WHAT ID``) and one behind its answer: ``submit ID KIND``, or ``cancel``, ``interrupt``,
``hold``, ``unhold``, ``priority`` with an ID. The lines are on their way before anything else happens; whoever kills this process
knows what had been promised.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import trio
from crash_daemon import set_wall_clock_by

from interlock.config import load_config
from interlock.domain.errors import Conflict
from interlock.domain.run import Run
from interlock.domain.task import Task
from interlock.service import Service
from interlock.store.clock import SystemClock
from interlock.store.sqlite import SqliteStore

AT_ONCE = 4


def say(*words: str) -> None:
    """One line, past every buffer of this process."""
    os.write(1, (" ".join(words) + "\n").encode())


class Client:
    """One program that uses the service."""

    def __init__(self, service: Service, rng: Random, kinds: list[str]) -> None:
        self.service = service
        self.rng = rng
        self.kinds = kinds
        self.known: list[str] = []

    async def submit(self) -> None:
        """Queue a run."""
        kind = self.rng.choice(self.kinds)
        run = (await self.service.submit(Task(title=f"{kind} from outside", agent=kind))).run
        say("submit", run.id, kind)
        self.known.append(run.id)

    async def operate(self) -> None:
        """Do something to a run of ours that may have ended already."""
        ref = self.rng.choice(self.known)
        service = self.service
        acts: dict[str, Callable[[], Awaitable[Run]]] = {
            "cancel": lambda: service.cancel(ref),
            "interrupt": lambda: service.interrupt(ref, by="operator", message="so it goes"),
            "hold": lambda: service.hold(ref),
            "priority": lambda: service.set_priority(ref, self.rng.randint(0, 9)),
        }
        what = self.rng.choice(list(acts))
        say("try", what, ref)
        with suppress(Conflict):
            await acts[what]()
            say(what, ref)
            if what == "hold":
                await service.unhold(ref)
                say("unhold", ref)

    async def work(self, count: int) -> None:
        """So many requests, one after the other."""
        for _ in range(count):
            if self.known and self.rng.random() < 0.5:
                await self.operate()
            else:
                await self.submit()
            await trio.sleep(self.rng.uniform(0, 0.05))


def open_service(data: Path) -> tuple[SqliteStore, Service]:
    """The service of a yard, with its configuration and its clock."""
    if os.environ.get("CRASH_CLOCK"):
        set_wall_clock_by(os.environ["CRASH_CLOCK"])
    store = SqliteStore(data)
    return store, Service(store, SystemClock(), load_config(data.parent / "interlock.yaml").settings)


async def main() -> None:
    """Until all is said, or the process is killed."""
    data, seed, count, *kinds = sys.argv[1:]
    store, service = open_service(Path(data))
    client = Client(service, Random(int(seed)), kinds)
    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(client.work, int(count) // AT_ONCE)
    store.close()


if __name__ == "__main__":
    trio.run(main)
