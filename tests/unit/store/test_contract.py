"""The contract of :mod:`interlock.ports.store`, kept by the SQLite store with its threads and without them."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path

from interlock.ports.store import Store
from interlock.store.sqlite import DATABASE, SqliteStore
from interlock.testing import StoreConformance

BUSY_MS = 2000


@asynccontextmanager
async def locked(folder: Path) -> AsyncIterator[None]:
    """Another program holds the database for longer than the store waits."""
    with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


class TestWithThreads(StoreConformance):
    async def make_store(self, folder: Path) -> Store:
        # Little patience, so that an outage comes soon.
        return SqliteStore(folder, create=True, busy_ms=BUSY_MS)

    def out_of_service(self, store: Store, folder: Path) -> AbstractAsyncContextManager[None]:
        return locked(folder)


class TestInline(StoreConformance):
    async def make_store(self, folder: Path) -> Store:
        return SqliteStore(folder, create=True, inline=True, busy_ms=BUSY_MS)

    def out_of_service(self, store: Store, folder: Path) -> AbstractAsyncContextManager[None]:
        return locked(folder)
