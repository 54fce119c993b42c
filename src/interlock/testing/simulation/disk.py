"""The database as the processes of a simulation share it: the real SQLite store on one thread, with all that a disk can do.

Every write takes its turn within its process, may take a while before and after its commit, and may be refused. A process that is
killed in between has committed, or has not, and never hears of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TypeVar

import trio

from interlock.domain.errors import Unavailable
from interlock.ports.store import EVERYTHING, News
from interlock.store.sqlite import SqliteStore
from interlock.store.sqlite.transaction import SqliteTx

T = TypeVar("T")

CHECKPOINT_EVERY = 1000
NO_LIMIT = 1_073_741_823
SPARE_PAGES = 2
SPINNING = 20_000
MOMENT_SECONDS = 10.0


class Client:
    """A process that uses the database. ``dead``: it was killed; ``stopped`` and ``kept`` are the scheduler's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopped = False
        self.dead = False
        self.kept: list[trio.lowlevel.Task] = []
        self.crossings: set[trio.CancelScope] = set()
        self.ears: list[Ears] = []


class Ears:
    """A place to wait for commits: :class:`interlock.ports.store.Changes`."""

    def __init__(self) -> None:
        self._heard = trio.Event()
        self._news = News()

    def hint(self, news: News) -> None:
        """There was a commit."""
        self._news = self._news.and_also(news)
        self._heard.set()

    async def wait(self) -> News:
        """Until there was a commit since the last call."""
        await self._heard.wait()
        self._heard = trio.Event()
        news, self._news = self._news, News()
        return news


class Disk:
    """The one database. ``committed`` is called after every commit, with the client that made it; ``spins`` when it is asked
    more often within moments than anybody has reason to.
    """

    def __init__(
        self, folder: Path, chance: Random, committed: Callable[[Client], None], spins: Callable[[], None]
    ) -> None:
        self.folder = folder
        self.store = SqliteStore(folder, create=True, inline=True)
        self._chance = chance
        self._committed = committed
        self._spins = spins
        self._moment = 0.0
        self._asked = 0
        self._writer: sqlite3.Connection = self.store.write_now(lambda tx: tx.connection)
        self._commits = 0
        self.clients: list[Client] = []
        self.outages = 0
        self.blind = 0
        self.full = 0
        self.slow = 0
        self.deafness = 0

    # what goes wrong

    def fill(self) -> None:
        """Somebody else takes nearly all that is left."""
        self.full += 1
        (pages,) = self._writer.execute("PRAGMA page_count").fetchone()
        self._writer.execute(f"PRAGMA max_page_count = {pages + SPARE_PAGES:d}")

    def empty(self) -> None:
        """There is space again."""
        self.full -= 1
        if not self.full:
            self._writer.execute(f"PRAGMA max_page_count = {NO_LIMIT:d}")

    # use

    def commit(self, client: Client, work: Callable[[SqliteTx], T]) -> T:
        """One transaction."""
        self._count()
        fails_late = self.outages and self._chance.random() < 0.5
        if self.outages and not fails_late:
            raise Unavailable("the database is busy: another program holds it")
        news: News | None = None

        def watched(tx: SqliteTx) -> T:
            nonlocal news
            value = work(tx)
            if fails_late:
                raise Unavailable("reading or writing the database failed")
            news = tx.take_news()
            return value

        value = self.store.write_now(watched)
        self._commits += 1
        if self._commits % CHECKPOINT_EVERY == 0:
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._committed(client)
        if news is not None:
            self._ring(client, news)
        return value

    def _ring(self, by: Client, news: News) -> None:
        for client in self.clients:
            if client is by or not self.deafness:
                for ears in client.ears:
                    ears.hint(news if client is by else EVERYTHING)

    def read(self, work: Callable[[SqliteTx], T]) -> T:
        """Answer from one snapshot."""
        self._look()
        return self.store.read_now(work)

    def peek(self, work: Callable[[SqliteTx], T]) -> T:
        """Answer from what is there."""
        self._look()
        return self.store.peek(work)

    def _count(self) -> None:
        now = trio.current_time()
        if now - self._moment > MOMENT_SECONDS:
            self._moment, self._asked = now, 0
        self._asked += 1
        if self._asked == SPINNING:
            self._spins()

    def _look(self) -> None:
        self._count()
        if self.blind:
            raise Unavailable("reading or writing the database failed")

    def delay_seconds(self) -> float:
        """How long the next step takes. Nothing, mostly: the scheduler mixes what happens at one time."""
        drawn = self._chance.random()
        if self.slow:
            return 5 * drawn**4
        return drawn / 2 if drawn < 0.08 else 0.0

    def close(self) -> None:
        """Let go of the files."""
        self.store.close()


class ClientStore:
    """A process's view of the database: :class:`interlock.ports.store.Store`."""

    def __init__(self, disk: Disk, client: Client) -> None:
        self._disk = disk
        self._client = client
        self._turn = trio.Lock()

    async def write(self, work: Callable[[SqliteTx], T], *, bulk: bool = False) -> T:  # noqa: ARG002 - the port's shape
        """Run ``work`` in a transaction. Not interrupted by cancellation, only by the end of the process."""
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True) as crossing:
            self._client.crossings.add(crossing)
            try:
                async with self._turn:
                    await trio.sleep(self._disk.delay_seconds())
                    if not self._client.dead:
                        try:
                            value = self._disk.commit(self._client, work)
                        finally:
                            # Killed here, it has committed and never hears of it.
                            await trio.sleep(self._disk.delay_seconds())
            finally:
                self._client.crossings.discard(crossing)
        if self._client.dead:
            await trio.sleep_forever()
        return value

    async def read(self, work: Callable[[SqliteTx], T]) -> T:
        """Run ``work`` on a snapshot."""
        await trio.lowlevel.checkpoint()
        return self._disk.read(work)

    def peek(self, work: Callable[[SqliteTx], T]) -> T:
        """The same at once."""
        return self._disk.peek(work)

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Ears]:
        """Listen for commits."""
        ears = Ears()
        self._client.ears.append(ears)
        try:
            yield ears
        finally:
            self._client.ears.remove(ears)
