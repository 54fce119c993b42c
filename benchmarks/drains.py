"""One queue, drained of jobs that do nothing, as a program of its own: ``python -m benchmarks.drains KIND FOLDER BACKLOG COUNT``.

Prints jobs per second, from the first job to the one numbered COUNT out of a BACKLOG that was there before. A process each, so that
nobody's threads or memory are in another one's way. Durable all of them: ``synchronous=FULL``, or PostgreSQL as it comes.

``interlock-agents``: async functions as agents, with all that belongs to an attempt. ``interlock-service``: the service without
attempts' folders, claimed, started and completed. Peers are tuned the way that was found fastest here: huey polls without delay and
has one worker (more only wait for one another's locks), procrastinate runs ten jobs at once. ``huey`` keeps the results of jobs, so
that it is on disk how each ended; ``huey-forgetful`` does not: it deletes a job before it runs it, and that is all that it writes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

AT_ONCE = 64
ROUND = 32
LOOK_SECONDS = 0.005


def report(count: int, began: float, ended: float) -> None:
    """Say the rate, and leave at once: the rest of the backlog is of no interest."""
    print(count / (ended - began), flush=True)
    os._exit(0)


class Count:
    """Jobs that were done: of the first one the beginning, at the last one the end."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._done = 0
        self._began = 0.0
        self.reached = threading.Event()

    def one(self, *_: Any) -> None:
        """One more."""
        now = time.perf_counter()
        if self._done == 0:
            self._began = now
        self._done += 1
        if self._done == self._wanted:
            report(self._wanted, self._began, now)


def interlock_agents(folder: Path, backlog: int, count: int) -> None:
    """The queue is there; a dispatcher is started on it."""
    import trio

    import interlock

    assert backlog >= count
    began: list[float] = []

    async def noop(_: interlock.AgentContext) -> None:
        if not began:
            began.append(time.perf_counter())

    async def main() -> None:
        settings = interlock.Settings(limits=interlock.Limits(total=AT_ONCE))
        async with interlock.open(folder, settings, agents={"noop": noop}) as il:
            with closing(sqlite3.connect(f"file:{il.store.path}?mode=ro", uri=True)) as reader:
                # Not when the functions have returned: when that is committed.
                ended = "SELECT count(*) FROM (SELECT 1 FROM runs WHERE ended_ms IS NOT NULL LIMIT ?)"
                while reader.execute(ended, (count,)).fetchone()[0] < count:
                    await trio.sleep(LOOK_SECONDS)
            report(count, began[0], time.perf_counter())

    trio.run(main)


def interlock_service(folder: Path, backlog: int, count: int) -> None:
    """The queue is there; what is dispatched is started and completed, so many at once."""
    import trio

    from benchmarks.filling import SETTINGS
    from interlock.service import Service
    from interlock.service.claims import claim_of
    from interlock.store.clock import SystemClock
    from interlock.store.sqlite import SqliteStore

    assert backlog >= count
    done = Count(count + 1)

    async def main() -> None:
        with closing(SqliteStore(folder)) as store:
            service = Service(store, SystemClock(), SETTINGS)
            places = trio.Semaphore(AT_ONCE)
            done.one()

            async def work(run: Any) -> None:
                claim = claim_of(run)
                await service.start(claim)
                await service.complete(claim)
                places.release()
                done.one()

            async with trio.open_nursery() as nursery:
                while claimed := (await service.dispatch(owner="me", bound=ROUND)).claimed:
                    for run, _ in claimed:
                        await places.acquire()
                        nursery.start_soon(work, run)

    trio.run(main)


def huey(folder: Path, backlog: int, count: int, *, keep: bool = True) -> None:
    """SqliteHuey with fsync=True (synchronous=FULL)."""
    from huey import SqliteHuey

    queue = SqliteHuey("jobs", filename=str(folder / "huey.db"), fsync=True, cache_mb=32, store_none=keep, utc=True)
    done = Count(count)

    @queue.task()  # type: ignore[untyped-decorator]
    def job() -> None:
        done.one()

    queue.storage.conn.execute("pragma synchronous=0")
    for _ in range(backlog):
        job()
    queue.storage.conn.execute("pragma synchronous=2")
    consumer = queue.create_consumer(
        workers=1, periodic=False, initial_delay=0.001, max_delay=0.001, backoff=1, check_worker_health=False
    )
    consumer.start()
    done.reached.wait()


def litequeue(folder: Path, backlog: int, count: int) -> None:
    """pop and done; its own NORMAL raised to FULL."""
    from litequeue import LiteQueue

    queue = LiteQueue(str(folder / "litequeue.db"))
    with queue.transaction():
        for number in range(backlog):
            queue.put(str(number))
    queue.conn.execute("PRAGMA synchronous = FULL")
    done = Count(count + 1)
    done.one()
    while True:
        queue.done(queue.pop().message_id)
        done.one()


def procrastinate(folder: Path, backlog: int, count: int) -> None:
    """In a new database of the cluster whose socket is in ``folder``."""
    import psycopg
    from procrastinate import App, PsycopgConnector

    logging.disable(logging.CRITICAL)
    cluster, database = f"host={folder} user=bench", f"jobs_{os.getpid()}"
    with psycopg.connect(f"{cluster} dbname=postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")
    app = App(connector=PsycopgConnector(conninfo=f"{cluster} dbname={database}", max_size=12))
    done = Count(count)

    @app.task(name="noop")  # type: ignore[untyped-decorator]
    async def noop() -> None:
        done.one()

    async def main() -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            for start in range(0, backlog, 1000):
                await noop.batch_defer_async(*({} for _ in range(min(1000, backlog - start))))
            await app.run_worker_async(concurrency=10, install_signal_handlers=False, fetch_job_polling_interval=0.05)

    asyncio.run(main())


KINDS: dict[str, Callable[[Path, int, int], None]] = {
    "interlock-agents": interlock_agents,
    "interlock-service": interlock_service,
    "huey": huey,
    "huey-forgetful": partial(huey, keep=False),
    "litequeue": litequeue,
    "procrastinate": procrastinate,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
