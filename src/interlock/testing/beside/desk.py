"""Where the commands are given: a store in a folder of its own, called without a loop."""

from __future__ import annotations

import inspect
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import trio

from interlock.ports.store import Store, Tx
from interlock.service.reads import Filter
from interlock.store.sqlite import DATABASE, SqliteStore

T = TypeVar("T")
ALL = 1_000_000


def memory() -> str | None:
    """A folder in memory, where there is one: commits in it are real, but nobody waits for a disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - folders in it have random names, mode 700


class Desk(Protocol):
    """A store as the steps use it."""

    def write(self, work: Callable[[Tx], T]) -> T:
        """Run ``work`` in a transaction."""
        ...

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run ``work`` on a snapshot."""
        ...

    def reopen(self) -> None:
        """Close the store and open it again, as a restart does."""
        ...

    def everything(self) -> object:
        """All that is stored, as a value: equal when nothing changed."""
        ...

    def close(self) -> None:
        """Let go of the store and remove its folder."""
        ...


def all_that_is_stored(tx: Tx) -> tuple[object, ...]:
    """What the port shows of what is stored, as a value."""
    runs = tx.find_runs(Filter(limit=ALL))
    return (
        runs,
        [(tx.attempts(run.number), tx.slots_of(run.number), tx.needs_of(run.number)) for run in runs],
        tx.last_seq(),
        [tx.used(), tx.lanes(ALL), tx.due(2**62, ALL), tx.routes(), tx.instances(), tx.healths(), tx.adhoc_agents()],
        tx.pullers_since(0),
        [tx.meta(key) for key in ("paused", "limited", "rekeying", "alive_ms", "epoch")],
    )


@cache
def _fresh_database() -> bytes:
    """A database after its migrations."""
    with tempfile.TemporaryDirectory(dir=memory(), prefix="interlock-fresh-") as folder:
        SqliteStore(Path(folder), create=True, inline=True).close()
        return (Path(folder) / DATABASE).read_bytes()


class SqliteDesk:
    """The SQLite store without threads, watched from outside by another connection."""

    def __init__(self, within: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=within or memory(), prefix="interlock-beside-"))
        (self.folder / DATABASE).write_bytes(_fresh_database())
        self.store = SqliteStore(self.folder, create=True, inline=True)
        self._watch = sqlite3.connect(self.folder / DATABASE, isolation_level=None)
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '%sqlite_%' ORDER BY name"
        self._all = [f'SELECT * FROM "{name}"' for (name,) in self._watch.execute(tables)]  # noqa: S608 - its own tables

    def write(self, work: Callable[[Tx], T]) -> T:
        """Run ``work`` in a transaction."""
        return self.store.write_now(work)

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run ``work`` on a snapshot."""
        return self.store.read_now(work)

    def reopen(self) -> None:
        """Close the store and open it again, as a restart does."""
        self.store.close()
        self.store = SqliteStore(self.folder, create=True, inline=True)

    def everything(self) -> object:
        """Every row of every table."""
        return [self._watch.execute(sql).fetchall() for sql in self._all]

    def close(self) -> None:
        """Let go of the store and remove its folder."""
        self._watch.close()
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)


Call = Callable[..., Any]
"""(async function, *arguments) -> its result: how a program without a loop calls into one."""


class StoreDesk:
    """Any store, on a loop that is elsewhere. ``make_store`` opens the store of a folder, new or not; it runs on the loop too."""

    def __init__(self, make_store: Callable[[Path], Any], call: Call | None = None, within: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=within or memory(), prefix="interlock-beside-"))
        self._make_store = make_store
        self._loop = Loop() if call is None else None
        self._call: Call = self._loop.call if self._loop is not None else call or trio.from_thread.run
        try:
            self.store = self._open()
        except BaseException:
            self._let_go()
            raise

    def _open(self) -> Store:
        async def make() -> Store:
            made = self._make_store(self.folder)
            store: Store = await made if inspect.isawaitable(made) else made
            return store

        store: Store = self._call(make)
        return store

    def write(self, work: Callable[[Tx], T]) -> T:
        """Run ``work`` in a transaction."""
        result: T = self._call(self.store.write, work)
        return result

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run ``work`` on a snapshot."""
        result: T = self._call(self.store.read, work)
        return result

    def reopen(self) -> None:
        """Close the store and open it again, as a restart does."""
        self._call(close_store, self.store)
        self.store = self._open()

    def everything(self) -> object:
        """What the port shows of what is stored."""
        return self.read(all_that_is_stored)

    def close(self) -> None:
        """Let go of the store and remove its folder."""
        try:
            self._call(close_store, self.store)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._loop is not None:
            self._loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


async def close_store(store: object) -> None:
    """Close a store that can be closed; its ``close`` may be async."""
    close = getattr(store, "close", None)
    if close is None:
        return
    closed = close()
    if inspect.isawaitable(closed):
        await closed


class Loop:
    """A trio loop in a thread of its own, for whoever has none."""

    def __init__(self) -> None:
        self._token: trio.lowlevel.TrioToken | None = None
        self._ready = threading.Event()
        self._over: trio.Event | None = None
        self._thread = threading.Thread(target=trio.run, args=(self._main,), name="interlock-testing", daemon=True)
        self._thread.start()
        self._ready.wait()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._over = trio.Event()
        self._ready.set()
        await self._over.wait()

    def call(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Run an async function on the loop; its result."""
        return trio.from_thread.run(act, *arguments, trio_token=self._token)

    def close(self) -> None:
        """End the loop."""
        assert self._token is not None
        assert self._over is not None
        self._token.run_sync_soon(self._over.set)
        self._thread.join()
