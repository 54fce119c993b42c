"""Opening a file: what is refused stays as it was, and rules that differ from the machines' are renewed."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store_files import add_run, contents, database, opened

from interlock.domain.errors import Unavailable
from interlock.store.sqlite import SqliteStore, schema, schema_snapshot
from interlock.store.sqlite.schema import (
    APPLICATION_ID,
    current_triggers,
    migration_scripts,
    schema_version,
    statements,
)
from interlock.store.sqlite.triggers import trigger_statements


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database of today's version, with a run in it, closed."""
    SqliteStore(tmp_path, create=True, inline=True).close()
    with opened(database(tmp_path)) as raw:
        add_run(raw, "a")
    return database(tmp_path)


def reopen(path: Path) -> None:
    SqliteStore(path.parent, inline=True).close()


def extend(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> None:
    """A later version of the program, with these migrations more."""
    more = [(f"{schema_version() + index:04d}_more", script) for index, script in enumerate(scripts, start=1)]
    known = [*migration_scripts(), *more]
    monkeypatch.setattr(schema, "migration_scripts", lambda: known)


# versions


def test_a_newer_file_stays_as_it_was_to_the_byte(path: Path) -> None:
    with opened(path) as raw:
        raw.execute(f"PRAGMA user_version = {schema_version() + 1}")
    before = path.read_bytes()
    with pytest.raises(
        Unavailable, match=rf"is of version {schema_version() + 1}, this Interlock knows up to {schema_version()}"
    ):
        reopen(path)
    assert path.read_bytes() == before
    assert sorted(item.name for item in path.parent.iterdir()) == ["interlock.db", "interlock.db.migrate"]


@pytest.mark.parametrize("before", [None, b"a backup of another day" * 99])
def test_the_backup_is_the_old_file_whole(path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes | None) -> None:
    version = schema_version()
    old = contents(path)
    backup = path.with_name(f"interlock.db.v{version}.bak")
    if before is not None:
        backup.write_bytes(before)
    with monkeypatch.context() as patch:
        extend(patch, "ALTER TABLE meta ADD COLUMN more TEXT;")
        with closing(SqliteStore(path.parent, inline=True)) as store:
            assert store.migrated_from == backup
    with pytest.raises(Unavailable, match="knows up to"):
        reopen(path)  # the old program, on the new file
    assert contents(backup) == old
    assert contents(path)["runs"] == old["runs"]
    assert not list(path.parent.glob("*.part"))
    backup.replace(path)
    reopen(path)
    assert contents(path) == old


def test_a_migration_may_use_names_and_rows_of_the_one_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extend(
        monkeypatch,
        "CREATE TABLE one (a TEXT) STRICT;\nINSERT INTO one VALUES ('x;y');\n",
        "-- a comment; with a semicolon\nALTER TABLE one RENAME TO two;\nUPDATE two SET a = a || '''';\n-- the end\n",
    )
    reopen(path)
    with opened(path) as raw:
        assert raw.execute("SELECT a FROM two").fetchall() == [("x;y'",)]
        assert raw.execute("PRAGMA user_version").fetchone() == (schema.schema_version(),)
        assert current_triggers(raw) == set(trigger_statements())


def test_a_later_migration_that_fails_says_how_far_it_came_and_where_the_old_file_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = contents(path)
    extend(monkeypatch, "CREATE TABLE one (a TEXT) STRICT;", "INSERT INTO nowhere VALUES (1);")
    reached = schema.schema_version() - 1
    with pytest.raises(Unavailable, match=f"to version {reached}, but no further: no such table: nowhere") as caught:
        reopen(path)
    backup = path.with_name(f"interlock.db.v{reached - 1}.bak")
    assert str(backup) in str(caught.value.hint)
    assert contents(backup) == old


def test_a_migration_that_breaks_a_rule_leaves_the_old_version_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = contents(path)
    extend(monkeypatch, "CREATE TABLE one (a TEXT) STRICT;\nDELETE FROM runs;")
    with pytest.raises(Unavailable, match=r"cannot be brought to this version .*only a terminal run may be deleted"):
        reopen(path)
    assert contents(path) == old


def test_a_fresh_file_whose_first_migration_fails_can_be_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            schema, "migration_scripts", lambda: [("0001_broken", "CREATE TABLE runs (a);\nSELECT * FROM nowhere;")]
        )
        with pytest.raises(Unavailable, match="nowhere"):
            SqliteStore(tmp_path, create=True, inline=True)
    with closing(SqliteStore(tmp_path, create=True, inline=True)) as store:
        assert store.read_now(lambda tx: tx.meta("generation"))


def test_every_file_has_a_generation_of_its_own(tmp_path: Path) -> None:
    found = set()
    for name in "abc":
        with closing(SqliteStore(tmp_path / name, create=True, inline=True)) as store:
            found.add(store.read_now(lambda tx: tx.meta("generation")))
    assert len(found) == 3


# statements of a script


def test_a_script_is_cut_into_statements() -> None:
    script = (
        "-- one; two\nCREATE TRIGGER t AFTER INSERT ON a BEGIN\n SELECT 1;\n SELECT ';';\nEND;\n\nSELECT 2; -- end\n"
    )
    assert next(statements(script)).strip().endswith("END;")
    assert len(list(statements(script))) == 2


@pytest.mark.parametrize("script", ["SELECT 1", "SELECT 1;\nSELECT 2", "SELECT 1;\nSELECT ';\n"])
def test_a_statement_without_its_end_is_not_dropped_in_silence(script: str) -> None:
    with pytest.raises(ValueError, match="without its semicolon"):
        list(statements(script))


@pytest.mark.parametrize(("name", "script"), migration_scripts())
def test_every_migration_can_be_cut(name: str, script: str) -> None:
    assert list(statements(script))
    assert name[:4].isdigit()


# files of others


@pytest.mark.parametrize("pragma", ["user_version = 1", "application_id = 77", f"user_version = {2**31 - 1}"])
def test_a_foreign_file_is_refused_whatever_its_numbers(tmp_path: Path, pragma: str) -> None:
    with opened(database(tmp_path)) as raw:
        raw.execute("CREATE TABLE runs (x)")
        raw.execute(f"PRAGMA {pragma}")
    before = database(tmp_path).read_bytes()
    for create in (True, False):
        with pytest.raises(Unavailable, match="not one of Interlock"):
            SqliteStore(tmp_path, create=create, inline=True)
    assert database(tmp_path).read_bytes() == before


def test_a_foreign_file_without_tables_is_refused_too(tmp_path: Path) -> None:
    with opened(database(tmp_path)) as raw:
        raw.execute("PRAGMA application_id = 77")
    with pytest.raises(Unavailable, match="not one of Interlock"):
        SqliteStore(tmp_path, create=True, inline=True)


def test_file_knows_whose_it_is(path: Path) -> None:
    assert int.from_bytes(path.read_bytes()[68:72], "big") == APPLICATION_ID


@pytest.mark.parametrize("name", ["with space", "50%", "a?mode=memory", "a#b", "ümläut", "a;b'c\"d", "%41"])
def test_a_folder_of_any_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(SqliteStore(Path(name), create=True, inline=True)) as store:
        store.write_now(lambda tx: tx.set_meta("a", "x"))
        assert store.read_now(lambda tx: tx.meta("a")) == "x"
    assert [item.name for item in tmp_path.iterdir()] == [name]
    assert database(tmp_path / name).exists()


# triggers


def test_triggers_are_renewed_when_the_machines_differ(path: Path) -> None:
    with opened(path) as raw:
        raw.execute("DROP TRIGGER interlock_runs_changed")
        raw.execute("DROP TRIGGER interlock_runs_kept")
        raw.execute("CREATE TRIGGER interlock_runs_kept BEFORE DELETE ON runs BEGIN SELECT 1; END")
        raw.execute("CREATE TRIGGER interlock_of_old BEFORE DELETE ON meta BEGIN SELECT RAISE(ABORT, 'old'); END")
        raw.execute("CREATE TRIGGER interlockxtheirs AFTER DELETE ON meta BEGIN SELECT 1; END")
        raw.execute("CREATE TRIGGER mine AFTER DELETE ON meta BEGIN SELECT 1; END")
    reopen(path)
    with opened(path) as raw:
        assert current_triggers(raw) == set(trigger_statements())
        names = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")}
        assert {"mine", "interlockxtheirs"} < names
        assert "interlock_of_old" not in names
        with pytest.raises(sqlite3.IntegrityError, match="only a terminal run"):
            raw.execute("DELETE FROM runs")


def test_triggers_that_are_as_they_should_be_are_left_alone(path: Path) -> None:
    def cookie() -> int:
        with opened(path) as raw:
            (value,) = raw.execute("PRAGMA schema_version").fetchone()
            return int(value)

    before = cookie()
    reopen(path)
    assert cookie() == before


def test_every_trigger_is_named_as_ours_and_once() -> None:
    names = [sql.split()[2] for sql in trigger_statements()]
    assert len(set(names)) == len(names)
    assert all(name.startswith("interlock_") for name in names)


# schema.sql


def test_the_snapshot_can_be_written_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "schema.sql"
    assert schema_snapshot.main(["--file", str(file), "--check"]) == 1
    assert capsys.readouterr().err == f"{file} is stale\nrenew with: {schema_snapshot.COMMAND} --file {file}\n"
    assert schema_snapshot.main(["--file", str(file)]) == 0
    assert schema_snapshot.main(["--file", str(file), "--check"]) == 0
    assert file.read_text("utf-8") == schema_snapshot.SNAPSHOT.read_text("utf-8")


def test_the_snapshot_has_everything_of_a_fresh_file(path: Path) -> None:
    text = schema_snapshot.SNAPSHOT.read_text("utf-8")
    with opened(path) as raw:
        for name, table in raw.execute("SELECT name, tbl_name FROM sqlite_master WHERE sql IS NOT NULL"):
            assert (name in text) == ("sqlite_" not in table), name
        assert schema_snapshot.dump(raw) == text
