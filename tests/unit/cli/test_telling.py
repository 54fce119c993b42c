"""Commands that tell: what they say of runs in every state."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from interlock import diagrams
from interlock.cli.commands import logs
from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.run import Claim
from interlock.domain.states import Reason, StopKind
from interlock.domain.task import Task
from interlock.service import Service
from interlock.service.claims import claim_of

LONG = "\n".join(f"line {number}" for number in range(20))


def test_show_of_a_run_that_somebody_works_on(desk: Any) -> None:
    desk.ok("add needed")
    claim = desk.claimed("busy", "--timeout", "5m", "--priority", "3", "--tag", "gpu", "--content", LONG)
    told = desk.ok(f"show {claim.run}")
    assert "claimed for " in told
    assert "held by" in told
    assert "elsewhere, fence 1" in told
    assert "times out" in told
    assert "Counts under: " in told
    assert "  ... 8 more lines: --json has all" in told
    assert f"`interlock why {claim.run}` says what it waits for" in told
    assert "interlock logs" not in told, "its output is where its agent is"


def test_show_of_needs_on_both_sides(desk: Any) -> None:
    for number in range(25):
        desk.ok(f"add 'task {number}'" + (" --needs '#1'" if number else ""))
    told = desk.ok("show 2")
    assert "Needs" in told
    assert "waits for it" in told
    told = desk.ok("show 1")
    assert "Waiting for it: #2, #3" in told
    assert "#21 and 4 more" in told
    assert desk.json("show 2")["needs"][0]["number"] == 1


def test_show_of_one_that_was_tried_and_waits(desk: Any) -> None:
    claim = desk.claimed()
    desk.do(lambda service: service.fail(claim, "it broke"))
    told = desk.ok("show 1")
    assert "not before" in told
    assert "1 failed" in told
    assert "it broke" in told


@pytest.mark.parametrize(
    ("result", "shown"), [("in words", "  in words"), ({"files": ["a"]}, '  "files"'), (None, None), ("  ", None)]
)
def test_show_of_a_result(desk: Any, result: object, shown: str | None) -> None:
    claim = desk.claimed()
    desk.do(lambda service: service.complete(claim, result=result))
    told = desk.ok("show 1")
    assert "completed (done) at " in told
    assert ("\nResult\n" in told) == (shown is not None)
    assert shown is None or shown in told


def test_show_of_a_question_and_a_long_story(desk: Any) -> None:
    claim = desk.claimed()
    desk.do(lambda service: service.block(claim, "which one?"))
    assert "\nQuestion\n  which one?" in desk.ok("show 1")
    assert "asks: which one?" in desk.ok("ps")
    desk.ok("add other")
    for priority in range(60):
        desk.ok(f"set 2 --priority {priority + 1}")
    told = desk.ok("show 2")
    assert "... 11 more" in told
    assert "--json has them all" in told


def test_ps_says_what_a_run_waits_for(desk: Any) -> None:
    desk.ok("add first")
    desk.ok("add second --needs 1 --held")
    assert "on hold, needs 1 more run" in desk.ok("ps")
    desk.claimed("third")
    claim = desk.claimed("fourth")
    desk.do(
        lambda service: service.request_stop(
            claim.run, StopKind.CANCEL, reason=Reason.OPERATOR, message="enough", by="operator"
        )
    )
    told = desk.ok("ps")
    assert "offered, not yet claimed" in told, "the first"
    assert "stopping" in told
    assert "cancel: enough" in told


def test_ps_of_many_and_of_none(desk: Any) -> None:
    assert "Nothing is queued or running" in desk.ok("ps")
    assert "No such runs." in desk.ok("ps --tag nightly")
    for number in range(3):
        desk.ok(f"add 'task {number}'")
    assert "there are more than 2: --limit N shows them" in desk.ok("ps --limit 2")
    assert len(desk.json("ps --limit 1")) == 1


def test_stats_of_attempts_that_ended(desk: Any) -> None:
    assert "0 attempts ended" in desk.ok("stats")
    first, second = desk.claimed(), desk.claimed()

    async def end(service: Service) -> None:
        await service.start(first)
        await service.complete(first)
        await service.fail(second, "it broke", permanent=True)

    desk.do(end)
    told = desk.ok("stats")
    assert "They ended: 1 failed, 1 succeeded; failure rate 50%" in told
    assert "MEDIAN" in told
    assert "working" in told
    assert desk.json("stats")["attempts"] == 2
    assert "too short" in desk.refused("stats --since 0s", 2)


def test_routes_in_a_table(desk: Any) -> None:
    desk.ok("routes set review worker --max-concurrent none --timeout 30m --stall none --priority 5")
    desk.ok("routes set other nobody --timeout none")
    told = desk.ok("routes")
    assert [line.split() for line in told.splitlines()][1:] == [
        ["other", "nobody", "+0", "1", "-", "-"],
        ["review", "worker", "+5", "-", "30m", "-"],
    ]
    assert desk.json("routes list")[0]["workflow_type"] == "other"


def test_logs_of_what_was_written_elsewhere_or_nowhere(desk: Any) -> None:
    desk.ok("add idle")
    assert "no agent has worked on it yet" in desk.interlock("logs", "1").err
    claim = desk.claimed()
    assert "works elsewhere" in desk.interlock("logs", str(claim.run)).err
    assert "has no attempt 7" in desk.refused(f"logs {claim.run} --attempt 7", 3)
    desk.do(lambda service: service.complete(claim))
    assert "has completed" in desk.interlock("logs", "-f", str(claim.run)).err
    said = desk.interlock("logs", "-f", str(claim.run), "--attempt", "1")
    assert (said.status, said.out) == (0, "")


def test_why_names_what_to_do_where_something_can_be_done(desk: Any) -> None:
    desk.ok("add first --held")
    desk.ok("add second --needs 1 --in 5m")
    assert "interlock unhold 1" in desk.ok("why 1")
    assert "#1" in desk.ok("why 2")


@pytest.mark.parametrize(
    ("name", "begins"), [("machine.dot", b"digraph"), ("machine.md", b"|"), ("machine.mmd", b"stateDiagram-v2")]
)
def test_a_diagram_in_a_file(desk: Any, name: str, begins: bytes) -> None:
    assert f"Wrote {name}" in desk.interlock("diagram", "--output", name).err
    assert begins in (desk.folder / name).read_bytes()


def test_diagrams_that_cannot_be(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nowhere/x.dot: No such file or directory" in desk.refused("diagram -o nowhere/x.dot", 5)
    assert "--run goes with the machine 'run'" in desk.refused("diagram attempt --run 1", 2)


def test_a_picture_is_not_for_a_terminal(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagrams, "render", lambda *_, **__: b"a picture")
    assert desk.ok("diagram --format png") == "a picture"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "not for a terminal" in desk.refused("diagram --format png", 2)


def test_export_of_each_table(desk: Any) -> None:
    claim = desk.claimed("one")
    desk.do(lambda service: service.complete(claim))
    desk.ok("add two")
    for table, least in (("runs", 2), ("attempts", 1), ("events", 4)):
        lines = desk.ok(f"export --table {table}").splitlines()
        assert len(lines) >= least, table
    assert "[\n" in desk.ok("export --format json")


def test_logs_of_an_agent_that_wrote_nothing(desk: Any) -> None:
    (desk.folder / "interlock.yaml").write_text("dispatch: {defaultAgent: worker}\nagents: {worker: 'true'}\n")

    async def claimed(service: Service) -> Claim:
        run = (await service.submit(Task(title="task"))).run
        await service.dispatch(owner="here:1:a")
        return claim_of(await service.get(run))

    claim = desk.do(claimed)
    said = desk.interlock("logs", "1")
    assert (said.status, said.out) == (0, "")
    assert "Attempt 1 of #1 (task) has written nothing yet (" in said.err
    assert "/output.log is not there)" in said.err
    desk.do(lambda service: service.fail(claim, "it broke"))
    assert desk.interlock("logs", "-f", "1", "--attempt", "1").status == 0, (
        "that attempt has ended, though the run has not"
    )
    log = AttemptFiles(desk.folder / ".interlock" / desk.json("show 1")["attempts"][0]["folder"]).log
    log.parent.mkdir(parents=True)
    log.touch()
    assert desk.interlock("logs", "1").err == "Attempt 1 of #1 (task) has written nothing at all.\n"
    log.write_text("first\nlast\n")
    assert desk.ok("logs 1 -n 1") == "last\n"
    assert desk.ok("logs 1 -f --attempt 1") == "first\nlast\n"


def test_output_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    out = logs.Output()
    monkeypatch.setattr(sys, "stdout", None)
    out.write(b"nobody reads it")
    out.close()
