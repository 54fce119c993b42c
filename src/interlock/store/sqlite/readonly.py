"""A data folder that cannot be written: questions are answered all the same."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote_from_bytes

from interlock.domain.errors import Unavailable
from interlock.store.sqlite.schema import check_version, schema_version

_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_REFUSED = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM})
READ_ONLY = "mode=ro"
IMMUTABLE = "mode=ro&immutable=1"


def is_denied(error: OSError | sqlite3.Error) -> bool:
    """Whether ``error`` may mean that the folder can be read, but not written."""
    if isinstance(error, sqlite3.Error):
        return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in _REFUSED
    return error.errno in _DENIED


def uri(path: Path, access: str) -> str:
    """The database as SQLite is told of it."""
    return f"file:{quote_from_bytes(os.fsencode(path.absolute()))}?{access}"


def read_only_access(path: Path) -> str:
    """How the database can be read: beside a writer of another user, else as a file that does not change.

    SQLite wants to make its shared-memory file in the folder. Where it cannot and nobody else did, there is no writer. Raises
    ``sqlite3.Error`` when it cannot be read either, :class:`Unavailable` when it is of another version than this program.
    """
    access = READ_ONLY
    try:
        found = _version(path, access)
    except sqlite3.Error:
        wal = path.with_name(f"{path.name}-wal")
        if wal.exists() and wal.stat().st_size:
            # What was committed last is in there, and an unchanging file would be read without it.
            raise
        access = IMMUTABLE
        found = _version(path, access)
    if found < schema_version():
        raise Unavailable(
            f"{path} is of version {found} and cannot be brought to {schema_version()}: it is read-only",
            hint="use it once where it can be written, or with the version of Interlock that made it",
        )
    return access


def _version(path: Path, access: str) -> int:
    with closing(sqlite3.connect(uri(path, access), uri=True, isolation_level=None)) as connection:
        return check_version(connection, path)


def refusal(path: Path) -> Unavailable:
    """What whoever wants to write is told."""
    return Unavailable(
        f"the data folder is read-only ({path.parent})", hint="check the permissions of the data folder and its mount"
    )
