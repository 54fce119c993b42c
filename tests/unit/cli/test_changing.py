"""Commands that change runs and files: what they refuse, what they say, and what is left to be done."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click
import pytest

import interlock.app
from interlock.cli.commands import doctor, stop
from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.run import Instance
from interlock.domain.states import Reason, StopKind
from interlock.runtimes import attempt_lock
from interlock.service import Service


def failing(desk: Any, *options: str) -> int:
    """A run that failed."""
    claim = desk.claimed("task", *options)
    desk.do(lambda service: service.fail(claim, "it broke", permanent=True))
    return int(claim.run)


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """A person at both ends, who answers every question so."""

    def sit(yes: bool) -> None:
        def confirm(*_: object, **__: object) -> None:
            if not yes:
                raise click.Abort

        monkeypatch.setattr(click, "confirm", confirm)
        for module in ("interlock.cli.commands.operate", "interlock.cli.commands.doctor"):
            monkeypatch.setattr(f"{module}.on_terminal", lambda: True)

    return sit


def test_a_run_with_an_agent_is_cancelled_when_that_is_gone(desk: Any) -> None:
    desk.claimed()
    assert "it is cancelled once its agent is gone" in desk.ok("cancel 1")
    desk.ok("add other")
    assert desk.ok("cancel --all --yes") == "1 run cancelled, 1 more once its agent is gone.\n"
    desk.claimed()
    assert desk.ok("cancel --all --yes") == "0 runs cancelled, 2 more once their agents are gone.\n"


def test_a_run_that_is_being_stopped_for_another_reason(desk: Any) -> None:
    claim = desk.claimed()
    desk.do(
        lambda service: service.request_stop(
            claim.run, StopKind.TIMEOUT, reason=Reason.TIMEOUT, message="it took too long", by="system"
        )
    )
    assert "is being stopped already (timeout: it took too long)" in desk.ok("cancel 1")


def test_many_are_cancelled_as_json(desk: Any) -> None:
    for tag in ("nightly", "nightly", "other"):
        desk.ok(f"add task --tag {tag}")
    done = desk.json("cancel --tag nightly")
    assert sorted(run["number"] for run in done) == [1, 2]
    assert desk.json("cancel --all") != []
    assert desk.json("cancel --all") == []
    assert "Name runs" in desk.refused("cancel", 2)


def test_a_person_is_asked_before_everything_is_cancelled(desk: Any, at_terminal: Callable[[bool], None]) -> None:
    desk.ok("add task")
    at_terminal(False)
    assert desk.interlock("cancel", "--all").status == 130
    assert len(desk.json("ps")) == 1
    at_terminal(True)
    assert desk.ok("cancel --all") == "1 run cancelled.\n"


def test_what_failed_is_run_again(desk: Any) -> None:
    assert "No run has failed" in desk.ok("retry --failed")
    first, second = failing(desk, "--tag", "nightly"), failing(desk)
    assert "Name runs, or give --failed" in desk.refused("retry", 2)
    assert "Name runs, or give --failed" in desk.refused("retry 1 --failed", 2)
    assert "--tag goes with --failed" in desk.refused("retry 1 --tag nightly", 2)
    told = desk.ok("retry --failed --tag nightly")
    assert told.startswith(f"#{first} is run again as #3 (task).\n")
    assert "interlock up" in told, "what has to happen first"
    assert [run["retry_of"] for run in desk.json(f"retry {second} {second} '#{second}'")] == [second], "once"


def test_one_that_refuses_does_not_keep_the_others(desk: Any) -> None:
    desk.ok("add one")
    desk.ok("add two")
    said = desk.interlock("hold", "1", "99", "2")
    assert said.status == 3
    assert said.out.count("is on hold") == 2
    assert "99" in said.err
    assert "Missing argument 'RUN...'" in desk.refused("hold", 2)
    assert [run["held"] for run in desk.json("unhold 1 2")] == [False, False]


def test_a_run_at_work_goes_on_when_it_is_held(desk: Any) -> None:
    claim = desk.claimed()
    assert "is claimed and goes on" in desk.ok("hold 1")
    desk.do(lambda service: service.fail(claim, "it broke"))
    assert ", on hold" in desk.ok("show 1")


def test_a_question_is_answered_once(desk: Any) -> None:
    claim = desk.claimed()
    desk.do(lambda service: service.block(claim, "which one?"))
    assert "has its answer and is queued again." in desk.ok("answer 1 'the second'")
    assert "has asked nothing" in desk.refused("answer 1 again", 4)


def test_a_pause_is_the_next_thing_to_be_ended(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def somebody(_: object) -> tuple[str, ...]:
        return ("a dispatcher",)

    desk.ok("pause")
    monkeypatch.setattr(interlock.app.Interlock, "alive", somebody)
    assert "Dispatching is paused: `interlock resume`." in desk.ok("add task")
    desk.ok("resume")
    assert "added" in desk.ok("add task")


def test_a_task_whose_need_has_failed_has_ended_already(desk: Any) -> None:
    number = failing(desk)
    assert "It is failed already: " in desk.ok(f"add after --needs '#{number}'")


def test_an_agent_that_only_a_backlog_named_is_known(desk: Any) -> None:
    from interlock.domain.settings import Agent

    desk.do(lambda service: service.put_adhoc_agent(Agent(name="./agent.sh", command="./agent.sh")))
    assert "added" in desk.ok("add task --agent ./agent.sh")


def test_content_that_is_no_text(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from interlock.sources import text

    monkeypatch.setattr(text, "read_bytes", lambda _: b"ab\xff")
    assert "byte 2 of standard input is not UTF-8" in desk.refused("add task --content -", 2)


# the data folder


def ended(desk: Any, count: int) -> list[AttemptFiles]:
    """Runs that have ended, with folders of attempts on disk."""
    made = []
    for number in range(1, count + 1):
        claim = desk.claimed()
        desk.do(lambda service, claim=claim: service.complete(claim))
        files = AttemptFiles(desk.folder / ".interlock" / "attempts" / "0" / f"{number}.1.g")
        files.folder.mkdir(parents=True)
        files.lock.touch()
        made.append(files)
    return made


def test_prune_says_what_it_deleted(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert desk.json("prune --older-than 1ms") == {"dry_run": False, "runs": 0}
    assert "No run ended before" in desk.ok("prune --older-than 30d")
    ended(desk, 5)
    assert desk.json("prune --older-than 1ms --dry-run") == {"dry_run": True, "runs": 5}
    assert "5 runs ended before" in desk.ok("prune --older-than 1ms --dry-run")
    monkeypatch.setattr("interlock.cli.commands.prune.PAGE", 2)
    assert desk.json("prune --older-than 1ms")["runs"] == 5
    assert desk.json("ps --all") == []


def test_prune_names_folders_that_stay(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(desk, 2)

    async def prune(self: Service, before: int, *, bound: int = 500) -> list[tuple[int, list[str]]]:
        return [(1, ["attempts/0/1.1.g"]), (2, ["attempts/0/2.1.g"])]

    monkeypatch.setattr(Service, "prune", prune)
    lock = attempt_lock.take(AttemptFiles(desk.folder / ".interlock" / "attempts" / "0" / "1.1.g"))
    assert lock is not None
    try:
        said = desk.interlock("prune", "--older-than", "1ms")
    finally:
        os.close(lock)
    assert said.status == 1
    assert "and 1 attempt folder." in said.out
    assert "attempts/0/1.1.g could not be removed: a process still works in it" in said.err
    assert sorted(os.listdir(desk.folder / ".interlock" / "attempts" / "0")) == ["1.1.g"]


def test_doctor_names_what_is_wrong_with_the_folder(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files, other, *_ = ended(desk, 5)
    (files.folder.parent / "no attempt").mkdir()
    assert "5 attempt folders without a run: " in desk.interlock("doctor").out
    monkeypatch.setattr(doctor, "LITTLE_SPACE", 1 << 80)
    monkeypatch.setattr(os, "access", lambda *_: False)
    lock = attempt_lock.take(files)
    assert lock is not None
    other.lock.unlink()
    other.lock.symlink_to(other.lock)
    try:
        said = desk.interlock("doctor", "--repair")
    finally:
        os.close(lock)
    assert said.status == 1
    for words in (
        "cannot be written",
        "MiB are free",
        "3 attempt folders without a run removed (mended)",
        "attempts/0/1.1.g belongs to no attempt",
        "attempts/0/2.1.g belongs to no attempt",
        "4 faults.",
    ):
        assert words in said.out
    monkeypatch.undo()


def test_doctor_mends_the_books(desk: Any) -> None:
    import sqlite3

    desk.claimed()
    with sqlite3.connect(desk.folder / ".interlock" / "interlock.db") as database:
        for (trigger,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f'DROP TRIGGER "{trigger}"')
        database.execute("UPDATE slot_counts SET used = used + 3")
    database.close()
    said = desk.interlock("doctor", "--json")
    assert "in the books, 1 by a recount" in said.out
    assert said.status == 1
    assert "(mended)" in desk.interlock("doctor", "--repair").out
    assert "by a recount" not in desk.interlock("doctor", "--json").out


def test_forgetting_is_for_what_nobody_looks_after(
    desk: Any, monkeypatch: pytest.MonkeyPatch, at_terminal: Callable[[bool], None]
) -> None:
    desk.claimed()
    said = desk.interlock("doctor", "--forget", "1")
    assert said.status == 4
    assert "looked after by nobody" in said.err
    assert "has to be confirmed" in said.err
    at_terminal(False)
    assert desk.interlock("doctor", "--forget", "1").status == 130
    at_terminal(True)
    assert "is dispatched now" in desk.ok("doctor --forget 1")


def test_config_check_of_an_argv(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "true 'a b'" in desk.ok("config check")
    (desk.folder / "interlock.yaml").unlink()
    assert "there is no interlock.yaml here" in desk.refused("config check", 3)


def test_init_where_nothing_can_be_written(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (desk.folder / "file").touch()
    assert "check that the folder is yours to write" in desk.refused("--config file/below/interlock.yaml init", 5)


# stopping a dispatcher


class Dispatchers:
    """Dispatchers that end one look after the other."""

    def __init__(self, *looks: tuple[int, ...]) -> None:
        self.looks = list(looks)

    async def alive(self) -> tuple[Instance, ...]:
        now = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return tuple(
            Instance(id=f"here:{pid}:a", host="here", pid=pid, boot_id="b", ordinal=0, state="active") for pid in now
        )


def test_stop_waits_and_says_for_whom(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    working = [2, 2, 1, 0]

    async def agents(*_: object) -> int:
        return working.pop(0) if working else 0

    dispatchers = Dispatchers((7, 8), (7, 8), (7, 8), (8,), (8,), ())
    monkeypatch.setattr(interlock.app.Interlock, "alive", dispatchers.alive)
    monkeypatch.setattr(stop, "_agents", agents)
    monkeypatch.setattr(stop, "LOOK_SECONDS", 0)
    said = desk.interlock("stop")
    assert (said.status, said.out) == (0, "Stopped.\n")
    assert said.err.splitlines() == [
        "2 dispatchers (pids 7, 8): running agents finish, nothing new starts.",
        "2 agents still working",
        "1 agent still working",
    ]


def test_who_leaves_the_waiting_is_told_what_goes_on(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(interlock.app.Interlock, "alive", Dispatchers((7,)).alive)
    monkeypatch.setattr(stop, "_wait", interrupted)
    said = desk.interlock("stop")
    assert said.status == 130
    assert "It goes on stopping. `interlock stop --kill` does not wait for them." in said.err
    assert desk.interlock("stop", "--kill").err.endswith("It goes on stopping.\n")


def test_progress_on_a_terminal_is_not_told_line_by_line(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def agents(*_: object) -> int:
        return 1

    monkeypatch.setattr(interlock.app.Interlock, "alive", Dispatchers((7,), (7,), ()).alive)
    monkeypatch.setattr(stop, "_agents", agents)
    monkeypatch.setattr(stop, "LOOK_SECONDS", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said = desk.interlock("stop")
    assert "1 agent still working" in said.err
    assert "1 agent still working" not in said.err.splitlines(), "it is a spinner's text"
    assert "1 agent left running" in said.out
