"""Runs of another dispatcher, taken over: nothing twice, nothing begun twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yard import Yard, said

from interlock.decide.outcome import OutcomeKind
from interlock.decide.reasons import WaitKind
from interlock.domain.run import Run
from interlock.domain.settings import Mode
from interlock.domain.states import TERMINAL, RunState
from interlock.domain.task import Task
from interlock.service import claims, importing, operating, reads
from interlock.service.importing import Fate, TakenOver, Wanted
from interlock.service.waiting import Surroundings
from interlock.sources.workflow_runs import OldRun, OldState

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
WANTED = Wanted(batch="old")


def old(state: OldState, number: int = 1, **fields: Any) -> OldRun:
    return OldRun(
        record=number,
        line=number,
        key=f"id:{number}",
        task=Task(title=f"task {number}", id=str(number), **fields),
        state=state,
        status=state.name.lower(),
    )


def take(yard: Yard, *runs: OldRun, wanted: Wanted = WANTED) -> list[TakenOver]:
    planned = yard.ask(lambda tx, _: importing.plan(tx, runs, wanted))
    done: list[TakenOver] = yard.do(importing.take_over, runs, wanted)
    assert [one.fate for one in planned] == [one.fate for one in done], "the plan is what is done"
    return done


def one(yard: Yard, run: OldRun, **named: Any) -> tuple[Fate, Run]:
    (done,) = take(yard, run, **named)
    assert done.run is not None
    return done.fate, yard.get(done.run)


def test_what_waits_is_queued_and_starts(yard: Yard) -> None:
    fate, run = one(yard, old(OldState.WAITING))
    assert (fate, run.state, run.held, run.batch, run.task_key) == (Fate.QUEUED, RunState.QUEUED, False, "old", "id:1")
    assert yard.started() == [run.number]


def test_what_is_in_flight_is_held_and_says_how_it_goes_on(yard: Yard) -> None:
    fate, run = one(yard, old(OldState.IN_FLIGHT, agent="a"))
    assert (fate, run.state, run.held) == (Fate.HELD, RunState.QUEUED, True)
    assert yard.started() == []
    (wait,) = (wait for wait in yard.ask(reads.why, run, Surroundings()) if wait.kind is WaitKind.HELD)
    for word in ("in_flight by a", "interlock close", "interlock unhold", "interlock cancel"):
        assert word in wait.message
    yard.on(run, operating.unhold)
    assert yard.get(run).message is None
    assert yard.started() == [run.number]


@pytest.mark.parametrize("state", [state for state in OldState if state.ended])
def test_what_has_ended_is_left_out(yard: Yard, state: OldState) -> None:
    assert [done.fate for done in take(yard, old(state))] == [Fate.LEFT_OUT]
    assert yard.read(lambda tx: tx.last_seq()) == 0


@pytest.mark.parametrize(
    ("state", "ended"),
    [
        (OldState.COMPLETED, ("completed", "external_completion")),
        (OldState.FAILED, ("failed", "external_failure")),
        (OldState.CANCELLED, ("cancelled", "operator")),
    ],
)
def test_what_has_ended_may_come_as_ended(yard: Yard, state: OldState, ended: tuple[str, str]) -> None:
    fate, run = one(yard, old(state), wanted=Wanted(batch="old", finished=True))
    assert (fate, (run.state, run.reason)) == (Fate.ENDED, ended)
    assert run.message == f"{state.name.lower()} in the old dispatcher"
    assert one(yard, old(state), wanted=Wanted(batch="old", finished=True))[0] is Fate.KNOWN


def test_a_timeout_has_no_way_in(yard: Yard) -> None:
    assert take(yard, old(OldState.TIMED_OUT), wanted=Wanted(batch="old", finished=True))[0].fate is Fate.LEFT_OUT


def test_everything_may_be_held(yard: Yard) -> None:
    fate, run = one(yard, old(OldState.WAITING), wanted=Wanted(batch="old", hold=True))
    assert (fate, run.held, run.message) == (Fate.HELD, True, "it was imported on hold")


def test_batches_are_apart(yard: Yard) -> None:
    take(yard, old(OldState.WAITING))
    assert one(yard, old(OldState.WAITING), wanted=Wanted(batch="other"))[0] is Fate.QUEUED


# a newer state of the same runs


@pytest.mark.parametrize("offered", [False, True])
def test_what_was_begun_there_meanwhile_is_put_on_hold(yard: Yard, offered: bool) -> None:
    _, run = one(yard, old(OldState.WAITING))
    if offered:
        yard.configure(mode=Mode.PULL)
        yard.dispatch()
        assert yard.get(run).state is RunState.DISPATCHED
    fate, run = one(yard, old(OldState.IN_FLIGHT))
    assert (fate, run.state, run.held) == (Fate.HELD_NOW, RunState.QUEUED, True)
    assert "interlock close" in (run.message or "")
    assert one(yard, old(OldState.IN_FLIGHT))[0] is Fate.KNOWN
    assert yard.started() == []


@pytest.mark.parametrize("state", [state for state in OldState if state.ended])
@pytest.mark.parametrize("held", [False, True])
def test_what_ended_there_meanwhile_ends_here(yard: Yard, state: OldState, held: bool) -> None:
    one(yard, old(OldState.IN_FLIGHT if held else OldState.WAITING))
    fate, run = one(yard, old(state))
    assert fate is Fate.ENDED_NOW
    assert run.state in TERMINAL
    assert run.state == ("failed" if state is OldState.TIMED_OUT else state.name.lower())
    assert "in the old dispatcher" in (run.message or "")


def test_what_is_at_work_here_is_left_alone(yard: Yard) -> None:
    _, run = one(yard, old(OldState.WAITING))
    yard.dispatch()
    for state in (OldState.IN_FLIGHT, OldState.COMPLETED):
        fate, now = one(yard, old(state))
        assert (fate, now.state, now.held) == (Fate.CLASH, RunState.CLAIMED, False)
    claim = claims.claim_of(yard.get(run))
    yard.do(claims.finish, claim.run, claim.holder, claim.fence, said(OutcomeKind.COMPLETED))
    assert one(yard, old(OldState.COMPLETED))[0] is Fate.KNOWN


def test_a_need_that_ended_there_is_met_here(yard: Yard) -> None:
    one(yard, old(OldState.WAITING, 1))
    after = yard.submit("after", needs=("#1",))
    one(yard, old(OldState.COMPLETED, 1))
    assert yard.started() == [after.number]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 4), st.sampled_from(OldState)), max_size=4, unique_by=lambda each: each[0])
    )
)
def test_no_run_that_was_begun_there_is_started_here(steps: list[list[tuple[int, OldState]]]) -> None:
    with TemporaryDirectory(dir=MEMORY) as folder, closing_yard(Path(folder)) as yard:
        begun: set[str] = set()
        started: set[str] = set()
        for step in steps:
            # What had ended there before anything was known of it here may be queued there once more.
            done = take(yard, *(old(state, number) for number, state in step))
            begun |= {each.old.key for each in done if each.old.state is not OldState.WAITING and each.run is not None}
            for run, _ in yard.dispatch().claimed:
                assert run.task_key not in begun
                assert run.task_key not in started
                started.add(str(run.task_key))
        keys = [run.task_key for run in yard.read(lambda tx: tx.batch_runs("old"))]
        assert len(set(keys)) == len(keys)


@contextmanager
def closing_yard(folder: Path) -> Iterator[Yard]:
    made = Yard(folder)
    try:
        yield made
    finally:
        made.store.close()
