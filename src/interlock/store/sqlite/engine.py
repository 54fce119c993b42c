"""The SQLite engine: one writer with group commit, readers beside it, errors as what they mean.

``inline=True`` does without threads: work runs where it is called. Tests under a fake clock need that, since a thread does
not hold their time; so does a program without a trio loop.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import trio

from interlock.domain.errors import NotFound, Unavailable
from interlock.domain.places import DATABASE
from interlock.store.bell import Bell
from interlock.store.sqlite import upkeep
from interlock.store.sqlite.commits import Commits, Piece
from interlock.store.sqlite.connection import connect
from interlock.store.sqlite.errors import meaning
from interlock.store.sqlite.listening import Listeners, Listening
from interlock.store.sqlite.readonly import is_denied, read_only_access, refusal
from interlock.store.sqlite.schema import prepare
from interlock.store.sqlite.transaction import SqliteTx
from interlock.store.sqlite.writer import Writer

T = TypeVar("T")

READERS = 4
BUSY_MS = 10_000


class SqliteStore:
    """Durable state in ``interlock.db`` of a data folder; :class:`interlock.ports.store.Store`.

    Raises :class:`NotFound` when the folder holds no database and ``create`` is not set, :class:`Unavailable` when it cannot be
    used. A folder that cannot be written is opened ``read_only``: questions are answered, whatever writes is Unavailable.
    ``busy_ms``: how long to wait for another program that holds the database.
    """

    def __init__(self, folder: Path, *, create: bool = False, inline: bool = False, busy_ms: int = BUSY_MS) -> None:
        self.folder = folder
        self._busy_ms = busy_ms
        self.path = folder / DATABASE
        self.read_only = False
        # mode=rw: a database that is gone is an error, not an empty new one.
        self._access = "mode=rw"
        if not create and not self.path.exists():
            raise NotFound(
                f"no Interlock data in {folder}",
                hint="`interlock init` makes it, or name its folder with --data",
            )
        try:
            if create:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._refuse_to_forget()
            self.migrated_from = self._prepare(create=create)
            connection = self._connection(writing=not self.read_only)
            self._writer = Writer(connection, self.path, busy_ms=busy_ms, read_only=self.read_only)
        except sqlite3.Error as error:
            refused = meaning(error, self.path)
            if isinstance(refused, Unavailable):
                raise refused from error
            raise Unavailable(
                f"the database cannot be brought to this version ({self.path}: {error})",
                hint="nothing was changed; go on with the version of Interlock that made it, and report this",
            ) from error
        except OSError as error:
            raise Unavailable(
                f"{folder}: {error.strerror}", hint="check that the folder exists and is yours"
            ) from error
        self.bell = Bell(folder / "bells")
        self._listeners = Listeners(self.bell)
        self._readers: list[sqlite3.Connection] = []
        self._reading = trio.CapacityLimiter(READERS)
        self._rehearsing = trio.CapacityLimiter(1)
        self._closed = False
        self._commits = None if inline else Commits(self._writer, self._announce)
        self._checkpointer: upkeep.Checkpointer | None = None
        if not inline and not self.read_only:
            self._checkpointer = upkeep.Checkpointer(self.path, partial(self._connection, writing=True))

    def _refuse_to_forget(self) -> None:
        """A database that is gone while its attempts are there was lost: a new one would run everything again."""
        if self.path.exists() and self.path.stat().st_size:
            return
        attempts = self.folder / "attempts"
        if attempts.is_dir() and any(attempts.iterdir()):
            raise Unavailable(
                f"{self.path} is gone or empty, but there are attempts beside it",
                hint=f"put a backup back; to begin anew without what was done, remove {self.folder}",
            )

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the store is closed", hint="open it again")

    def _connection(self, *, writing: bool) -> sqlite3.Connection:
        return connect(self.path, writing=writing, busy_ms=self._busy_ms, access=self._access)

    def _prepare(self, *, create: bool) -> Path | None:
        try:
            return prepare(self.path, busy_ms=self._busy_ms)
        except (OSError, sqlite3.Error) as error:
            if create or not is_denied(error):
                raise
            self._access = read_only_access(self.path)
            self.read_only = True
            return None

    # writing

    async def write(self, work: Callable[[SqliteTx], T], *, bulk: bool = False) -> T:
        """Run ``work`` in a transaction; returns once it is on disk. Not interrupted by cancellation: it may have happened.

        ``bulk``: it takes long enough that the loop should not be kept from everything else meanwhile.
        """
        if self._commits is None:
            await trio.lowlevel.checkpoint()
            return self.write_now(work)
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        token = trio.lowlevel.current_trio_token()
        self._commits.post(Piece(work, trio.lowlevel.current_task(), token, bulk=bulk))

        def stay(_: Any) -> trio.lowlevel.Abort:
            return trio.lowlevel.Abort.FAILED

        answer: Any = await trio.lowlevel.wait_task_rescheduled(stay)
        return cast("T", answer)

    def write_now(self, work: Callable[[SqliteTx], T]) -> T:
        """The same without a loop: on this thread, at once. Only for an ``inline`` store."""
        self._check_open()
        (result,) = self._writer.group([work])
        news = self._writer.tx.take_news()
        if news is not None:
            self._listeners.tell_now(news)
        value: T = result.unwrap()
        return value

    def _announce(self) -> None:
        news = self._writer.tx.take_news()
        if news is None:
            return
        if self._checkpointer is not None:
            self._checkpointer.there_was_a_commit()
        self._listeners.tell(news)

    # reading

    async def read(self, work: Callable[[SqliteTx], T]) -> T:
        """Run ``work`` on a snapshot, on a connection of its own."""
        if self._commits is None:
            await trio.lowlevel.checkpoint()
            return self.read_now(work)
        return await trio.to_thread.run_sync(partial(self.read_now, work), limiter=self._reading)

    def peek(self, work: Callable[[SqliteTx], T]) -> T:
        """The same at once, each statement on what is committed when it runs: for what an index answers in microseconds."""
        return self._ask(work, snapshot=False)

    def read_now(self, work: Callable[[SqliteTx], T]) -> T:
        """:meth:`read` on this thread."""
        return self._ask(work, snapshot=True)

    def _ask(self, work: Callable[[SqliteTx], T], *, snapshot: bool) -> T:
        self._check_open()
        tx = None
        try:
            tx = SqliteTx(self._reader())
            if not snapshot:
                return work(tx)
            tx.connection.execute("BEGIN")
            try:
                return work(tx)
            finally:
                # After some errors (I/O, out of memory) SQLite has rolled back already.
                if tx.connection.in_transaction:
                    tx.connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            refused = meaning(error, self.path)
            if refused is None:
                raise
            raise refused from error
        finally:
            if tx is not None:
                if self._closed or tx.connection.in_transaction:
                    tx.connection.close()
                else:
                    self._readers.append(tx.connection)

    async def rehearse(self, work: Callable[[SqliteTx], T]) -> T:
        """Run ``work`` in a transaction that is undone: it may write, and nothing of that is kept, on disk, or heard of.
        Nobody else writes meanwhile, so it should be short.
        """
        return await trio.to_thread.run_sync(partial(self.rehearse_now, work), limiter=self._rehearsing)

    def rehearse_now(self, work: Callable[[SqliteTx], T]) -> T:
        """:meth:`rehearse` on this thread."""
        self._check_open()
        if self.read_only:
            raise refusal(self.path)
        try:
            with closing(self._connection(writing=True)) as connection:
                # What does not fit into the cache would go to the log on disk before it is undone.
                connection.execute("PRAGMA cache_spill = OFF")
                connection.execute("BEGIN IMMEDIATE")
                tx = SqliteTx(connection)
                tx.careful = True
                try:
                    return work(tx)
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            refused = meaning(error, self.path)
            if refused is None:
                raise
            raise refused from error

    def _reader(self) -> sqlite3.Connection:
        try:
            # Several threads read: asking first whether there is one would not do.
            return self._readers.pop()
        except IndexError:
            return self._connection(writing=False)

    def changes(self) -> AbstractAsyncContextManager[Listening]:
        """Listen for commits of this process (at once), of others (by the bell)."""
        return self._listeners.listen()

    # upkeep

    def backup(self, target: Path) -> None:
        """See :func:`interlock.store.sqlite.upkeep.backup`."""
        self._check_open()
        upkeep.backup(partial(self._connection, writing=False), target)

    def integrity_faults(self) -> list[str]:
        """What SQLite finds wrong with the file (integrity and foreign keys); empty when nothing."""
        faults: list[str] = []
        try:
            self.read_now(lambda tx: upkeep.find_faults(tx.connection, faults))
        except Unavailable as error:
            code = getattr(error.__cause__, "sqlite_errorcode", None) or 0
            if code & 0xFF not in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
                raise
            # Too damaged to be checked to the end.
            faults.append(error.message)
        return faults

    def close(self) -> None:
        """Finish what is queued and let go of the file."""
        if self._closed:
            return
        self._closed = True
        if self._commits is not None:
            self._commits.close()
        if self._checkpointer is not None:
            self._checkpointer.close()
        self._writer.connection.close()
        for connection in self._readers:
            connection.close()
        self._readers.clear()
        self.bell.close()
