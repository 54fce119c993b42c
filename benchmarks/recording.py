"""The floor of the service: the very statements that it executes, without the service.

:func:`recorded` notes what a program sends to SQLite, statement and parameters, by handing it cursors that write down what they
are given. :func:`replay` executes that again on a copy of the database as it was before: same schema, same triggers, same
values, ``synchronous=FULL``; plain :mod:`sqlite3`, in transactions of so many steps, and nothing else.

Only what stood between BEGIN IMMEDIATE and COMMIT is kept, without the statements that steer transactions: those are the
floor's own.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

STEERING = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "END")


class Statement(msgspec.Struct, frozen=True):
    """One call: ``many`` is an executemany, its ``values`` a list of rows."""

    sql: str
    values: Any
    many: bool = False

    @property
    def first_word(self) -> str:
        """SELECT, UPDATE, ...; the comments before it are passed over."""
        lines = (line.strip() for line in self.sql.splitlines())
        return next((line.split(None, 1)[0].rstrip(";").upper() for line in lines if line and line[:2] != "--"), "")


class _Cursor(sqlite3.Cursor):
    """A cursor that notes what it is given."""

    connection: _Connection

    def execute(self, sql: str, parameters: Any = (), /) -> _Cursor:
        self.connection.note(Statement(sql, _kept(parameters)))
        done = super().execute(sql, parameters)
        self.connection.after(sql)
        return done

    def executemany(self, sql: str, rows: Any, /) -> _Cursor:
        kept = [_kept(row) for row in rows]
        self.connection.note(Statement(sql, kept, many=True))
        return super().executemany(sql, kept)


class _Connection(sqlite3.Connection):
    """A connection that notes everything."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.noted: list[Statement] = []
        self.note: Callable[[Statement], None] = self.noted.append
        self.after: Callable[[str], None] = lambda _: None

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(_Cursor if factory is None else factory)

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, rows: Any, /) -> Any:
        return self.cursor().executemany(sql, rows)


def _kept(parameters: Any) -> Any:
    return dict(parameters) if isinstance(parameters, dict) else tuple(parameters)


class Recording:
    """What was sent to SQLite by every connection that was opened meanwhile."""

    def __init__(self) -> None:
        self.connections: list[_Connection] = []

    def written(self) -> list[Statement]:
        """The statements of all writing transactions. Raises ValueError when one was rolled back: it cannot be replayed."""
        kept: list[Statement] = []
        for connection in self.connections:
            inside = False
            for statement in connection.noted:
                word = statement.first_word
                if word == "BEGIN":
                    inside = "IMMEDIATE" in statement.sql.upper()
                elif inside and word == "ROLLBACK":
                    raise ValueError("a transaction was rolled back, so what was recorded cannot be replayed")
                elif word in ("COMMIT", "END"):
                    inside = False
                elif inside and word not in STEERING:
                    kept.append(statement)
        return kept


@contextmanager
def recorded() -> Iterator[Recording]:
    """Note what goes through every connection that is opened in the block."""
    recording = Recording()

    def take(connection: _Connection) -> None:
        recording.connections.append(connection)

    with _connections(take):
        yield recording


@contextmanager
def commits_stamped() -> Iterator[list[int]]:
    """``time.time_ns()`` of each moment in which a COMMIT was done, on any connection that is opened in the block."""
    stamps: list[int] = []

    def stamp(sql: str) -> None:
        if sql.startswith("COMMIT"):
            stamps.append(time.time_ns())

    def take(connection: _Connection) -> None:
        connection.note = lambda _: None
        connection.after = stamp

    with _connections(take):
        yield stamps


@contextmanager
def _connections(take: Callable[[_Connection], None]) -> Iterator[None]:
    connect = sqlite3.connect

    def opened(*arguments: Any, **named: Any) -> _Connection:
        connection: _Connection = connect(*arguments, **{**named, "factory": _Connection})
        take(connection)
        return connection

    with mock.patch.object(sqlite3, "connect", opened):
        yield


def replay(database: Path, statements: list[Statement], *, transactions: int) -> float:
    """Execute ``statements`` on ``database``, spread evenly over so many transactions. Wall-clock seconds."""
    with closing(sqlite3.connect(database, isolation_level=None, cached_statements=512)) as connection:
        for pragma in ("foreign_keys = ON", "temp_store = MEMORY", "cache_size = -32768", "synchronous = FULL"):
            connection.execute(f"PRAGMA {pragma}")
        each = -(-len(statements) // max(1, transactions))
        calls = [
            (connection.executemany if statement.many else connection.execute, statement.sql, statement.values)
            for statement in statements
        ]
        began = time.perf_counter()
        for start in range(0, len(calls), each):
            connection.execute("BEGIN IMMEDIATE")
            for call, sql, values in calls[start : start + each]:
                call(sql, values).fetchall()
            connection.execute("COMMIT")
        return time.perf_counter() - began
