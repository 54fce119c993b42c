"""Write schema.sql, or say that it is stale: ``python -m interlock.store.sqlite.schema_snapshot [--check]``.

Nothing reads schema.sql but people: it is what all migrations and the triggers of today come to, in one place.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from interlock.store.sqlite.schema import prepare

COMMAND = "python -m interlock.store.sqlite.schema_snapshot"
NOTICE = f"-- Generated from the migrations and the machines by `{COMMAND}`. Do not edit."
SNAPSHOT = Path(__file__).with_name("schema.sql")

# SQLite's own tables, and the record that sqlite-utils keeps of the migrations, are theirs to shape.
_OURS = """
SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND tbl_name NOT LIKE 'sqlite!_%' ESCAPE '!'
  AND tbl_name NOT LIKE '!_sqlite!_%' ESCAPE '!'
ORDER BY type = 'trigger', tbl_name, type <> 'table', name
"""


def dump(connection: sqlite3.Connection) -> str:
    """The schema of an open database: tables, each with its indexes, then triggers."""
    found = [str(sql).strip() for (sql,) in connection.execute(_OURS)]
    return "\n\n".join([NOTICE, *(f"{statement};" for statement in found)]) + "\n"


def fresh() -> str:
    """The schema of a database that has just been made."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "fresh.db"
        prepare(path)
        with closing(sqlite3.connect(path)) as connection:
            return dump(connection)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 when the file is current (afterwards), 1 when it is not."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write schema.sql, or check that it is current.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when it is stale")
    options = parser.parse_args(arguments)
    wanted = fresh()
    if not options.check:
        SNAPSHOT.write_text(wanted, "utf-8")
    elif not SNAPSHOT.is_file() or SNAPSHOT.read_text("utf-8") != wanted:
        sys.stderr.write(f"{SNAPSHOT} is stale; renew with: {COMMAND}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
