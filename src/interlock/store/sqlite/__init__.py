"""The SQLite engine."""

from interlock.store.sqlite.engine import DATABASE, SqliteStore

__all__ = ["DATABASE", "SqliteStore"]
