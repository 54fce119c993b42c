"""Queued runs are filed by the limits in force; a change of those files them anew, a crash in between notwithstanding."""

from __future__ import annotations

from yard import Yard

from interlock.domain.settings import Limits
from interlock.service import filing, operating


def lanes(yard: Yard) -> list[int]:
    return [run.lane for run in yard.read(lambda tx: tx.queued_after(0, 1000))]


def rekey(yard: Yard, *, at_once: int = 2, batches: int = 1000) -> None:
    after = yard.do(filing.begin_rekeying)
    while after is not None and batches:
        after = yard.do(filing.rekey, after, at_once)
        batches -= 1


def test_new_limits_file_the_queue_anew(yard: Yard) -> None:
    rekey(yard)
    for n in range(7):
        yard.submit(project=f"p{n % 2}")
    assert len(set(lanes(yard))) == 1
    yard.configure(limits=Limits(total=100, per_project={"p1": 1}))
    rekey(yard)
    assert len(set(lanes(yard))) == 2
    assert yard.started() == [1, 2, 3, 5, 7]


def test_a_filing_that_was_cut_off_goes_on(yard: Yard) -> None:
    rekey(yard)
    for n in range(7):
        yard.submit(project=f"p{n % 2}")
    yard.configure(limits=Limits(total=100, per_project={"p1": 1}))
    rekey(yard, batches=1)
    # Here the process was killed. The next one has the same limits.
    rekey(yard)
    assert lanes(yard)[0::2] == [lanes(yard)[0]] * 4
    assert lanes(yard)[1::2] == [lanes(yard)[1]] * 3
    assert yard.do(filing.begin_rekeying) is None


def test_nothing_to_do_for_limits_on_the_same_values(yard: Yard) -> None:
    yard.configure(limits=Limits(total=100, per_tag={"a": 1, "b": 2}))
    rekey(yard)
    yard.configure(limits=Limits(total=3, per_tag={"b": 7, "a": 9}))
    assert yard.do(filing.begin_rekeying) is None


def test_new_runs_follow_the_limits_of_the_dispatcher_not_of_the_submitter(yard: Yard) -> None:
    yard.configure(limits=Limits(total=100, per_project={"p": 1}))
    rekey(yard)
    yard.configure(limits=Limits(total=100))
    first, second = yard.submit(project="p"), yard.submit(project="q")
    assert first.lane != second.lane


def test_the_head_of_a_lane_follows_its_runs(yard: Yard) -> None:
    first, second = yard.submit(), yard.submit(priority=1)
    (lane,) = yard.read(lambda tx: tx.lanes(10))
    assert lane.head_number == second.number
    yard.on(second, operating.hold)
    assert [one.head_number for one in yard.read(lambda tx: tx.lanes(10))] == [first.number]
    yard.on(first, operating.cancel)
    assert yard.read(lambda tx: tx.lanes(10)) == []
    yard.on(second, operating.unhold)
    assert [one.head_number for one in yard.read(lambda tx: tx.lanes(10))] == [second.number]
