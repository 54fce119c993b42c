"""Who waits for a run is told of its end: at once if they are few, else a page at a time, and nobody is forgotten."""

from __future__ import annotations

import pytest
from yard import Yard

from interlock.decide.reasons import WaitKind
from interlock.domain.run import Instance, Run
from interlock.domain.settings import OnNeedFailed
from interlock.domain.states import RunState
from interlock.service import moves, operating, supervising
from interlock.service.waiting import Surroundings, Waiting

FEW = 3


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "TOLD_AT_ONCE", FEW)


def waiting_for(yard: Yard, need: Run, count: int) -> list[Run]:
    return [yard.submit(f"after {need.number}", needs=(f"#{need.number}",)) for _ in range(count)]


def pages(yard: Yard) -> int:
    """Let the reaper do what is due until nothing is; how many rounds that took."""
    rounds = 0
    while (due := yard.read(lambda tx: tx.next_due_ms())) is not None and due <= yard.now:
        yard.do(supervising.reap, 256)
        rounds += 1
    return rounds


def prune(yard: Yard) -> list[int]:
    return [number for number, _ in yard.store.write_now(lambda tx: operating.prune(tx, yard.now, 10))]


@pytest.mark.parametrize("count", [0, 1, FEW - 1, FEW, FEW + 1, 4 * FEW, 4 * FEW + 1])
def test_all_who_wait_are_told(yard: Yard, count: int) -> None:
    need = yard.submit()
    behind = waiting_for(yard, need, count)
    yard.on(need, operating.close, by="me", message="done")
    assert [yard.get(run).ready for run in behind] == [place < FEW for place in range(count)]
    rounds = pages(yard)
    assert (rounds > 0) == (count >= FEW)
    assert all(yard.get(run).ready and yard.get(run).needs_left == 0 for run in behind)


def test_a_tree_of_failures_is_told_to_its_leaves(yard: Yard) -> None:
    yard.configure(on_need_failed=OnNeedFailed.FAIL)
    root = yard.submit()
    inner = waiting_for(yard, root, 2 * FEW)
    leaves = [leaf for run in inner for leaf in waiting_for(yard, run, 2)]
    yard.on(root, operating.cancel, by="me", message="no")
    assert 0 < len([run for run in (*inner, *leaves) if yard.get(run).terminal]) <= FEW
    assert pages(yard) > 1
    assert {yard.get(run).state for run in (*inner, *leaves)} == {RunState.FAILED}


def test_a_chain_is_told_to_its_end(yard: Yard) -> None:
    runs = [yard.submit()]
    for _ in range(5 * FEW):
        runs += waiting_for(yard, runs[-1], 1)
    yard.on(runs[0], operating.cancel, by="me", message="no")
    pages(yard)
    assert {yard.get(run).state for run in runs[1:]} == {RunState.FAILED}


def test_a_need_is_kept_until_all_were_told(yard: Yard) -> None:
    need = yard.submit()
    behind = waiting_for(yard, need, 2 * FEW)
    yard.on(need, operating.close, by="me", message="done")
    yard.now += 1000
    assert prune(yard) == []
    pages(yard)
    assert prune(yard) == [need.number]
    assert all(yard.get(run).ready for run in behind)


def test_who_is_not_told_yet_goes_on_by_itself(yard: Yard) -> None:
    need = yard.submit()
    behind = waiting_for(yard, need, 2 * FEW)
    yard.on(need, operating.close, by="me", message="done")
    last = behind[-1].number
    assert not yard.get(behind[-1]).ready
    around = Surroundings(alive=(Instance(id="x", host="x", pid=1, boot_id="b", ordinal=0, state="active"),))
    assert yard.ask(lambda tx, ctx: Waiting(tx, ctx, around).goes_on(last))
    wait = yard.ask(lambda tx, ctx: Waiting(tx, ctx, around).why(yard.get(behind[-1])))[0]
    assert (wait.kind, wait.by_itself) == (WaitKind.NEED, True)
