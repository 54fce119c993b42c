"""The writing connection: several pieces of work in one transaction, each undone alone when it fails.

A transaction has two halves, so that they can be done in different places: :meth:`Writer.begin` runs the pieces, and
:meth:`Writer.finish` commits, which waits for the disk.

A savepoint around each piece would make every statement in it dearer, and next to no piece fails after it has written. So
a group runs without savepoints first. When a piece raises and has written nothing, there is nothing to undo; when it has
written, the whole transaction is rolled back and run once more, with savepoints: a piece may run twice, and is committed once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import outcome

from interlock.domain.crashpoints import crashpoint
from interlock.domain.errors import InterlockError, Unavailable
from interlock.store.sqlite.errors import meaning
from interlock.store.sqlite.readonly import refusal
from interlock.store.sqlite.transaction import Spoiled, SqliteTx

_GENERATION = "SELECT value FROM meta WHERE key = 'generation'"

Work = Callable[[SqliteTx], Any]
Results = list[outcome.Outcome[Any]]


class Writer:
    """Not for two threads at once. A disk that fails never leaves it unable to serve the next group."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, busy_ms: int, read_only: bool) -> None:
        self.connection = connection
        self.path = path
        self.tx = SqliteTx(connection)
        self._busy_ms = busy_ms
        self._patient = True
        self._read_only = read_only
        self._inode = path.stat().st_ino
        self._generation = connection.execute(_GENERATION).fetchone()
        self._open: Results = []

    def begin(self, works: Sequence[Work], *, patient: bool = True) -> Results | None:
        """Run ``works`` in a transaction. Results when that is all, None when :meth:`finish` has to commit first.

        ``patient`` False: raises :class:`BlockingIOError` at once, with nothing done, when another process is writing.
        """
        self.tx.forget_news()
        if self._read_only:
            return [outcome.Error(refusal(self.path)) for _ in works]
        if self._moved():
            gone = Unavailable(
                f"the database is gone, or another file is in its place ({self.path})",
                hint="put it back; if it is a backup that you put there, start Interlock again",
            )
            return [outcome.Error(gone) for _ in works]
        before = self.connection.total_changes
        try:
            self._take_turn(patient=patient)
            if self.connection.execute(_GENERATION).fetchone() != self._generation:
                self.undo()
                other = Unavailable(f"another database was put in place of {self.path}", hint="start Interlock again")
                return [outcome.Error(other) for _ in works]
            try:
                self._open = [self._piece(work) for work in works]
            except Spoiled:
                self.undo()
                self._take_turn(patient=patient)
                self._open = [self._piece_apart(work) for work in works]
            if self.connection.total_changes != before:
                return None
            # Nothing was written, so there is no disk to wait for.
            return self.finish()
        except sqlite3.Error as error:
            return self._failed(error, len(works))
        except BaseException:
            # Ctrl-C in an inline store, say: the next transaction finds none open.
            self.undo()
            raise

    def finish(self) -> Results:
        """Commit what :meth:`begin` left open."""
        results, self._open = self._open, []
        try:
            if self.connection.in_transaction:
                crashpoint("before_commit")
                self.connection.execute("COMMIT")
                crashpoint("after_commit")
        except sqlite3.Error as error:
            return self._failed(error, len(results))
        except BaseException:
            self.undo()
            raise
        return results

    def group(self, works: Sequence[Work]) -> Results:
        """Both halves."""
        results = self.begin(works)
        return self.finish() if results is None else results

    def undo(self) -> None:
        """Roll back what is open, if anything is."""
        self.tx.forget_news()
        self.tx.careful = False
        if self.connection.in_transaction:
            # A disk that fails here too leaves the transaction open; the next try comes back to it.
            with suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")

    def _take_turn(self, *, patient: bool) -> None:
        if patient is not self._patient:
            self._patient = patient
            self.connection.execute(f"PRAGMA busy_timeout = {self._busy_ms if patient else 0:d}")
        try:
            self.connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if patient or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            raise BlockingIOError("another process is writing") from None

    def _failed(self, error: sqlite3.Error, count: int) -> Results:
        self.undo()
        refused = meaning(error, self.path) or Unavailable(f"the database refused the commit: {error}")
        return [outcome.Error(refused) for _ in range(count)]

    def _moved(self) -> bool:
        """Whether the file is gone: SQLite would go on to write into what nobody can open any more, and call it done."""
        try:
            return self.path.stat().st_ino != self._inode
        except OSError:
            return True

    def _piece(self, work: Work) -> outcome.Outcome[Any]:
        before = self.connection.total_changes
        try:
            return outcome.Value(work(self.tx))
        except Exception as error:
            refused = self._refused(error)
            if self.connection.total_changes != before:
                raise Spoiled from error
            return outcome.Error(refused)

    def _piece_apart(self, work: Work) -> outcome.Outcome[Any]:
        connection = self.connection
        self.tx.careful = True
        connection.execute("SAVEPOINT piece")
        try:
            value = work(self.tx)
        except Exception as error:  # noqa: BLE001 - its own caller gets it
            refused = self._refused(error)
            connection.execute("ROLLBACK TO piece")
            connection.execute("RELEASE piece")
            return outcome.Error(refused)
        else:
            connection.execute("RELEASE piece")
            return outcome.Value(value)
        finally:
            self.tx.careful = False

    def _refused(self, error: Exception) -> Exception:
        """What a piece is told that raised ``error``. Raises :class:`sqlite3.Error` when the whole transaction is lost."""
        if not self.connection.in_transaction:
            # SQLite itself rolled everything back (disk full, out of memory): no piece of the group stands.
            if isinstance(error, sqlite3.Error):
                raise error
            raise sqlite3.OperationalError(f"the transaction was rolled back: {error}") from error
        if not isinstance(error, sqlite3.Error):
            return error
        refused: InterlockError | None = meaning(error, self.path)
        if isinstance(refused, Unavailable):
            raise error
        return refused or error
