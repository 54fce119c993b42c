"""Brings a database file to the version of this program: migrations forward only, triggers made anew after them."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interlock.domain.crashpoints import crashpoint
from interlock.domain.errors import Unavailable
from interlock.store.sqlite.triggers import PREFIX, trigger_statements

if TYPE_CHECKING:
    from sqlite_utils import Migrations

APPLICATION_ID = 0x494C_4F43  # "ILOC": tells `file` and us whose database this is


def statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one (``executescript`` would commit what is open)."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if re.sub(r"--.*", "", statement).strip():
        raise ValueError(f"a statement without its semicolon: {statement.strip()}")


def migration_scripts() -> list[tuple[str, str]]:
    """(name, SQL) of every migration, in order."""
    folder = files("interlock.store.sqlite").joinpath("migrations")
    scripts = sorted((item.name, item) for item in folder.iterdir() if item.name.endswith(".sql"))
    return [(name.removesuffix(".sql"), item.read_text("utf-8")) for name, item in scripts]


def schema_version() -> int:
    """Version of the schema that this program works with: the number of its migrations."""
    return len(migration_scripts())


def migrations() -> Migrations:
    """The migrations as sqlite-utils runs them: each in one transaction with the record of it."""
    # Only who migrates pays for the library.
    from sqlite_utils import Migrations  # noqa: PLC0415

    found = Migrations("interlock")
    for number, (name, script) in enumerate(migration_scripts(), start=1):

        def migrate(db: Any, script: str = script, number: int = number) -> None:
            for statement in statements(script):
                db.conn.execute(statement)
            renew_triggers(db.conn)
            # In the same transaction as the tables, so that version and tables never disagree.
            db.conn.execute(f"PRAGMA user_version = {number:d}")
            db.conn.execute(
                "INSERT INTO meta (key, value) VALUES ('generation', ?) ON CONFLICT DO NOTHING",
                (secrets.token_hex(3),),
            )
            crashpoint("migrate")

        found(name=name)(migrate)
    return found


def renew_triggers(connection: sqlite3.Connection) -> None:
    """Drop our triggers and make them as the machines say today. The caller has a transaction open."""
    # The escape keeps LIKE from taking the underscore for any character.
    rows = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE ? ESCAPE '!'",
        (f"{PREFIX.replace('_', '!_')}%",),
    )
    for (name,) in rows.fetchall():
        connection.execute(f'DROP TRIGGER "{name}"')
    for statement in trigger_statements():
        connection.execute(statement)


def current_triggers(connection: sqlite3.Connection) -> set[str]:
    """The CREATE statements of our triggers that are in the file."""
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
    return {sql for name, sql in rows if name.startswith(PREFIX)}


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time looks at the version and migrates."""
    descriptor = os.open(path.with_name(f"{path.name}.migrate"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _copy(connection: sqlite3.Connection, target: Path) -> None:
    part = target.with_name(f"{target.name}.part")
    part.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(part)) as copy:
            connection.backup(copy)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def check_version(connection: sqlite3.Connection, path: Path) -> int:
    """Version of the schema in a database. Raises :class:`Unavailable` when it is newer than ours, or no database of ours."""
    version = schema_version()
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION_ID and (tables or application):
        raise Unavailable(
            f"{path} is a SQLite database, but not one of Interlock",
            hint="name another folder with --data",
        )
    if found > version:
        raise Unavailable(
            f"{path} is of version {found}, this Interlock knows up to {version}",
            hint="upgrade Interlock (nothing was changed)",
        )
    return found


def prepare(path: Path, *, busy_ms: int = 10_000) -> Path | None:
    """Make the database, or bring it forward. Returns the backup that was made before a migration, if any.

    Raises :class:`Unavailable` when the file is of a newer version, is no database of ours, or cannot be written.
    """
    version = schema_version()
    with _alone(path), closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA busy_timeout = {busy_ms:d}")
        found = check_version(connection, path)
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        backup: Path | None = None
        # A backup that was put back is in another mode, in which every reader would block every writer.
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.execute("PRAGMA journal_mode = WAL")
        if not tables:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        elif found < version:
            backup = path.with_name(f"{path.name}.v{found}.bak")
            _copy(connection, backup)
        if found < version:
            from sqlite_utils import Database  # noqa: PLC0415

            try:
                # Without plugins: to look for them takes longer than to migrate.
                migrations().apply(Database(connection, recursive_triggers=False, execute_plugins=False))
            except sqlite3.Error as error:
                reached = connection.execute("PRAGMA user_version").fetchone()[0]
                if backup is None or reached == found:
                    raise
                raise Unavailable(
                    f"{path} was brought to version {reached}, but no further: {error}",
                    hint=f"what it was before is in {backup}; report this",
                ) from error
        elif current_triggers(connection) != set(trigger_statements()):
            connection.execute("BEGIN IMMEDIATE")
            renew_triggers(connection)
            connection.execute("COMMIT")
        return backup
