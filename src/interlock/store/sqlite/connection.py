"""How a connection is opened: what every one of them is told before it is used."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from interlock.store.sqlite.readonly import uri


def connect(path: Path, *, writing: bool, busy_ms: int, access: str) -> sqlite3.Connection:
    """A connection in autocommit mode that any thread may use, one at a time. Raises :class:`sqlite3.Error`."""
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
