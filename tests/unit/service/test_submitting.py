"""New runs: needs, cycles, unique keys, retries, and a batch that is brought up to its backlog."""

from __future__ import annotations

from typing import Any

import pytest
from yard import Yard

from interlock.decide.outcome import OutcomeKind
from interlock.domain.errors import Conflict, InvalidInput
from interlock.domain.run import Route, Run
from interlock.domain.settings import OnNeedFailed
from interlock.domain.states import RunState
from interlock.domain.task import PRIORITY_LIMIT, Task
from interlock.service import moves, operating, submitting
from interlock.service.submitting import Item, Planned, Standing


def submit_all(yard: Yard, *tasks: Task) -> list[Run]:
    return [made.run for made in yard.do(submitting.submit, [Item(task=task) for task in tasks])]


# needs


def test_a_run_waits_for_what_it_needs(yard: Yard) -> None:
    first, second = submit_all(yard, Task(title="a", id="a"), Task(title="b", needs=("a",)))
    assert (second.needs_left, second.ready) == (1, False)
    assert yard.started() == [first.number]
    yard.end(_claim(yard, first), OutcomeKind.COMPLETED)
    assert yard.get(second).needs_left == 0
    assert yard.started() == [second.number]


def _claim(yard: Yard, run: Run) -> Any:
    from interlock.service.claims import claim_of

    return claim_of(yard.get(run))


@pytest.mark.parametrize("ref", ["a", "#1", "1", "the id"])
def test_a_need_is_named_in_many_ways(yard: Yard, ref: str) -> None:
    need = yard.submit("a", id="a")
    if ref == "a":
        # An id of the author's own is known within its call or its batch only.
        with pytest.raises(InvalidInput, match="needs 'a', which is no task of this backlog and no run"):
            yard.submit("b", needs=("a",))
        return
    run = yard.submit("b", needs=(need.id if ref == "the id" else ref,))
    assert yard.read(lambda tx: tx.needs_of(run.number)) == [(need.number, False)]


def test_one_run_named_twice_is_one_need(yard: Yard) -> None:
    need = yard.submit("a")
    run = yard.submit("b", needs=(f"#{need.number}", need.id, f"#{need.number}"))
    assert run.needs_left == 1
    yard.on(need, operating.close, by="me")
    assert yard.get(run).ready


def test_a_need_that_is_done_is_met_at_once(yard: Yard) -> None:
    need = yard.bring("completed")
    assert yard.submit("b", needs=(f"#{need.number}",)).ready


@pytest.mark.parametrize(
    ("policy", "state", "reason"),
    [
        (OnNeedFailed.FAIL, RunState.FAILED, "need_failed"),
        (OnNeedFailed.SKIP, RunState.CANCELLED, "need_skipped"),
        (OnNeedFailed.RUN, RunState.QUEUED, None),
    ],
)
@pytest.mark.parametrize("already", [False, True])
def test_a_need_that_failed(
    yard: Yard, policy: OnNeedFailed, state: RunState, reason: str | None, already: bool
) -> None:
    yard.configure(on_need_failed=policy)
    need = yard.submit("a")
    if already:
        yard.on(need, operating.cancel)
    run = yard.submit("b", needs=(f"#{need.number}",))
    last = yard.submit("c", needs=(run.id,))
    if not already:
        yard.on(need, operating.cancel)
    run, last = yard.get(run), yard.get(last)
    assert (run.state, run.reason) == (state, reason)
    if policy is OnNeedFailed.RUN:
        assert run.ready
        assert last.needs_left == 1
    else:
        assert "needs #1 (a), which ended cancelled" in (run.message or "")
        assert (last.state, last.reason) == (state, reason)


@pytest.mark.parametrize("policy", [OnNeedFailed.FAIL, OnNeedFailed.SKIP])
def test_a_long_chain_ends_with_its_first_link(
    yard: Yard, policy: OnNeedFailed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than Python's stack is deep."""
    monkeypatch.setattr(moves, "TOLD_AT_ONCE", 10_000)
    yard.configure(on_need_failed=policy)
    tasks = [Task(title=f"{n}", id=f"{n}", needs=(f"{n - 1}",) if n else ()) for n in range(2500)]
    runs = submit_all(yard, *tasks)
    yard.on(runs[0], operating.cancel)
    assert yard.read(lambda tx: tx.count_states(finished=False)) == {}


def test_a_diamond_ends_once(yard: Yard) -> None:
    runs = submit_all(
        yard,
        Task(title="top", id="top"),
        Task(title="left", id="left", needs=("top",)),
        Task(title="right", id="right", needs=("top",)),
        Task(title="bottom", id="bottom", needs=("left", "right")),
    )
    yard.on(runs[0], operating.cancel)
    assert [yard.get(run).state for run in runs] == ["cancelled", "failed", "failed", "failed"]
    assert [event.event for event in yard.read(lambda tx: tx.events_of(4))] == ["submit", "reject"]


def test_what_submit_answers_is_what_is_there(yard: Yard) -> None:
    """The run of a task is named before the need of it that had failed already was looked at."""
    gone = yard.bring("cancelled")
    first, second = submit_all(
        yard, Task(title="a", id="a", needs=("b",)), Task(title="b", id="b", needs=(f"#{gone.number}",))
    )
    assert (first.state, second.state) == (RunState.FAILED, RunState.FAILED)


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ({"a": ["a"]}, "a -> a"),
        ({"a": ["b"], "b": ["a"]}, "a -> b -> a"),
        ({"a": ["b"], "b": ["c"], "c": ["d", "b"], "d": []}, "b -> c -> b"),
    ],
)
def test_a_circle_is_refused_and_nothing_is_queued(yard: Yard, needs: dict[str, list[str]], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        submit_all(yard, *(Task(title=name, id=name, needs=tuple(of)) for name, of in needs.items()))
    assert yard.read(lambda tx: tx.count_states()) == {}


def test_a_circle_through_a_unique_key_is_refused(yard: Yard) -> None:
    """b becomes the run of a, which has its unique key: a needs c needs b is a circle."""
    tasks = (
        Task(title="a", id="a", unique="k", needs=("c",)),
        Task(title="c", id="c", needs=("b",)),
        Task(title="b", id="b", unique="k"),
    )
    with pytest.raises(InvalidInput, match="circle"):
        submit_all(yard, *tasks)
    assert yard.read(lambda tx: tx.count_states()) == {}


def test_a_need_of_the_run_that_has_the_key_already(yard: Yard) -> None:
    twin = yard.submit("twin", unique="k")
    _, second = submit_all(yard, Task(title="a", id="a", unique="k"), Task(title="b", id="b", needs=("a",)))
    assert yard.read(lambda tx: tx.needs_of(second.number)) == [(twin.number, False)]


def test_a_long_chain_is_no_circle(yard: Yard) -> None:
    runs = submit_all(
        yard, *(Task(title=f"{n}", id=f"{n}", needs=(f"{n + 1}",) if n < 2999 else ()) for n in range(3000))
    )
    assert [run.ready for run in runs].count(True) == 1


# what is refused


def test_an_id_is_given_once(yard: Yard) -> None:
    with pytest.raises(Conflict, match="'a' is given twice"):
        submit_all(yard, Task(title="x", id="a"), Task(title="y", id="a"))


@pytest.mark.parametrize(
    "fields",
    [
        {"title": " "},
        {"priority": PRIORITY_LIMIT + 1},
        {"priority": -(2**70)},
        {"timeout_ms": 0},
        {"timeout_ms": 2**63},
        {"stall_ms": -1},
        {"not_before_ms": 2**70},
        {"not_before_ms": -1},
    ],
)
def test_what_the_database_or_the_clock_cannot_hold(yard: Yard, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        yard.submit(**{"title": "t", **fields})
    yard.submit("fine", priority=PRIORITY_LIMIT)
    assert yard.started() == [1]


# unique


def test_an_unfinished_run_with_the_key_comes_back_instead(yard: Yard) -> None:
    first = yard.submit("a", unique="k")
    again = yard.do(submitting.submit, [Item(task=Task(title="b", unique="k"))])
    assert (again[0].created, again[0].run.number) == (False, first.number)
    yard.on(first, operating.cancel)
    assert yard.submit("c", unique="k").number != first.number


def test_a_key_given_twice_in_one_call(yard: Yard) -> None:
    first, second = yard.do(submitting.submit, [Item(task=Task(title=name, unique="k")) for name in ("a", "b")])
    assert (first.created, second.created) == (True, False)
    assert first.run.number == second.run.number


# retry


def test_retry_makes_a_new_run(yard: Yard) -> None:
    run = yard.submit("a", priority=3, not_before_ms=yard.now + 99, unique="k", tags=("x",))
    yard.on(run, operating.cancel)
    made = yard.on(run, submitting.retry)
    assert (made.retry_of, made.state, made.ready, made.base_priority) == (run.number, RunState.QUEUED, True, 3)
    assert made.task.tags == ("x",)
    with pytest.raises(Conflict, match=f"#{made.number} has the unique key 'k' already"):
        yard.on(run, submitting.retry)


def test_a_retry_waits_for_the_retry_of_what_it_needs(yard: Yard) -> None:
    need = yard.submit("need")
    run = yard.submit("a", needs=(f"#{need.number}",))
    yard.on(need, operating.cancel)
    assert yard.get(run).state is RunState.FAILED
    with pytest.raises(Conflict, match=f"needs #{need.number} .*, which ended cancelled"):
        yard.on(run, submitting.retry)
    assert yard.read(lambda tx: submitting.needs_first(tx, [run.number, need.number])) == [need.number, run.number]
    again = yard.on(need, submitting.retry)
    made = yard.on(run, submitting.retry)
    assert (made.needs_left, made.ready) == (1, False)
    assert yard.started() == [again.number]


def test_a_need_that_was_met_is_not_waited_for_again(yard: Yard) -> None:
    claim = yard.running("need")
    run = yard.submit("a", needs=(f"#{claim.run}",))
    yard.end(claim, OutcomeKind.COMPLETED)
    yard.on(run, operating.cancel)
    assert yard.on(run, submitting.retry).ready


def test_a_bare_word_in_a_file_is_the_id_of_a_task_only(yard: Yard) -> None:
    stranger = yard.submit("stranger")
    for name in (str(stranger.number), stranger.id[:4]):
        with pytest.raises(InvalidInput, match=f"needs '{name}'"):
            yard.submit("a", batch="b", needs=(name,))
    for name in (f"#{stranger.number}", stranger.id):
        assert yard.submit("a", batch="b", needs=(name,)).needs_left == 1


def test_a_unique_key_that_is_taken_elsewhere_is_said_so(yard: Yard) -> None:
    other = yard.submit("other", unique="k")
    planned = yard.do(
        submitting.reconcile_batch, "b", [("hash:x", Task(title="mine", unique="k"))], retry_failed=False, again=False
    )
    assert [(each.standing, each.run.number) for each in planned] == [(submitting.Standing.TWIN, other.number)]


def test_only_what_has_ended_is_tried_again(yard: Yard) -> None:
    with pytest.raises(Conflict, match="is running, not ended"):
        yard.on(yard.bring("running"), submitting.retry)


def test_a_priority_that_was_set_by_hand_is_kept(yard: Yard) -> None:
    yard.do(operating.put_route, Route(workflow_type="review", agent_id="a", priority=10))
    run = yard.submit("a", type="review")
    assert run.priority == 10
    yard.on(run, operating.set_priority, 5)
    yard.on(run, operating.cancel)
    made = yard.on(run, submitting.retry)
    assert (made.base_priority, made.priority) == (5, 15)


# batches


BACKLOG = {"one": Task(title="one"), "two": Task(title="two"), "three": Task(title="three", id="three")}


def reconcile(yard: Yard, tasks: dict[str, Task], *, retry_failed: bool = False, again: bool = False) -> list[Planned]:
    planned: list[Planned] = yard.do(
        submitting.reconcile_batch, "B", list(tasks.items()), retry_failed=retry_failed, again=again
    )
    return planned


def standings(planned: list[Planned]) -> list[Standing]:
    return [one.standing for one in planned]


def test_a_new_backlog_is_queued_and_then_goes_on(yard: Yard) -> None:
    first = reconcile(yard, BACKLOG)
    assert standings(first) == [Standing.NEW] * 3
    again = reconcile(yard, BACKLOG)
    assert standings(again) == [Standing.GOING_ON] * 3
    assert [one.run.number for one in again] == [one.run.number for one in first]


def test_done_changed_and_failed_are_named_and_nothing_runs_twice(yard: Yard) -> None:
    runs = [one.run for one in reconcile(yard, BACKLOG)]
    yard.on(runs[0], operating.close, by="me")
    yard.on(runs[1], operating.close, by="me")
    yard.on(runs[2], operating.cancel)
    changed = {**BACKLOG, "two": Task(title="two", content="more")}
    planned = reconcile(yard, changed)
    assert standings(planned) == [Standing.DONE, Standing.CHANGED, Standing.FAILED]
    assert [one.run.number for one in planned] == [run.number for run in runs]
    assert yard.read(lambda tx: len(tx.batch_runs("B"))) == 3


def test_failed_ones_run_again_when_asked(yard: Yard) -> None:
    runs = [one.run for one in reconcile(yard, BACKLOG)]
    yard.on(runs[0], operating.close, by="me")
    yard.on(runs[2], operating.cancel)
    planned = reconcile(yard, BACKLOG, retry_failed=True)
    assert standings(planned) == [Standing.DONE, Standing.GOING_ON, Standing.RETRIED]
    assert planned[2].run.retry_of == runs[2].number
    assert standings(reconcile(yard, BACKLOG, retry_failed=True)) == [
        Standing.DONE,
        Standing.GOING_ON,
        Standing.GOING_ON,
    ]


def test_everything_runs_again_when_asked(yard: Yard) -> None:
    runs = [one.run for one in reconcile(yard, BACKLOG)]
    yard.on(runs[0], operating.close, by="me")
    planned = reconcile(yard, BACKLOG, again=True)
    assert standings(planned) == [Standing.AGAIN, Standing.GOING_ON, Standing.GOING_ON]
    assert planned[0].run.retry_of == runs[0].number


def test_a_retried_need_is_the_new_run(yard: Yard) -> None:
    tasks = {"a": Task(title="a", id="a"), "b": Task(title="b", id="b", needs=("a",))}
    runs = [one.run for one in reconcile(yard, tasks)]
    yard.on(runs[0], operating.cancel)
    planned = reconcile(yard, tasks, retry_failed=True)
    assert standings(planned) == [Standing.RETRIED, Standing.RETRIED]
    assert yard.read(lambda tx: tx.needs_of(planned[1].run.number)) == [(planned[0].run.number, False)]


def test_a_new_task_may_need_a_done_one_of_its_batch(yard: Yard) -> None:
    tasks = {"id:a": Task(title="a", id="a")}
    (one,) = reconcile(yard, tasks)
    yard.on(one.run, operating.close, by="me")
    planned = reconcile(yard, {**tasks, "id:b": Task(title="b", id="b", needs=("a",))})
    assert standings(planned) == [Standing.DONE, Standing.NEW]
    assert planned[1].run.ready


def test_queued_ones_go_to_the_agent_that_is_named_now(yard: Yard) -> None:
    runs = [one.run for one in reconcile(yard, BACKLOG)]
    working = runs[0]
    yard.dispatch(bound=1)
    other = {key: Task(title=task.title, id=task.id, agent="b") for key, task in BACKLOG.items()}
    planned = reconcile(yard, other)
    assert standings(planned) == [Standing.GOING_ON] * 3
    assert [one.run.task.agent for one in planned] == [None, "b", "b"]
    assert yard.get(working).agent == "a"
    lanes = {yard.get(run).lane for run in runs}
    assert len(lanes) == 2
    assert yard.started() == [], "nobody knows b"


def test_another_batch_is_another_world(yard: Yard) -> None:
    reconcile(yard, BACKLOG)
    other: list[Planned] = yard.do(
        submitting.reconcile_batch, "C", list(BACKLOG.items()), retry_failed=False, again=False
    )
    assert standings(other) == [Standing.NEW] * 3


# a submit that is asked for again


def once(yard: Yard, key: str, digest: str, *titles: str) -> list[submitting.Submitted]:
    items = [Item(task=Task(title=title)) for title in titles]
    done: list[submitting.Submitted] = yard.do(submitting.submit_once, items, key=key, digest=digest, by="x")
    return done


def test_a_submit_with_a_key_is_answered_the_same(yard: Yard) -> None:
    first = once(yard, "k", "d", "a", "b")
    again = once(yard, "k", "d", "a", "b")
    assert [made.run.number for made in again] == [made.run.number for made in first]
    assert [made.created for made in first + again] == [True, True, False, False]
    with pytest.raises(Conflict, match="another submit"):
        once(yard, "k", "other", "a")
    assert len(once(yard, "other", "d", "a")) == 1


def test_answers_are_kept_for_two_days(yard: Yard) -> None:
    (first,) = once(yard, "k", "d", "a")
    yard.now += submitting.ANSWERS_KEPT_MS + 1
    once(yard, "other", "d", "b")
    (again,) = once(yard, "k", "d", "a")
    assert again.run.number != first.run.number
