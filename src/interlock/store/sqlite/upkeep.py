"""What a database needs beside reading and writing: checkpoints in the background, copies, a look at its health."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from interlock.domain.crashpoints import crashpoint
from interlock.domain.errors import Conflict, Unavailable
from interlock.store.sqlite.errors import meaning

CHECKPOINT_PAUSE_SECONDS = 0.5
CHECKPOINT_PAGES = 1000

Connect = Callable[[], sqlite3.Connection]


class Checkpointer:
    """Moves committed pages from the WAL into the file in the background, so that no commit has to wait for it."""

    def __init__(self, path: Path, connect: Connect) -> None:
        self._wal = path.with_name(f"{path.name}-wal")
        self._connect = connect
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="interlock-checkpoint", daemon=True)
        self._thread.start()

    def there_was_a_commit(self) -> None:
        """Look soon whether the WAL has grown."""
        self._wanted.set()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._wanted.set()
        self._thread.join(timeout=5)

    def _loop(self) -> None:
        try:
            with closing(self._connect()) as connection:
                while True:
                    self._wanted.wait()
                    self._wanted.clear()
                    if self._closing.is_set():
                        break
                    self._checkpoint(connection)
                    # The WAL file keeps its size: without a pause every further commit would have one of its own.
                    self._closing.wait(CHECKPOINT_PAUSE_SECONDS)
        except sqlite3.Error:
            # The writer meets the same trouble and reports it; the next start moves the pages.
            return

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        try:
            if self._wal.stat().st_size < CHECKPOINT_PAGES * 4096:
                return
        except OSError:
            return
        with suppress(sqlite3.OperationalError):
            crashpoint("before_checkpoint")
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def backup(connect: Connect, target: Path) -> None:
    """Copy the database while it is in use. The copy gets a generation of its own, so that its fences are told apart.

    Raises :class:`Conflict` when ``target`` is there, :class:`Unavailable` when it cannot be written.
    """
    if target.exists():
        raise Conflict(f"{target} is there already", hint="name a new file")
    part = target.with_name(f"{target.name}.part")
    try:
        part.unlink(missing_ok=True)
        with closing(connect()) as source, closing(sqlite3.connect(part, isolation_level=None)) as copy:
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
        raise Unavailable(f"{target}: {error.strerror}", hint="name a file in a folder that you can write") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def find_faults(connection: sqlite3.Connection, faults: list[str]) -> None:
    """Add to ``faults`` what SQLite finds wrong with the file (integrity and foreign keys)."""
    faults.extend(str(row) for (row,) in connection.execute("PRAGMA integrity_check(20)") if row != "ok")
    for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        where = table if row is None else f"{table} row {row}"
        faults.append(f"{where} points to what is not in {parent}")
