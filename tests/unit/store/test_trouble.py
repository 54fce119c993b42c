"""The engine in bad weather: what cannot be served is refused in words, nothing of it is kept, and it goes on once it can."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

sys.path.insert(0, str(Path(__file__).parent))

from store_files import add_event, add_run, database, insert, opened

from interlock.domain.errors import InterlockError, NotFound, Unavailable
from interlock.ports.store import Tx
from interlock.store.sqlite import SqliteStore
from interlock.store.sqlite.errors import meaning


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """A store without threads that does not wait long for others."""
    with closing(SqliteStore(tmp_path, create=True, inline=True, busy_ms=20)) as made:
        made.write_now(put("first"))
        yield made


def put(key: str, value: str = "x") -> Callable[[Tx], str]:
    """Work that writes ``key`` and says so."""

    def work(tx: Tx) -> str:
        tx.set_meta(key, value)
        return key

    return work


def get(key: str) -> Callable[[Tx], str | None]:
    """Work that reads ``key``."""
    return lambda tx: tx.meta(key)


def refuses(call: Callable[[], Any], match: str) -> None:
    """It is refused in words for a user: what, and what to do."""
    with pytest.raises(Unavailable, match=match) as caught:
        call()
    assert caught.value.hint


def serves(store: SqliteStore, key: str = "later") -> None:
    """It writes and reads."""
    assert store.write_now(put(key)) == key
    assert store.read_now(get(key)) == "x"


# busy


def test_another_program_holds_the_database(store: SqliteStore) -> None:
    with opened(store.path) as raw:
        raw.execute("BEGIN EXCLUSIVE")
        refuses(lambda: store.write_now(put("a")), "the database is busy: another program holds it")
        assert store.read_now(get("first")) == "x"  # readers do not wait for writers
        raw.execute("ROLLBACK")
    assert store.read_now(get("a")) is None
    serves(store)


def test_another_program_keeps_even_readers_out(tmp_path: Path) -> None:
    SqliteStore(tmp_path, create=True, inline=True).close()
    with opened(database(tmp_path)) as raw:
        raw.execute("PRAGMA locking_mode = EXCLUSIVE")
        raw.execute("BEGIN EXCLUSIVE")
        raw.execute("INSERT INTO meta VALUES ('raw', 'x')")
        refuses(lambda: SqliteStore(tmp_path, inline=True, busy_ms=20), "the database is busy")
        raw.execute("COMMIT")
    with closing(SqliteStore(tmp_path, inline=True, busy_ms=20)) as store:
        assert store.read_now(get("raw")) == "x"
        serves(store)


async def test_the_writer_thread_goes_on_after_a_busy_time(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path, create=True, busy_ms=20)) as store:
        with opened(store.path) as raw:
            raw.execute("BEGIN EXCLUSIVE")
            with pytest.raises(Unavailable, match="the database is busy"):
                await store.write(put("a"))
            raw.execute("ROLLBACK")
        assert await store.write(put("b")) == "b"
        assert await store.read(get("a")) is None


def test_it_waits_for_a_short_time(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path, create=True, inline=True, busy_ms=60_000)) as store, opened(store.path) as raw:
        raw.execute("BEGIN EXCLUSIVE")

        began = threading.Event()
        store._writer.connection.set_trace_callback(lambda _: began.set())

        async def both() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, store.write_now, put("a"))
                await trio.to_thread.run_sync(began.wait)
                raw.execute("ROLLBACK")

        trio.run(both)
        assert store.read_now(get("a")) == "x"


# full


def test_a_full_database(store: SqliteStore) -> None:
    (pages,) = store._writer.connection.execute("PRAGMA page_count").fetchone()
    store._writer.connection.execute(f"PRAGMA max_page_count = {pages}")
    refuses(lambda: store.write_now(put("a", "x" * 100_000)), "the disk is full")
    assert store.read_now(get("a")) is None
    assert store.read_now(get("first")) == "x"
    serves(store, "small")
    store._writer.connection.execute("PRAGMA max_page_count = 1000000")
    store.write_now(put("a", "x" * 100_000))
    assert store.integrity_faults() == []


async def test_a_full_database_fails_the_group_and_the_writer_goes_on(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path, create=True)) as store:
        (pages,) = await store.write(lambda tx: tx.connection.execute("PRAGMA page_count").fetchone())
        store._writer.connection.execute(f"PRAGMA max_page_count = {pages}")
        results: list[Any] = []

        async def one(key: str, size: int) -> None:
            try:
                results.append(await store.write(put(key, "x" * size)))
            except InterlockError as error:
                results.append(error.code)

        async with trio.open_nursery() as nursery:
            for index in range(5):
                nursery.start_soon(one, f"k{index}", 100_000)
        assert results == ["unavailable"] * 5
        store._writer.connection.execute("PRAGMA max_page_count = 1000000")
        await one("again", 100_000)
        assert results[-1] == "again"


class Mount:
    """A small file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.filler = folder / "filler"

    def again(self, how: str) -> None:
        """Mount it anew, ``ro`` or ``rw``."""
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.folder)], check=True, capture_output=True)

    def fill(self) -> None:
        """Leave no room."""
        with self.filler.open("ab", buffering=0) as filler:
            for size in (65536, 4096, 1):
                with suppress(OSError):
                    while True:
                        filler.write(b"x" * size)

    def empty(self) -> None:
        """Make room again."""
        self.filler.unlink()


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """A tmpfs of 2 MB; skipped where none can be mounted."""
    folder = tmp_path / "mount"
    folder.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], check=False, capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    yield Mount(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(mount: Mount) -> None:
    with closing(SqliteStore(mount.folder / "data", create=True, inline=True)) as store:
        store.write_now(put("first"))
        mount.fill()
        refuses(
            lambda: store.write_now(put("a", "x" * 300_000)), "the disk is full|reading or writing the database failed"
        )
        assert store.read_now(get("first")) == "x"
        assert store.read_now(get("a")) is None
        refuses(lambda: store.backup(mount.folder / "copy.db"), "the disk is full")
        assert not list(mount.folder.glob("copy.db*"))
        mount.empty()
        serves(store)
        assert store.integrity_faults() == []


def test_a_full_disk_when_the_store_is_made(mount: Mount) -> None:
    mount.fill()
    refuses(lambda: SqliteStore(mount.folder, create=True, inline=True), "full|No space|failed")
    mount.empty()
    with closing(SqliteStore(mount.folder, create=True, inline=True)) as store:
        serves(store)


# read-only


def test_a_read_only_file_system(mount: Mount) -> None:
    data = mount.folder / "data"
    SqliteStore(data, create=True, inline=True).close()
    mount.again("ro")
    with closing(SqliteStore(data, inline=True)) as store:
        assert store.read_only
        assert store.read_now(get("generation"))
        assert store.integrity_faults() == []
        refuses(lambda: store.write_now(put("a")), "the data folder is read-only")
    refuses(lambda: SqliteStore(mount.folder / "other", create=True, inline=True), "[Rr]ead-only")
    mount.again("rw")
    with closing(SqliteStore(data, inline=True)) as store:
        serves(store)


def test_what_a_crash_left_in_the_log_is_read_too(mount: Mount) -> None:
    """Without the log the file itself would be read, and lack what was committed last."""
    data = mount.folder / "data"
    SqliteStore(data, create=True, inline=True).close()
    child = (
        "import os, sys; from pathlib import Path; from interlock.store.sqlite import SqliteStore;"
        "store = SqliteStore(Path(sys.argv[1]), inline=True);"
        "store.write_now(lambda tx: tx.set_meta('a', 'late')); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", child, str(data)], check=True)
    assert (data / "interlock.db-wal").stat().st_size
    mount.again("ro")
    with closing(SqliteStore(data, inline=True)) as store:
        assert store.read_now(get("a")) == "late"
    mount.again("rw")


def test_an_older_schema_that_cannot_be_brought_forward(mount: Mount) -> None:
    data = mount.folder / "data"
    SqliteStore(data, create=True, inline=True).close()
    with closing(sqlite3.connect(data / "interlock.db")) as connection:
        connection.execute("PRAGMA user_version = 0")
    mount.again("ro")
    refuses(lambda: SqliteStore(data, inline=True), "cannot be brought to")
    mount.again("rw")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write whatever the permissions say")
def test_a_folder_without_the_right_to_write(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "data", create=True, inline=True).close()
    (tmp_path / "data" / "interlock.db.migrate").unlink()
    (tmp_path / "data").chmod(0o500)
    try:
        with closing(SqliteStore(tmp_path / "data", inline=True)) as store:
            assert store.read_now(get("generation"))
            refuses(lambda: store.write_now(put("a")), "the data folder is read-only")
    finally:
        (tmp_path / "data").chmod(0o700)
    with closing(SqliteStore(tmp_path / "data", inline=True)) as store:
        serves(store)


def test_a_connection_that_may_not_write(store: SqliteStore) -> None:
    store._writer.connection.execute("PRAGMA query_only = ON")
    refuses(lambda: store.write_now(put("a")), "the database is read-only")
    store._writer.connection.execute("PRAGMA query_only = OFF")
    serves(store)


# damaged


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A data folder whose pages of runs and of the events' index are noise."""
    SqliteStore(tmp_path, create=True, inline=True).close()
    path = database(tmp_path)
    with opened(path) as raw:
        for index in range(50):
            add_event(raw, add_run(raw, f"r{index}"))
        (size,) = raw.execute("PRAGMA page_size").fetchone()
        roots = [
            raw.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0]
            for name in ("runs", "run_events_run")
        ]
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        for root in roots:
            file.seek((root - 1) * size)
            file.write(b"\xa5" * size)
    return tmp_path


def test_a_damaged_file(damaged: Path) -> None:
    with closing(SqliteStore(damaged, inline=True)) as store:
        refuses(lambda: store.read_now(lambda tx: tx.queued_after(0, 9)), "the database is damaged")
        refuses(lambda: store.read_now(lambda tx: tx.run(1)), "the database is damaged")

        def work(tx: Tx) -> None:
            tx.set_meta("a", "x")
            tx.run(1)

        refuses(lambda: store.write_now(work), "the database is damaged")
        assert store.read_now(get("a")) is None
        serves(store)  # what lies elsewhere


def test_what_is_wrong_with_a_damaged_file(damaged: Path) -> None:
    with closing(SqliteStore(damaged, inline=True)) as store:
        faults = store.integrity_faults()
        assert faults
        assert all(isinstance(fault, str) and "\n" not in fault.strip() for fault in faults)


def test_nothing_is_wrong_with_a_whole_file(store: SqliteStore) -> None:
    assert store.integrity_faults() == []


def test_rows_that_point_nowhere_are_faults(store: SqliteStore) -> None:
    with opened(store.path) as raw:
        add_event(raw, 77)
        insert(raw, "needs", {"run": 77, "need": 78})
    faults = store.integrity_faults()
    assert faults == [
        "needs points to what is not in runs",
        "needs points to what is not in runs",
        "run_events row 1 points to what is not in runs",
    ]


def test_a_file_that_is_too_damaged_to_be_checked(store: SqliteStore) -> None:
    with opened(store.path) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with store.path.open("r+b") as file:
        file.write(b"not a database at all" * 500)
    (fault,) = store.integrity_faults()
    assert "no database" in fault or "damaged" in fault
    refuses(lambda: store.read_now(get("a")), "no database|damaged")


@pytest.mark.parametrize("noise", [b"\xa5" * 8192, b"all work and no play" * 100], ids=["noise", "text"])
def test_not_a_database(tmp_path: Path, noise: bytes) -> None:
    database(tmp_path).write_bytes(noise)
    for create in (True, False):
        refuses(lambda create=create: SqliteStore(tmp_path, create=create, inline=True), "the file is no database")  # type: ignore[misc]
    assert database(tmp_path).read_bytes() == noise


def test_a_file_that_was_cut_short(tmp_path: Path) -> None:
    SqliteStore(tmp_path, create=True, inline=True).close()
    whole = database(tmp_path).read_bytes()
    database(tmp_path).write_bytes(whole[: len(whole) // 2])
    refuses(lambda: SqliteStore(tmp_path, inline=True), "the database is damaged")
    database(tmp_path).write_bytes(whole)
    with closing(SqliteStore(tmp_path, inline=True)) as store:
        serves(store)


def test_a_log_that_was_cut_short_under_a_reader(store: SqliteStore) -> None:
    """SQLite rolls the reader back by itself here; what is said is still the first fault."""
    store.write_now(put("a", "x" * 50_000))
    wal = store.path.with_name("interlock.db-wal")
    kept = wal.read_bytes()
    os.truncate(wal, 0)
    refuses(lambda: store.read_now(get("a")), "reading or writing the database failed")
    wal.write_bytes(kept)
    assert store.read_now(get("a")) == "x" * 50_000
    serves(store)


# gone


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no Interlock data in") as caught:
        SqliteStore(tmp_path / "nowhere")
    assert "interlock init" in str(caught.value.hint)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_is_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    refuses(lambda: SqliteStore(tmp_path / name, create=True), "File exists|Not a directory")


def test_a_database_that_is_a_folder(tmp_path: Path) -> None:
    database(tmp_path).mkdir()
    refuses(lambda: SqliteStore(tmp_path, create=True), "cannot be opened")


def test_a_folder_that_is_gone_and_comes_back(tmp_path: Path) -> None:
    """SQLite itself would go on to write into the file that nobody can open any more."""
    data, away = tmp_path / "data", tmp_path / "away"
    with closing(SqliteStore(data, create=True, inline=True)) as store:
        data.rename(away)
        refuses(lambda: store.write_now(put("a")), "the database is gone")
        refuses(lambda: store.read_now(get("a")), "the database cannot be opened")
        assert not data.exists()
        away.rename(data)
        serves(store)
        assert store.read_now(get("a")) is None


def test_a_file_that_is_replaced(store: SqliteStore) -> None:
    copy = store.folder / "copy.db"
    store.backup(copy)
    copy.replace(store.path)
    refuses(lambda: store.write_now(put("a")), "another file is in its place")


def test_an_emptied_file_is_not_taken_for_a_fresh_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with closing(SqliteStore(data, create=True, inline=True)) as store:
        store.path.unlink()
        refuses(lambda: store.read_now(get("a")), "cannot be opened")
        assert not store.path.exists()


# what an error means


def fault(code: int | None) -> sqlite3.Error:
    error = sqlite3.OperationalError("it said so")
    if code is not None:
        error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (sqlite3.SQLITE_FULL, "disk is full"),
        (sqlite3.SQLITE_READONLY_DBMOVED, "read-only"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "busy"),
        (sqlite3.SQLITE_LOCKED_SHAREDCACHE, "locked"),
        (sqlite3.SQLITE_PROTOCOL, "locked"),
        (sqlite3.SQLITE_CORRUPT_INDEX, "damaged"),
        (sqlite3.SQLITE_NOTADB, "no database"),
        (sqlite3.SQLITE_CANTOPEN_ISDIR, "cannot be opened"),
        (sqlite3.SQLITE_IOERR_FSYNC, "reading or writing"),
        (sqlite3.SQLITE_PERM, "denied"),
        (sqlite3.SQLITE_NOMEM, "memory"),
    ],
)
def test_every_trouble_has_words(code: int, words: str) -> None:
    meant = meaning(fault(code), Path("/data/interlock.db"))
    assert isinstance(meant, Unavailable)
    assert words in meant.message
    assert "/data/interlock.db" in meant.message
    assert "it said so" in meant.message
    assert meant.hint


@pytest.mark.parametrize("code", [None, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT_CHECK, sqlite3.SQLITE_MISUSE])
def test_a_fault_of_ours_means_nothing_to_a_user(code: int | None) -> None:
    assert meaning(fault(code), Path("x")) is None


def test_an_error_of_the_system_when_the_store_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from interlock.store.sqlite import engine

    def no_more_files(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(engine, "prepare", no_more_files)
    refuses(lambda: SqliteStore(tmp_path, create=True), "Too many open files")
