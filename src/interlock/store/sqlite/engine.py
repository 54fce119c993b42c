"""The SQLite engine: one writer with group commit, readers beside it, errors as what they mean.

A writer thread owns the writing connection. It takes all work that waits, runs each piece in a savepoint of its own, commits
once, and only then answers: what was answered is on disk. A piece that fails is undone alone; a commit that fails fails
all of its pieces, and the writer is ready for the next.

``inline=True`` does without the thread: work runs where it is called. Tests under a fake clock need that, since a thread does
not hold their time; so does a program without a trio loop.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import outcome
import trio

from interlock.domain.crashpoints import crashpoint
from interlock.domain.errors import Conflict, NotFound, Unavailable
from interlock.domain.places import DATABASE
from interlock.store.bell import Bell
from interlock.store.sqlite.errors import meaning
from interlock.store.sqlite.readonly import is_denied, read_only_access, refusal, uri
from interlock.store.sqlite.schema import prepare
from interlock.store.sqlite.transaction import SqliteTx

T = TypeVar("T")

GROUP_LIMIT = 256
READERS = 4
BUSY_MS = 10_000
_GENERATION = "SELECT value FROM meta WHERE key = 'generation'"
CHECKPOINT_PAUSE_SECONDS = 0.5
CHECKPOINT_PAGES = 1000


class _Work(Generic[T]):
    """A piece of work on its way to the writer, and the task that waits for its result."""

    __slots__ = ("result", "task", "token", "work")

    def __init__(self, work: Callable[[SqliteTx], T], task: trio.lowlevel.Task, token: trio.lowlevel.TrioToken) -> None:
        self.work = work
        self.task = task
        self.token = token
        self.result: outcome.Outcome[T] = outcome.Error(Unavailable("the writer never got to it"))


def _deliver(group: list[_Work[Any]]) -> None:
    for piece in group:
        trio.lowlevel.reschedule(piece.task, piece.result)


def _connect(path: Path, *, writing: bool, busy_ms: int, access: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        uri(path, access), uri=True, isolation_level=None, check_same_thread=False, cached_statements=512
    )
    try:
        connection.execute(f"PRAGMA busy_timeout = {busy_ms:d}")
        connection.execute("PRAGMA foreign_keys = ON")
        # Without it, UPDATE ... RETURNING with triggers spills to a file at every statement.
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -32768")
        if writing:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
        else:
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


class Listening:
    """A place to wait for commits; joins those that come while nobody waits."""

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self.token = token
        self._heard = trio.Event()

    def hint(self) -> None:
        """There was a commit."""
        self._heard.set()

    async def wait(self) -> None:
        """Until there was a commit since the last call."""
        await self._heard.wait()
        self._heard = trio.Event()


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
            self._writer = self._connection(writing=not self.read_only)
            self._inode = self.path.stat().st_ino
            self._generation = self._writer.execute(_GENERATION).fetchone()
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
        self._tx = SqliteTx(self._writer)
        self._inline = inline
        self.bell = Bell(folder / "bells")
        self._listeners: set[Listening] = set()
        self._readers: list[sqlite3.Connection] = []
        self._reading = trio.CapacityLimiter(READERS)
        self._queue: queue.SimpleQueue[_Work[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._checkpointing = threading.Event()
        self._closing = threading.Event()
        self._closed = False
        if not inline:
            self._thread = threading.Thread(target=self._write_loop, name="interlock-writer", daemon=True)
            self._thread.start()
        self._checkpointer = threading.Thread(target=self._checkpoint_loop, name="interlock-checkpoint", daemon=True)
        if not inline and not self.read_only:
            self._checkpointer.start()

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
        return _connect(self.path, writing=writing, busy_ms=self._busy_ms, access=self._access)

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

    async def write(self, work: Callable[[SqliteTx], T]) -> T:
        """Run ``work`` in a transaction; returns once it is on disk. Not interrupted by cancellation: it may have happened."""
        if self._inline:
            await trio.lowlevel.checkpoint()
            return self.write_now(work)
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        piece = _Work(work, trio.lowlevel.current_task(), trio.lowlevel.current_trio_token())
        self._queue.put(piece)

        def stay(_: Any) -> trio.lowlevel.Abort:
            return trio.lowlevel.Abort.FAILED

        answer: Any = await trio.lowlevel.wait_task_rescheduled(stay)
        return cast("T", answer)

    def write_now(self, work: Callable[[SqliteTx], T]) -> T:
        """The same without a loop: on this thread, at once. Only for an ``inline`` store."""
        self._check_open()
        (result,) = self._commit([work])
        self._announce()
        value: T = result.unwrap()
        return value

    def _commit(self, works: list[Callable[[SqliteTx], Any]]) -> list[outcome.Outcome[Any]]:
        """Run ``works`` in one transaction and commit. A piece that is alone is undone with it; several have a savepoint each."""
        connection = self._writer
        results: list[outcome.Outcome[Any]] = []
        self._tx.worth_a_ring = False
        if self.read_only:
            return [outcome.Error(refusal(self.path)) for _ in works]
        if self._moved():
            gone = Unavailable(
                f"the database is gone, or another file is in its place ({self.path})",
                hint="put it back; if it is a backup that you put there, start Interlock again",
            )
            return [outcome.Error(gone) for _ in works]
        try:
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute(_GENERATION).fetchone() != self._generation:
                self._undo()
                other = Unavailable(f"another database was put in place of {self.path}", hint="start Interlock again")
                return [outcome.Error(other) for _ in works]
            results.extend([self._piece(work, alone=len(works) == 1) for work in works])
            if connection.in_transaction:
                crashpoint("before_commit")
                connection.execute("COMMIT")
                crashpoint("after_commit")
        except sqlite3.Error as error:
            self._undo()
            refused = meaning(error, self.path) or Unavailable(f"the database refused the commit: {error}")
            return [outcome.Error(refused) for _ in works]
        except BaseException:
            # Ctrl-C in an inline store, say: the next transaction finds none open.
            self._undo()
            raise
        return results

    def _moved(self) -> bool:
        """Whether the file is gone: SQLite would go on to write into what nobody can open any more, and call it done."""
        try:
            return self.path.stat().st_ino != self._inode
        except OSError:
            return True

    def _undo(self) -> None:
        self._tx.worth_a_ring = False
        if self._writer.in_transaction:
            # A disk that fails here too leaves the transaction open; the next try comes back to it.
            with suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")

    def _piece(self, work: Callable[[SqliteTx], Any], *, alone: bool) -> outcome.Outcome[Any]:
        connection = self._writer
        if not alone:
            # Not for nothing: under a savepoint every statement takes longer the more its piece has written.
            connection.execute("SAVEPOINT piece")
        try:
            value = work(self._tx)
        except Exception as error:
            if not connection.in_transaction:
                # SQLite itself rolled everything back (disk full, out of memory): no piece of the group stands.
                if isinstance(error, sqlite3.Error):
                    raise
                raise sqlite3.OperationalError(f"the transaction was rolled back: {error}") from error
            if alone:
                self._undo()
            else:
                connection.execute("ROLLBACK TO piece")
                connection.execute("RELEASE piece")
            if isinstance(error, sqlite3.Error):
                refused = meaning(error, self.path)
                if isinstance(refused, Unavailable):
                    raise
                return outcome.Error(refused or error)
            return outcome.Error(error)
        if not alone:
            connection.execute("RELEASE piece")
        return outcome.Value(value)

    def _write_loop(self) -> None:
        while True:
            first = self._queue.get()
            if first is None:
                return
            group = [first]
            last = False
            while len(group) < GROUP_LIMIT:
                try:
                    piece = self._queue.get_nowait()
                except queue.Empty:
                    break
                if piece is None:
                    last = True
                    break
                group.append(piece)
            try:
                results = self._commit([piece.work for piece in group])
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it; the writer goes on
                results = [outcome.Error(error) for _ in group]
            for piece, result in zip(group, results, strict=True):
                piece.result = result
            self._answer(group)
            self._announce()
            if last:
                return

    def _answer(self, group: list[_Work[Any]]) -> None:
        by_loop: dict[trio.lowlevel.TrioToken, list[_Work[Any]]] = {}
        for piece in group:
            by_loop.setdefault(piece.token, []).append(piece)
        for token, pieces in by_loop.items():
            try:
                token.run_sync_soon(_deliver, pieces)
            except trio.RunFinishedError:
                continue

    def _announce(self) -> None:
        if not self._tx.worth_a_ring:
            return
        self._tx.worth_a_ring = False
        self._checkpointing.set()
        for listener in tuple(self._listeners):
            listener.hint() if self._inline else self._hint_from_thread(listener)
        self.bell.ring()

    def _hint_from_thread(self, listener: Listening) -> None:
        try:
            listener.token.run_sync_soon(listener.hint, idempotent=True)
        except trio.RunFinishedError:
            self._listeners.discard(listener)

    # reading

    async def read(self, work: Callable[[SqliteTx], T]) -> T:
        """Run ``work`` on a snapshot, on a connection of its own."""
        if self._inline:
            await trio.lowlevel.checkpoint()
            return self.read_now(work)
        return await trio.to_thread.run_sync(partial(self.read_now, work), limiter=self._reading)

    def peek(self, work: Callable[[SqliteTx], T]) -> T:
        """The same at once: for what an index answers in microseconds. A WAL reader never waits for the writer."""
        return self.read_now(work)

    def read_now(self, work: Callable[[SqliteTx], T]) -> T:
        """The same on this thread."""
        self._check_open()
        connection = None
        try:
            connection = self._reader()
            connection.execute("BEGIN")
            try:
                return work(SqliteTx(connection))
            finally:
                # After some errors (I/O, out of memory) SQLite has rolled back already.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            refused = meaning(error, self.path)
            if refused is None:
                raise
            raise refused from error
        finally:
            if connection is not None:
                if self._closed or connection.in_transaction:
                    connection.close()
                else:
                    self._readers.append(connection)

    def _reader(self) -> sqlite3.Connection:
        try:
            # Several threads read: asking first whether there is one would not do.
            return self._readers.pop()
        except IndexError:
            return self._connection(writing=False)

    # commits of this process and of others

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Listening]:
        """Listen for commits of this process (at once), of others (by the bell)."""
        listening = Listening(trio.lowlevel.current_trio_token())
        self._listeners.add(listening)
        heard = self.bell.listen()
        failure: BaseException | None = None
        try:
            try:
                async with trio.open_nursery() as nursery:
                    if heard is not None:
                        nursery.start_soon(self._hear, heard[0], listening)
                    try:
                        yield listening
                    except BaseException as error:  # noqa: BLE001 - raised again below, as itself rather than in a group
                        failure = error
                    nursery.cancel_scope.cancel()
            except BaseException:
                # Cancelled from outside at the same time: what the caller raised says more.
                if failure is None:
                    raise
            if failure is not None:
                raise failure
        finally:
            self._listeners.discard(listening)
            if heard is not None:
                # Only now that nobody listens to it any more.
                heard[1]()

    @staticmethod
    async def _hear(heard: Any, listening: Listening) -> None:
        while True:
            await trio.lowlevel.wait_readable(heard)
            while True:
                try:
                    heard.recv(16)
                except BlockingIOError:
                    break
            listening.hint()

    # upkeep

    def _checkpoint_loop(self) -> None:
        """Move committed pages from the WAL into the file in the background, so that no commit has to wait for it."""
        try:
            with closing(self._connection(writing=True)) as connection:
                while True:
                    self._checkpointing.wait()
                    self._checkpointing.clear()
                    if self._closed:
                        break
                    self._checkpoint(connection)
                    # The WAL file keeps its size: without a pause every further commit would have one of its own.
                    self._closing.wait(CHECKPOINT_PAUSE_SECONDS)
        except sqlite3.Error:
            # The writer meets the same trouble and reports it; the next start moves the pages.
            return

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        wal = self.path.with_name(f"{DATABASE}-wal")
        try:
            if wal.stat().st_size < CHECKPOINT_PAGES * 4096:
                return
        except OSError:
            return
        try:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.OperationalError:
            return

    def backup(self, target: Path) -> None:
        """Copy the database while it is in use. The copy gets a generation of its own, so that its fences are told apart."""
        self._check_open()
        if target.exists():
            raise Conflict(f"{target} is there already", hint="name a new file")
        part = target.with_name(f"{target.name}.part")
        try:
            part.unlink(missing_ok=True)
            with (
                closing(self._connection(writing=False)) as source,
                closing(sqlite3.connect(part, isolation_level=None)) as copy,
            ):
                source.backup(copy, pages=4096)
                copy.execute("UPDATE meta SET value = lower(hex(randomblob(3))) WHERE key = 'generation'")
                copy.execute("PRAGMA journal_mode = DELETE")
            part.replace(target)
        except sqlite3.Error as error:
            refused = meaning(error, target)
            if refused is None:
                raise
            raise refused from error
        except OSError as error:
            raise Unavailable(
                f"{target}: {error.strerror}", hint="name a file in a folder that you can write"
            ) from error
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def integrity_faults(self) -> list[str]:
        """What SQLite finds wrong with the file (integrity and foreign keys); empty when nothing."""
        faults: list[str] = []

        def check(tx: SqliteTx) -> None:
            faults.extend(str(row) for (row,) in tx.connection.execute("PRAGMA integrity_check(20)") if row != "ok")
            for table, row, parent, _ in tx.connection.execute("PRAGMA foreign_key_check"):
                where = table if row is None else f"{table} row {row}"
                faults.append(f"{where} points to what is not in {parent}")

        try:
            self.read_now(check)
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
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            with suppress(queue.Empty):
                # Who came from another thread at the very end must not wait for ever.
                while (late := self._queue.get_nowait()) is not None:
                    self._answer([late])
        self._closing.set()
        self._checkpointing.set()
        if self._checkpointer.is_alive():
            self._checkpointer.join(timeout=5)
        self._writer.close()
        for connection in self._readers:
            connection.close()
        self._readers.clear()
        self.bell.close()
