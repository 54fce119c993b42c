"""A look into a data folder that changes nothing in it: no migration, no new file, whoever else has it open."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from interlock.domain.errors import Unavailable
from interlock.domain.places import DATABASE
from interlock.domain.run import Route
from interlock.store.sqlite.queries import SQL
from interlock.store.sqlite.readonly import IMMUTABLE, READ_ONLY, uri
from interlock.store.sqlite.rows import ROUTES


def stored_routes(folder: Path) -> list[Route]:
    """The routes of a data folder; none where there is no database.

    Raises :class:`~interlock.domain.errors.Unavailable` when they cannot be read: another version wrote it, say.
    """
    path = folder / DATABASE
    wal = path.with_name(f"{DATABASE}-wal")
    try:
        if not path.exists():
            return []
        # Without a log nobody has it open, and SQLite need not make its shared-memory file.
        access = READ_ONLY if wal.exists() else IMMUTABLE
        with closing(sqlite3.connect(uri(path, access), uri=True, isolation_level=None)) as connection:
            return [ROUTES.read(row) for row in connection.execute(SQL["routes"]).fetchall()]
    except (OSError, sqlite3.Error, TypeError, ValueError) as error:
        raise Unavailable(
            f"the routes in {path} cannot be read: {error}", hint="`interlock doctor` looks for what is wrong"
        ) from error
