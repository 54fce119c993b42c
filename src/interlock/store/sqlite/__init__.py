"""The SQLite engine."""

from interlock.domain.places import DATABASE
from interlock.store.sqlite.engine import SqliteStore

__all__ = ["DATABASE", "SqliteStore"]
