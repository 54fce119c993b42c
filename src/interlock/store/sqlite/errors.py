"""What the errors of SQLite mean to whoever uses the store."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from interlock.domain.errors import Conflict, IllegalTransition, InterlockError, Unavailable

_MEANINGS = {
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space; Interlock goes on by itself"),
    sqlite3.SQLITE_READONLY: (
        "the database is read-only",
        "check the permissions of the data folder and its mount",
    ),
    sqlite3.SQLITE_BUSY: (
        "the database is busy: another program holds it",
        "close what has it open (a sqlite3 shell?)",
    ),
    sqlite3.SQLITE_LOCKED: ("the database is locked", "close what has it open (a sqlite3 shell?)"),
    sqlite3.SQLITE_PROTOCOL: ("the database is locked", "close what has it open (a sqlite3 shell?)"),
    sqlite3.SQLITE_CORRUPT: (
        "the database is damaged",
        "stop Interlock and put back a backup (`interlock backup` made it)",
    ),
    sqlite3.SQLITE_NOTADB: (
        "the file is no database",
        "stop Interlock and put back a backup (`interlock backup` made it)",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "the database cannot be opened",
        "check that the data folder exists and is yours",
    ),
    sqlite3.SQLITE_IOERR: ("reading or writing the database failed", "check the disk"),
    sqlite3.SQLITE_PERM: ("access to the database is denied", "check the permissions of the data folder"),
    sqlite3.SQLITE_NOMEM: ("no memory is left", "free some memory; Interlock goes on by itself"),
}


def meaning(error: sqlite3.Error, path: Path) -> InterlockError | None:
    """What a database error means to a user; None when it means a fault of ours."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    primary = code & 0xFF
    if primary in _MEANINGS:
        what, hint = _MEANINGS[primary]
        return Unavailable(f"{what} ({path}: {error})", hint=hint)
    if code == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
        text = str(error)
        kind = IllegalTransition if text.startswith("illegal_transition") else Conflict
        return kind(text.partition(": ")[2] or text)
    return None


def serves_nobody(error: Exception) -> bool:
    """Whether it is the store that fails, rather than what one piece of work wanted of it."""
    if isinstance(error, sqlite3.Error):
        return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in _MEANINGS
    return isinstance(error, (Unavailable, MemoryError))
