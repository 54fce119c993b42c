"""A database file is made, brought forward, or left alone: never half of it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from interlock.domain.errors import Unavailable
from interlock.store.sqlite import DATABASE, SqliteStore, schema, schema_snapshot
from interlock.store.sqlite.schema import APPLICATION_ID, migration_scripts, schema_version
from interlock.store.sqlite.triggers import PREFIX

SECOND = (
    "9001_second",
    "CREATE TABLE later (id INTEGER PRIMARY KEY, word TEXT) STRICT;\nINSERT INTO later (word) VALUES ('x');\n",
)
BROKEN = ("9001_broken", "CREATE TABLE later (id INTEGER PRIMARY KEY) STRICT;\nINSERT INTO nowhere VALUES (1);\n")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database of today's version, closed."""
    SqliteStore(tmp_path, create=True, inline=True).close()
    return tmp_path / DATABASE


def pragma(path: Path, name: str) -> object:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [*connection.iterdump(), str(connection.execute("PRAGMA user_version").fetchone())]


def add_migration(monkeypatch: pytest.MonkeyPatch, *more: tuple[str, str]) -> None:
    scripts = [*migration_scripts(), *more]
    monkeypatch.setattr(schema, "migration_scripts", lambda: scripts)


def test_a_fresh_file(path: Path) -> None:
    assert pragma(path, "user_version") == schema_version() == len(migration_scripts())
    assert pragma(path, "application_id") == APPLICATION_ID
    assert pragma(path, "journal_mode") == "wal"
    with closing(sqlite3.connect(path)) as connection:
        (generation,) = connection.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()
        recorded = [name for (name,) in connection.execute("SELECT name FROM _sqlite_migrations ORDER BY id")]
    assert len(generation) == 6
    assert recorded == [name for name, _ in migration_scripts()]


def test_opening_again_changes_nothing(path: Path) -> None:
    before = dump(path)
    store = SqliteStore(path.parent, create=True, inline=True)
    store.close()
    assert store.migrated_from is None
    assert dump(path) == before


def test_every_table_is_strict_and_every_name_is_ours(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for name, sql in connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '%sqlite!_%' ESCAPE '!'"
        ):
            assert "STRICT" in sql.rpartition(")")[2], name
        triggers = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]
    assert all(name.startswith(PREFIX) for name in triggers)


def test_a_newer_version_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = dump(path)
    with pytest.raises(Unavailable, match=f"version 99, this Interlock knows up to {schema_version()}") as caught:
        SqliteStore(path.parent, inline=True)
    assert "upgrade Interlock" in str(caught.value.hint)
    assert dump(path) == before
    assert not list(path.parent.glob("*.bak"))


def test_an_older_version_is_backed_up_and_then_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dump(path)
    add_migration(monkeypatch, SECOND)
    with closing(SqliteStore(path.parent, inline=True)) as store:
        assert store.migrated_from == path.with_name(f"{DATABASE}.v{schema_version() - 1}.bak")
        with pytest.raises(sqlite3.IntegrityError, match="only a terminal run"):
            # The triggers are there after a migration as well.
            store.write_now(_delete_a_run)
    assert pragma(path, "user_version") == schema_version()
    assert dump(path.with_name(f"{DATABASE}.v{schema_version() - 1}.bak")) == before
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT word FROM later").fetchall() == [("x",)]


def _delete_a_run(tx: object) -> None:
    connection: sqlite3.Connection = tx.connection  # type: ignore[attr-defined]
    connection.execute(
        "INSERT INTO runs (id, state, task, content_hash, base_priority, priority, score, lane, ready, held, needs_left,"
        " pull, fence, remote, owner_epoch, spent_ms, dispatch_count, failures, losts, defers, offers, releases,"
        " created_ms, updated_ms) VALUES ('r1', 'queued', '{}', '', 0, 0, 1.0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1)"
    )
    try:
        connection.execute("DELETE FROM runs")
    except sqlite3.IntegrityError as error:
        # Raised without its code, so that it comes through as it is.
        raise sqlite3.IntegrityError(str(error)) from None


def test_a_migration_that_fails_leaves_the_old_version_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dump(path)
    with monkeypatch.context() as patch:
        add_migration(patch, BROKEN)
        with pytest.raises(Unavailable, match=r"cannot be brought to this version.*nowhere") as caught:
            SqliteStore(path.parent, inline=True)
        assert "nothing was changed" in str(caught.value.hint)
    assert dump(path) == before
    with closing(SqliteStore(path.parent, inline=True)) as store:
        assert store.migrated_from is None


def test_what_came_before_a_failing_migration_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_migration(monkeypatch, SECOND, ("9002_broken", BROKEN[1].replace("later", "even_later")))
    with pytest.raises(Unavailable, match="nowhere"):
        SqliteStore(path.parent, inline=True)
    assert pragma(path, "user_version") == schema_version() - 1


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / DATABASE
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
        connection.commit()
    before = path.read_bytes()
    with pytest.raises(Unavailable, match="not one of Interlock"):
        SqliteStore(tmp_path, create=True, inline=True)
    assert path.read_bytes() == before


def test_a_file_that_was_never_finished_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / DATABASE).touch()
    with closing(SqliteStore(tmp_path, inline=True)) as store:
        assert store.read_now(lambda tx: tx.meta("generation"))


def test_processes_that_open_a_fresh_folder_together(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from interlock.store.sqlite import SqliteStore;"
        "SqliteStore(Path(sys.argv[1]), create=True, inline=True).close()"
    )
    started = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(4)]
    assert [process.wait(60) for process in started] == [0, 0, 0, 0]
    assert pragma(tmp_path / DATABASE, "user_version") == schema_version()


def test_a_backup_is_a_database_with_a_generation_of_its_own(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / DATABASE
    copy.parent.mkdir()
    with closing(SqliteStore(path.parent, inline=True)) as store:
        store.backup(copy)
        generation = store.read_now(lambda tx: tx.meta("generation"))
    with closing(SqliteStore(copy.parent, inline=True)) as store:
        assert store.read_now(lambda tx: tx.meta("generation")) != generation
    assert not list(copy.parent.glob("*.part"))


# schema.sql


def test_the_snapshot_is_what_the_migrations_come_to() -> None:
    assert schema_snapshot.SNAPSHOT.read_text("utf-8") == schema_snapshot.fresh(), (
        f"renew with: {schema_snapshot.COMMAND}"
    )


def test_the_snapshot_makes_the_same_schema(path: Path) -> None:
    with closing(sqlite3.connect(":memory:")) as connection, closing(sqlite3.connect(path)) as migrated:
        connection.executescript(schema_snapshot.SNAPSHOT.read_text("utf-8"))
        assert schema_snapshot.dump(connection) == schema_snapshot.dump(migrated)


def test_the_check_says_when_it_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(schema_snapshot, "SNAPSHOT", tmp_path / "schema.sql")
    assert schema_snapshot.main(["--check"]) == 1
    assert schema_snapshot.COMMAND in capsys.readouterr().err
    assert not (tmp_path / "schema.sql").exists()
    assert schema_snapshot.main([]) == 0
    assert schema_snapshot.main(["--check"]) == 0
    (tmp_path / "schema.sql").write_text("-- of another time\n")
    assert schema_snapshot.main(["--check"]) == 1


def test_a_backup_that_was_put_back_is_in_wal_mode_again(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a", create=True, inline=True)
    store.backup(tmp_path / "copy.db")
    store.close()
    (tmp_path / "b").mkdir()
    (tmp_path / "copy.db").rename(tmp_path / "b" / DATABASE)
    SqliteStore(tmp_path / "b", inline=True).close()
    with closing(sqlite3.connect(tmp_path / "b" / DATABASE)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
def test_a_lost_database_is_not_made_anew_beside_its_attempts(tmp_path: Path, left: str) -> None:
    SqliteStore(tmp_path, create=True, inline=True).close()
    (tmp_path / "attempts" / "00000" / "1.1.abc").mkdir(parents=True)
    for path in tmp_path.glob(f"{DATABASE}*"):
        path.unlink()
    if left == "an empty file":
        (tmp_path / DATABASE).touch()
    with pytest.raises(Unavailable, match="is gone or empty, but there are attempts beside it"):
        SqliteStore(tmp_path, create=True, inline=True)


def test_a_database_that_is_written_over_while_open_is_noticed(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, create=True, inline=True)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as other:
        other.execute("UPDATE meta SET value = 'other' WHERE key = 'generation'")
        other.commit()
    with pytest.raises(Unavailable, match="another database was put in place"):
        store.write_now(lambda tx: tx.set_meta("a", "b"))
    store.close()
