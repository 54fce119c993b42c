"""The suite for stores: the SQLite store passes it, and each check fails for a store that breaks its promise."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import broken_stores as broken

from interlock.domain.task import Task
from interlock.testing import Broken, StoreConformance


def suite_for(kind: Any, **more: Any) -> StoreConformance:
    """The suite over a store of this kind."""

    class Suite(StoreConformance):
        patience_seconds = more.pop("patience", 60.0)

        async def make_store(self, folder: Path) -> Any:
            return kind(folder)

        def out_of_service(self, store: Any, folder: Path) -> Any:
            return locked(folder)

    return Suite()


@asynccontextmanager
async def locked(folder: Path) -> AsyncIterator[None]:
    """Another program holds the database."""
    with closing(sqlite3.connect(folder / "interlock.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


class TestAWholeStore(StoreConformance):
    """What the broken ones are made of keeps every promise."""

    async def make_store(self, folder: Path) -> Any:
        return broken.Whole(folder)

    def out_of_service(self, store: Any, folder: Path) -> Any:
        return locked(folder)


def unreadable(tx: Any, old: Any, new: Any) -> None:
    """Writes a run whose task cannot be read, as another one."""
    tx.save_run(old, msgspec.structs.replace(new, task=Task(title="?")))


CASES = [
    (
        broken.AnswersBeforeTheCommit,
        "an_answered_write_is_there_for_all",
        "another store on the same folder reads None",
    ),
    (broken.AnswersBeforeTheCommit, "an_answered_write_survives_a_crash", "a crash right afterwards leaves nothing"),
    (broken.KeepsNothing, "a_closed_store_has_kept_everything", "of 20 writes these are left: []"),
    (broken.TakesTurnsBadly, "no_write_is_lost_between_writers", "40 increments by four writers"),
    (broken.UndoesNothing, "a_work_that_raises_is_undone", "('x', 'changed')"),
    (broken.RaisesItsOwn, "a_work_that_raises_is_undone", "the caller got RuntimeError"),
    (broken.DragsOthersAlong, "one_that_raises_leaves_others_alone", "every third of which raised"),
    (broken.RaisesItsOwn, "a_work_is_committed_once", None),
    (broken.CommitsTwice, "a_work_is_committed_once", f"left '{'x' * 24}'"),
    (broken.SeesEveryMoment, "a_read_sees_one_moment", "one read saw '1' and then '2'"),
    (broken.WritesInReads, "writing_in_a_read_is_refused", "was not refused"),
    (broken.WrapsWhatReadsRaise, "a_read_answers_what_its_work_returns_or_raises", "the caller got RuntimeError"),
    (broken.PeeksAtThePast, "a_peek_sees_what_is_committed", "'2' is committed, and a peek sees '1'"),
    (broken.SaysItsOwnTrouble, "out_of_service_is_unavailable", "cannot serve raised OSError"),
    (broken.TellsNobody, "a_hint_is_heard", "nothing came of it"),
    (broken.TellsOwnCommitsOnly, "another_process_is_heard", "nothing came of it"),
    (broken.TellsOwnCommitsOnly, "a_hint_is_heard", None),
    (broken.ForgetsWhatCameBefore, "a_commit_before_the_wait_is_not_missed", "nothing came of it"),
    (broken.HasNoNews, "a_hint_is_heard", "after a hint something may start, and the news are"),
    (broken.HasNoNews, "news_leave_nothing_out", "a run is ready, and the news are"),
    (broken.LosesSavepoints, "a_part_is_undone_alone", "['changed inside', 'x', 'x', 'x']"),
    (broken.LosesSavepoints, "parts_inside_parts", "['x', 'x', 'x']"),
    (broken.UndoesTheRestToo, "parts_inside_parts", "[None, 'x', 'x']"),
    (broken.SwallowsOutages, "no_service_is_no_matter_of_a_part", "came out of a part as Undone"),
    (broken.bent(quarantine=broken.held_again), "quarantine", "twice, answered"),
    (broken.bent(quarantine=broken.not_held), "quarantine", "twice, answered"),
    (broken.bent(save_run=unreadable), "an_unreadable_task_is_not_written", "was written"),
    (
        broken.bent(set_meta=lambda tx, key, value: tx.set_meta(key, value and value.strip())),
        "values_come_back_as_they_were",
        "' ' came back as",
    ),
    (
        broken.bent(put_route=lambda tx, route: tx.put_route(msgspec.structs.replace(route, priority=0))),
        "values_come_back_as_they_were",
        "was written by put_route",
    ),
    (
        broken.bent(attempts=lambda tx, run: [msgspec.structs.replace(a, usage=None) for a in tx.attempts(run)]),
        "values_come_back_as_they_were",
        "result, usage and message",
    ),
    (broken.bent(runs_by_prefix=lambda tx, prefix: []), "runs_are_found", "by id, prefix, unique key and batch"),
    (broken.bent(delete_run=lambda tx, number: None), "runs_are_found", "this is left"),
    (broken.bent(batch_runs=lambda tx, batch: tx.batch_runs(batch)[::-1]), "lists_are_in_order", "batch_runs gives"),
    (broken.bent(find_runs=lambda tx, by: tx.find_runs(by)[::-1]), "lists_are_in_order", "find_runs gives"),
    (broken.bent(lanes=lambda tx, n, after=None: tx.lanes(n, after)[::-1]), "lists_are_in_order", "lanes gives"),
    (
        broken.bent(lanes=lambda tx, n, after=None: tx.lanes(n) if after is None else []),
        "lists_are_in_order",
        "by pages",
    ),
    (broken.bent(due=lambda tx, now, n: sorted(tx.due(now, n))), "lists_are_in_order", "due gives"),
    (broken.bent(next_due_ms=lambda tx: 7), "lists_are_in_order", "the next is due at 7"),
    (broken.bent(used=lambda tx: {**tx.used(), "tag:other": 1}), "slots_are_given_back", "in use are"),
    (broken.bent(recount=lambda tx: {}), "slots_are_given_back", "a recount gives {}"),
    (
        broken.bent(take_slots=lambda tx, run, keys: tx.take_slots(run, [k for k in keys if not k.startswith("role")])),
        "the_service_does_on_it_what_its_model_does",
        "holds the slots",
    ),
]


@pytest.mark.parametrize(("kind", "check", "words"), CASES, ids=[f"{c[1]}-{n}" for n, c in enumerate(CASES)])
def test_a_broken_store_is_found_out(kind: type[broken.Whole], check: str, words: str | None) -> None:
    """``words`` None: this one keeps the promise, so that it is no other check that finds it out."""
    suite = suite_for(kind, patience=2.0 if words == "nothing came of it" else 60.0)
    run = getattr(suite, f"test_{check}")
    if words is None:
        run()
        return
    with pytest.raises(Broken) as caught:
        run()
    promise, _, seen = str(caught.value).partition("\nBut: ")
    assert promise == run.__doc__
    assert words in seen


def test_every_check_is_shown_to_fail() -> None:
    checks = {name.removeprefix("test_") for name in dir(StoreConformance) if name.startswith("test_")}
    assert {check for _, check, words in CASES if words is not None} == checks


def test_a_suite_without_a_store_says_what_to_do() -> None:
    class Nothing(StoreConformance):
        pass

    with pytest.raises(NotImplementedError, match=r"Nothing\.make_store is to open your store"):
        Nothing().test_a_peek_sees_what_is_committed()


def test_it_leaves_no_folder_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    suite_for(broken.Whole).test_an_answered_write_survives_a_crash()
    with pytest.raises(Broken):
        suite_for(broken.UndoesNothing).test_a_work_that_raises_is_undone()
    assert list(tmp_path.iterdir()) == []
