"""Which reasons end by themselves, and what `interlock run` makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from yard import OWNER, START, Yard

from interlock.cli.standstill import Group, groups
from interlock.decide.outcome import OutcomeKind
from interlock.decide.reasons import WaitKind
from interlock.domain.run import Brake, Instance, Run
from interlock.domain.settings import Limits
from interlock.service import operating
from interlock.service.moves import change
from interlock.service.waiting import Surroundings, Waiting


def instance(**fields: Any) -> Instance:
    return Instance(
        **{"id": OWNER, "host": "here", "pid": 1, "boot_id": "b", "ordinal": 0, "state": "active", **fields}
    )


ALIVE = Surroundings(alive=(instance(),))


def goes_on(yard: Yard, run: Run, around: Surroundings = ALIVE) -> bool:
    """Asked for, and the same as what `why` says, but for a pause and for needs."""
    found = yard.ask(lambda tx, ctx: Waiting(tx, ctx, around).goes_on(run.number))
    waits = yard.ask(lambda tx, ctx: Waiting(tx, ctx, around).why(yard.get(run)))
    assert found == all(wait.by_itself or wait.kind is WaitKind.PAUSED for wait in waits), waits
    return found


def test_nothing_in_the_way(yard: Yard) -> None:
    assert goes_on(yard, yard.submit())


def test_at_work(yard: Yard) -> None:
    claim = yard.running()
    assert goes_on(yard, yard.read(lambda tx: tx.run(claim.run)))  # type: ignore[arg-type]


def test_a_person_is_needed(yard: Yard) -> None:
    assert not goes_on(yard, yard.submit(held=True))
    assert not goes_on(yard, yard.submit(agent="ghost"))
    assert not goes_on(yard, yard.end(yard.claimed(), OutcomeKind.BLOCKED, question="which?"))
    assert not goes_on(yard, yard.submit(), Surroundings())
    assert not goes_on(yard, yard.submit(), Surroundings(alive=(instance(scope="other"),)))
    assert not goes_on(yard, yard.submit(), Surroundings(alive=(instance(state="draining"),)))
    yard.configure(enabled=False)
    assert not goes_on(yard, yard.submit())


def test_a_draining_dispatcher_beside_an_active_one(yard: Yard) -> None:
    assert goes_on(yard, yard.submit(), Surroundings(alive=(instance(id="x", state="draining"), instance())))


def test_a_limit_ends_by_itself_unless_it_is_none_at_all(yard: Yard) -> None:
    yard.configure(limits=Limits(total=1, per_tag={"gpu": 0}))
    yard.submit()
    yard.dispatch()
    assert goes_on(yard, yard.submit())
    assert not goes_on(yard, yard.submit(tags=("gpu",)))


def test_times_and_brakes(yard: Yard) -> None:
    run = yard.submit(not_before_ms=START + 1000)
    assert goes_on(yard, run)
    yard.do(operating.pause)
    assert goes_on(yard, run)
    for brake in Brake:
        assert goes_on(yard, run, Surroundings(alive=(instance(note=brake.note("x")),)))


def test_a_need_that_needs_a_person(yard: Yard) -> None:
    need = yard.submit(held=True)
    chain = yard.submit(needs=(need.id,))
    run = yard.submit(needs=(chain.id,))
    assert not goes_on(yard, run)
    yard.on(yard.get(need), operating.unhold)
    assert goes_on(yard, run)


@pytest.mark.parametrize(("tries", "expected"), [(1, True), (2, False)])
def test_an_agent_that_cannot_start(yard: Yard, tries: int, expected: bool) -> None:
    for _ in range(tries):
        yard.do(operating.agent_cannot_start, "a", "no such command")
        until = yard.read(lambda tx: tx.healths()["a"].retry_ms)
        yard.now = until
    assert goes_on(yard, yard.submit()), "its wait is over: the next run tries it"
    yard.now = until - 1
    assert goes_on(yard, yard.submit()) is expected
    assert goes_on(yard, yard.submit(not_before_ms=yard.now + 1000)), "it waits for its time first"


@pytest.mark.parametrize(
    ("misfires", "reason", "expected"),
    [(1, "not_prepared", True), (2, "not_prepared", False), (2, "not_started", True)],
)
def test_a_run_whose_start_fails_again_and_again(yard: Yard, misfires: int, reason: str, expected: bool) -> None:
    """A start that a killed dispatcher did not live to see is not the run's fault: the next one goes on with it."""
    fields = {"not_before_ms": START + 5000, "not_before_why": "no room", "misfires": misfires, "reason": reason}
    run = yard.on(yard.submit(), change, **fields)
    assert goes_on(yard, run) is expected


def test_memory_is_told_while_nobody_dispatches(yard: Yard) -> None:
    yard.configure(min_free_memory_bytes=100 * 1024 * 1024)
    run = yard.submit()
    around = Surroundings(free_memory_bytes=5 * 1024 * 1024)
    waits = yard.ask(lambda tx, ctx: Waiting(tx, ctx, around).why(run))
    assert [wait.kind for wait in waits] == [WaitKind.NO_DISPATCHER, WaitKind.MEMORY]
    assert waits[1].message == "5 MiB of memory are free, under the floor of 100 MiB"


def test_groups_have_the_reason_that_why_says_first(yard: Yard) -> None:
    yard.configure(limits=Limits(total=1))
    yard.submit()
    yard.dispatch()
    need = yard.submit(held=True)
    yard.submit(needs=(need.id,))
    yard.submit()
    yard.submit()
    yard.submit(not_before_ms=START + 7000)
    yard.submit(not_before_ms=START + 5000)

    found = yard.ask(lambda tx, ctx: groups(tx, Waiting(tx, ctx, ALIVE), range(1, 99)))
    assert found == [
        Group(2, "wait for a free slot (all 1 in use)"),
        Group(2, "not to start yet; the first", START + 5000),
        Group(1, "on hold (`interlock unhold`)"),
        Group(1, "need other tasks first"),
    ]
    hold = yard.ask(lambda tx, ctx: Waiting(tx, ctx, ALIVE).hold())
    assert hold is None
    yard.do(operating.pause, by="anna", message="lunch")
    hold = yard.ask(lambda tx, ctx: Waiting(tx, ctx, ALIVE).hold())
    assert hold is not None
    assert hold.words == "dispatching is paused by anna: lunch (`interlock resume`)"
