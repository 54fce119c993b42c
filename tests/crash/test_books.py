"""The books themselves: each kind of fault, made by hand, is found, and by its own name."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import crash_books
import pytest
from crash_yard import Yard

from interlock.machines.table import RUN

LIMITS = {"global": 2, "tag:gpu": 1}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which one run completed, one failed, and one waits, left by a daemon that was killed."""
    with Yard(tmp_path_factory.mktemp("books") / "yard") as yard:
        yard.configure(concurrency={"global": 2, "perTag": {"gpu": 1}})
        daemon = yard.up()
        done, bad = yard.submit("blink", "hopeless", tags=["gpu"])
        yard.until_state(done, "completed")
        yard.until_state(bad, "failed")
        daemon.kill()
        yard.submit("blink")
        assert yard.faults() == []
        return yard.data


@pytest.fixture
def books(original: Path, tmp_path: Path) -> Path:
    """A copy of it that may be forged; its books are in balance."""
    copy = tmp_path / "books"
    # the socket file of a daemon that was killed cannot be copied
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("*.sock"))
    assert crash_books.faults(copy / "interlock.db", limits=LIMITS) == []
    return copy


@contextmanager
def forged(data: Path) -> Iterator[sqlite3.Connection]:
    """A connection for which nothing in the database is sacred."""
    with closing(sqlite3.connect(data / "interlock.db", isolation_level=None)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f'DROP TRIGGER "{name}"')
        yield db


def test_the_diagram_says_what_the_machine_says() -> None:
    machine = {(str(state), event): str(target) for (state, event), target in RUN.moves.items()}
    assert crash_books.transitions() == machine | {(crash_books.NEW, "submit"): "queued"}


@pytest.mark.parametrize(
    ("forgery", "said"),
    [
        ("INSERT INTO slots (run, key) VALUES (3, 'global')", "#3 is queued and should hold the slots []"),
        ("UPDATE slot_counts SET used = 1 WHERE key = 'global'", "slots are counted as {'global': 1}"),
        ("UPDATE runs SET state = 'completed', ended_ms = 1, reason = 'done', message = 'x', ready = 0 WHERE number = 3",
         "#3: its events lead to queued under fence 0, it is completed"),
        ("UPDATE runs SET fence = 2 WHERE number = 1", "#1: its events lead to completed under fence 1"),
        ("UPDATE run_events SET to_state = 'queued' WHERE event = 'complete'", "goes from running to queued"),
        ("DELETE FROM run_events WHERE event = 'start' AND run = 1", "the log has a gap"),
        ("UPDATE run_events SET fence = 7 WHERE event = 'complete'", "is under fence 7, the claim of then has 1"),
        ("UPDATE run_events SET event = 'complete', from_state = 'completed', to_state = 'completed' WHERE seq = "
         "(SELECT max(seq) FROM run_events WHERE run = 2)", "goes from completed to completed; it was"),
        ("UPDATE runs SET owner_epoch = 2 WHERE number = 1", "#1 has had 2 owners; local claims and takeovers are 1"),
        ("DELETE FROM attempts WHERE run = 2 AND fence = 1", "attempts [2] under fence 2"),
        ("UPDATE attempts SET ended_ms = NULL WHERE run = 1", "attempt 1 is succeeded, the run is completed"),
        ("UPDATE attempts SET state = 'succeeded' WHERE run = 2", "more than one attempt succeeded"),
        ("PRAGMA foreign_keys = OFF; DELETE FROM runs WHERE number = 3", "has events and is not there"),
    ],
)  # fmt: skip
def test_a_forgery_is_found(books: Path, forgery: str, said: str) -> None:
    with forged(books) as db:
        for statement in forgery.split("; "):
            db.execute(statement)
    found = crash_books.faults(books / "interlock.db", limits=LIMITS)
    assert any(said in fault for fault in found), found


def test_a_limit_that_was_exceeded_for_a_moment_is_found_in_the_log(books: Path) -> None:
    found = crash_books.faults(books / "interlock.db", limits={"global": 2, "tag:gpu": 0})
    assert any("1 runs are active under tag:gpu, limited to 0" in fault for fault in found)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("a 1 begin|a 1 begin", "the agent of a began twice under fence 1"),
        (
            "a 1 begin|a 2 begin|a 1 end 0",
            "the agent of a under fence 1 said ['end', '0'] after that of fence 2 had begun",
        ),
        ("a 1 begin|a 1 end 0|a 2 begin|a 2 end 0", "the agent of a ended well 2 times"),
        ("a 1 begin|b 1 begin|a 1 end 1|a 2 begin|a 2 end 0|b 1 end 0", ""),
    ],
)
def test_what_agents_wrote_is_judged(lines: str, said: str) -> None:
    told = [(run, int(fence), words) for run, fence, *words in (line.split() for line in lines.split("|"))]
    assert list(crash_books.journal_faults(told)) == ([said] if said else [])
    if "ended well" in said:
        assert list(crash_books.journal_faults(told, harmed=["a"])) == []


def test_folders_and_dispatchers_that_are_left_over_are_found(books: Path) -> None:
    (books / "attempts" / "00" / "99.1.x").mkdir(parents=True)
    found = list(crash_books.folder_faults(books))
    assert any("99.1.x belongs to no attempt" in fault for fault in found)
    assert any("is still signed on" in fault for fault in found)
