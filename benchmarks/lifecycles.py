"""Full lifecycles through the service (submit, dispatch and claim, start, complete), without processes, 64 at once."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import trio

from interlock.domain.settings import Agent, Limits, Settings
from interlock.domain.task import Task
from interlock.service import Service
from interlock.service.claims import claim_of
from interlock.store.clock import SystemClock
from interlock.store.sqlite import SqliteStore

AT_ONCE = 64
EACH = 30


async def _drive(folder: Path) -> float:
    store = SqliteStore(folder, create=True)
    settings = Settings(agents={"a": Agent(name="a")}, default_agent="a", limits=Limits(total=10_000))
    service = Service(store, SystemClock(), settings)

    async def one() -> None:
        for _ in range(EACH):
            await service.submit(Task(title="x"))
            done = await service.dispatch(owner="me", bound=1)
            for run, _ in done.claimed:
                claim = claim_of(run)
                await service.start(claim)
                await service.complete(claim)

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(one)
    took = time.perf_counter() - began
    store.close()
    return AT_ONCE * EACH / took


def rows() -> list[tuple[str, str, str]]:
    """Table row: lifecycles per second, durable."""
    with tempfile.TemporaryDirectory() as folder:
        rate = trio.run(_drive, Path(folder))
    return [
        (f"durable lifecycles through the service, {AT_ONCE} at once", f"{rate:.0f}/s", "5 transitions, 5 events each")
    ]
