"""A run that cannot be dealt with is put on hold, and the others go on."""

from __future__ import annotations

from typing import Any

import pytest
from yard import START, Yard

from interlock.decide.outcome import OutcomeKind
from interlock.domain.errors import Conflict, Unavailable
from interlock.domain.run import Run
from interlock.domain.settings import Mode
from interlock.domain.states import RunState
from interlock.domain.task import Task, UnreadableTask
from interlock.service import claims, dispatching, operating, reads, submitting, supervising
from interlock.service.quarantine import LOOK_AGAIN_MS


def spoil(yard: Yard, run: Run, task: str = """json_set(task, '$.priority', 'high')""") -> None:
    """What another version, or a person, may leave behind."""
    with yard.raw() as shell:
        shell.execute(f"UPDATE runs SET task = {task} WHERE number = ?", (run.number,))
    shell.close()


def refuse(yard: Yard, number: int, table: str = "runs", when: str = "UPDATE OF fence") -> None:
    """A trigger of somebody else's that refuses to let a run be claimed."""
    of = "number" if table == "runs" else "run"
    with yard.raw() as shell:
        shell.execute(
            f"CREATE TRIGGER theirs BEFORE {when} ON {table} WHEN NEW.{of} = {number} BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    shell.close()


def notes(yard: Yard, run: Run) -> list[str]:
    return [event.message or "" for event in yard.read(lambda tx: tx.events_of(run.number)) if event.event == "hold"]


@pytest.mark.parametrize("unknown", ["'$.colour'", "'$.context.colour'"])
def test_what_a_later_version_added_is_passed_over(yard: Yard, unknown: str) -> None:
    run = yard.submit("later", content="text", context={"description": "d"})
    spoil(yard, run, f"json_set(task, {unknown}, 'red')")
    assert yard.started() == [run.number]
    assert yard.get(run).task.content == "text"


@pytest.mark.parametrize("mode", list(Mode))
def test_an_unreadable_task_is_held_and_the_rest_starts(yard: Yard, mode: Mode, caplog: Any) -> None:
    yard.configure(mode=mode)
    bad, good, other_lane = yard.submit("bad"), yard.submit("good"), yard.submit("other", role="r")
    spoil(yard, bad)
    assert yard.started() == [good.number, other_lane.number]
    now = yard.get(bad)
    assert (now.state, now.held, now.ready, now.due_ms) == (RunState.QUEUED, True, False, None)
    (note,) = notes(yard, bad)
    assert note == now.message
    assert "cannot be read" in note
    assert "priority" in note
    assert yard.started() == []
    assert len([record for record in caplog.records if "put on hold" in record.message]) == 1


def test_it_can_be_looked_at_and_ended_but_not_copied(yard: Yard) -> None:
    bad = yard.submit("bad", batch="B")
    spoil(yard, bad)
    task = yard.get(bad).task
    assert isinstance(task, UnreadableTask)
    assert task.title == "(unreadable task) bad"
    assert [run.number for run in yard.read(lambda tx: tx.find_runs(reads.Filter()))] == [bad.number]
    assert yard.ask(lambda tx, ctx: reads.why(tx, ctx, yard.get(bad), reads.Surroundings()))
    assert yard.ask(lambda tx, _: reads.story(tx, yard.get(bad))).run.number == bad.number
    assert yard.on(bad, submitting.reassign, Task(title="t", agent="b")).task == task
    assert yard.on(bad, operating.cancel).state is RunState.CANCELLED
    with pytest.raises(Conflict, match="cannot be read"):
        yard.on(bad, submitting.retry)
    with yard.raw() as shell:
        assert "high" in shell.execute("SELECT task FROM runs").fetchone()[0], "what is stored stays as it is"
    shell.close()


@pytest.mark.parametrize("task", ["'[]'", "'null'", "'{}'", "'7'", """'{"title":7}'"""])
def test_whatever_stands_there(yard: Yard, task: str) -> None:
    bad, good = yard.submit("bad"), yard.submit("good")
    spoil(yard, bad, task)
    assert yard.started() == [good.number]
    assert yard.get(bad).task.title.startswith("(unreadable task)")


def test_let_go_without_being_mended_it_is_held_again(yard: Yard) -> None:
    bad = yard.submit("bad")
    spoil(yard, bad)
    yard.dispatch()
    assert yard.on(bad, operating.unhold).ready
    yard.dispatch()
    assert yard.get(bad).held
    spoil(yard, bad, """json_set(task, '$.priority', 1)""")
    yard.on(bad, operating.unhold)
    assert yard.started() == [bad.number]


@pytest.mark.parametrize(("table", "when"), [("runs", "UPDATE OF fence"), ("attempts", "INSERT"), ("slots", "INSERT")])
def test_a_run_that_the_database_refuses_takes_nothing_with_it(yard: Yard, table: str, when: str) -> None:
    runs = [yard.submit(str(n)) for n in range(3)]
    refuse(yard, runs[0].number, table, when)
    assert yard.started() == [runs[1].number, runs[2].number]
    held = yard.get(runs[0])
    assert (held.state, held.held, held.fence, held.dispatch_count) == (RunState.QUEUED, True, 0, 0)
    assert [event.event for event in yard.read(lambda tx: tx.events_of(held.number))] == ["submit", "hold"]
    assert yard.read(lambda tx: tx.slot_faults()) == []
    assert yard.read(lambda tx: tx.used())["global"] == 2


def test_a_lost_run_that_cannot_go_on_gives_its_slots_back(yard: Yard) -> None:
    claim = yard.claimed()
    lost = yard.end(claim, OutcomeKind.LOST)
    spoil(yard, lost)
    other = yard.submit("other")
    assert yard.started() == [other.number]
    assert (yard.get(lost).state, yard.get(lost).held) == (RunState.QUEUED, True)
    assert yard.read(lambda tx: tx.slot_faults()) == []
    assert yard.read(lambda tx: tx.used())["global"] == 1


def test_a_bug_in_one_reaping_stops_no_other(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = yard.submit("bad", not_before_ms=START + 1), yard.submit("good", not_before_ms=START + 1)
    work = yard.claimed("work", timeout_ms=1)
    decide_due = supervising.decide_due

    def faulty(run: Run, *args: Any, **named: Any) -> Any:
        if run.number in (bad.number, work.run):
            raise ZeroDivisionError("a bug")
        return decide_due(run, *args, **named)

    monkeypatch.setattr(supervising, "decide_due", faulty)
    yard.now += 1
    assert [reaped.run.number for reaped in yard.do(supervising.reap, 10)] == [good.number]
    assert notes(yard, bad) == ["put on hold, as it could not be dealt with: ZeroDivisionError: a bug"]
    assert yard.read(lambda tx: tx.next_due_ms()) == yard.now + LOOK_AGAIN_MS, "a live claim keeps its timeout"
    yard.now += LOOK_AGAIN_MS
    assert yard.do(supervising.reap, 10) == []
    assert len(yard.read(lambda tx: tx.events_of(work.run))) == 4, "said once"
    monkeypatch.undo()
    yard.now += LOOK_AGAIN_MS
    (reaped,) = yard.do(supervising.reap, 10)
    assert reaped.run.stop is not None
    yard.do(claims.renew, work.run, work.holder, work.fence)


def test_a_lane_that_nobody_can_read_holds_nobody_back(yard: Yard) -> None:
    runs = [yard.submit("a", batch="A"), yard.submit("b", batch="B")]
    with yard.raw() as shell:
        shell.execute("""UPDATE lanes SET key = '{"tags": 7}' WHERE id = ?""", (runs[0].lane,))
    shell.close()
    assert [run.number for run, _ in yard.dispatch(scope="B").claimed] == [runs[1].number]
    assert yard.started() == [runs[0].number]


def test_an_offer_that_cannot_be_withdrawn_hinders_no_pause(yard: Yard) -> None:
    bad, good = yard.offered(), yard.offered()
    with yard.raw() as shell:
        shell.execute(
            f"CREATE TRIGGER theirs BEFORE UPDATE OF state ON runs WHEN NEW.number = {bad.number}"
            " BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    shell.close()
    yard.do(operating.pause)
    assert yard.get(good).state is RunState.QUEUED
    assert (yard.get(bad).state, yard.get(bad).held) == (RunState.DISPATCHED, True)


def test_a_store_that_cannot_serve_is_no_matter_of_one_run(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    run = yard.submit()

    def refuse_all(*_: Any, **__: Any) -> Any:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(dispatching, "claim_local", refuse_all)
    with pytest.raises(Unavailable):
        yard.dispatch()
    assert yard.get(run).ready
