"""What a person does to runs, routes, agents and the dispatcher."""

from __future__ import annotations

import pytest
from yard import Yard

from interlock.decide.outcome import OutcomeKind
from interlock.domain.errors import Conflict, IllegalTransition, InvalidInput, NotFound
from interlock.domain.run import Route
from interlock.domain.states import TERMINAL, RunState
from interlock.domain.task import PRIORITY_LIMIT
from interlock.service import claims, operating
from interlock.service.context import find_run
from interlock.service.moves import move


@pytest.mark.parametrize("state", list(RunState))
def test_cancel(yard: Yard, state: RunState) -> None:
    run = yard.bring(state)
    if state in TERMINAL:
        with pytest.raises(Conflict, match=f"has ended already: {state}"):
            yard.on(run, operating.cancel)
        return
    after = yard.on(run, operating.cancel)
    if state in (RunState.CLAIMED, RunState.RUNNING):
        assert (after.state, after.stop.kind) == (state, "cancel")
    else:
        assert (after.state, after.reason, after.message) == (
            RunState.CANCELLED,
            "operator",
            "cancelled by the operator",
        )


@pytest.mark.parametrize("words", ["", "  "])
def test_an_end_without_words_gets_some(yard: Yard, words: str) -> None:
    assert yard.on(yard.submit(), operating.cancel, message=words).message == "cancel by operator"
    assert yard.on(yard.submit(), operating.close, by="jira", message=words).message == "close by jira"


def test_done_elsewhere(yard: Yard) -> None:
    run = yard.submit()
    after = yard.submit("b", needs=(run.id,))
    closed = yard.on(run, operating.close, by="jira")
    assert (closed.state, closed.reason) == (RunState.COMPLETED, "external_completion")
    assert yard.get(after).ready
    with pytest.raises(Conflict):
        yard.on(run, operating.close, by="jira")


def test_hold(yard: Yard) -> None:
    run = yard.submit()
    held = yard.on(run, operating.hold)
    assert (held.held, held.ready, yard.started()) == (True, False, [])
    assert yard.on(run, operating.hold) == held
    yard.on(run, operating.unhold)
    assert yard.started() == [run.number]
    events = [event.event for event in yard.read(lambda tx: tx.events_of(run.number))]
    assert events[:3] == ["submit", "hold", "unhold"]
    with pytest.raises(Conflict, match="retry"):
        yard.on(yard.bring("completed"), operating.hold)


def test_priority(yard: Yard) -> None:
    first, second = yard.submit("1"), yard.submit("2")
    yard.on(second, operating.set_priority, 5)
    assert yard.started() == [second.number, first.number]
    with pytest.raises(InvalidInput):
        yard.on(first, operating.set_priority, PRIORITY_LIMIT + 1)
    with pytest.raises(Conflict):
        yard.on(yard.bring("failed"), operating.set_priority, 1)


def test_pause_takes_offers_back_and_lets_agents_go_on(yard: Yard) -> None:
    claim = yard.claimed()
    lost = yard.claimed()
    offer = yard.offered()
    yard.end(lost, OutcomeKind.LOST)
    yard.do(operating.pause, message="lunch")
    assert yard.get(offer).state is RunState.QUEUED
    assert yard.read(lambda tx: tx.count_states()) == {"claimed": 1, "queued": 2}
    again = yard.do(operating.pause, message="supper")
    assert (again.message, yard.read(operating.paused)) == ("lunch", again)
    assert yard.started() == []
    assert yard.do(lambda tx, _: operating.resume(tx)) is True
    assert yard.do(lambda tx, _: operating.resume(tx)) is False
    assert len(yard.started()) == 2
    assert yard.end(claim, OutcomeKind.COMPLETED).state is RunState.COMPLETED


# routes


def route(yard: Yard, priority: int = 0, **fields: object) -> Route:
    made: Route = yard.do(
        operating.put_route,
        Route(workflow_type="review", agent_id="a", priority=priority, **fields),  # type: ignore[arg-type]
    )
    return made


def test_a_routes_priority_is_added_to_that_of_every_unfinished_run(yard: Yard) -> None:
    done = yard.submit("done", type="review")
    yard.on(done, operating.cancel)
    claim = yard.claimed("working", type="review", priority=2)
    queued = yard.submit("queued", type="review", priority=1)
    route(yard, 10)
    back = yard.end(claim, OutcomeKind.DEFERRED)
    assert (yard.get(queued).priority, back.priority, yard.get(done).priority) == (11, 12, 0)
    assert yard.submit("new", type="review").priority == 10
    yard.do(lambda tx, _: operating.delete_route(tx, "review"))
    assert (yard.get(queued).priority, yard.get(back).priority) == (1, 2)


def test_a_changed_route_keeps_its_birthday(yard: Yard) -> None:
    born = route(yard).created_at
    yard.now += 5
    assert route(yard, 3).created_at == born


@pytest.mark.parametrize(
    "fields", [{"max_concurrent": -1}, {"timeout_minutes": 0}, {"stall_minutes": 0}, {"priority": PRIORITY_LIMIT + 1}]
)
def test_a_route_out_of_range(yard: Yard, fields: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        route(yard, **fields)


def test_no_such_route(yard: Yard) -> None:
    route(yard)
    with pytest.raises(NotFound) as caught:
        yard.do(lambda tx, _: operating.delete_route(tx, "build"))
    assert caught.value.hint == "routes: review"


# agents


def test_an_agent_that_cannot_start_is_tried_less_and_less_often(yard: Yard) -> None:
    waits = []
    for _ in range(10):
        health = yard.do(operating.agent_cannot_start, "a", "no such command")
        waits.append(health.retry_ms - yard.now)
        assert yard.do(operating.agent_cannot_start, "a", "the same moment") == health
        yard.now = health.retry_ms
    for n, wait in enumerate(waits):
        whole = min(300_000, 5000 * 2**n)
        assert whole // 2 <= wait <= whole
    assert health.tries == 10
    yard.do(lambda tx, _: operating.agent_started(tx, "a"))
    assert yard.read(lambda tx: tx.healths()) == {}


# prune


def test_old_runs_go_as_a_whole(yard: Yard) -> None:
    old = yard.bring("completed")
    cancelled = yard.bring("cancelled")
    yard.now += 1000
    young = yard.bring("completed")
    alive = yard.submit()
    gone = yard.do(lambda tx, _: operating.prune(tx, yard.now, 10))
    assert [number for number, _ in gone] == [old.number, cancelled.number]
    assert [len(folders) for _, folders in gone] == [1, 0]
    assert yard.read(lambda tx: (tx.run(old.number), tx.events_of(old.number), tx.attempts(old.number))) == (
        None,
        [],
        [],
    )
    assert yard.get(young) == young
    assert yard.get(alive) == alive
    assert yard.store.integrity_faults() == []


def test_pruning_is_bounded(yard: Yard) -> None:
    for _ in range(3):
        yard.bring("cancelled")
    yard.now += 1
    assert [len(yard.do(lambda tx, _: operating.prune(tx, yard.now, 2))) for _ in range(3)] == [2, 1, 0]


def test_lanes_without_runs_go_too(yard: Yard) -> None:
    yard.on(yard.submit(agent="x"), operating.cancel)
    kept = yard.submit(agent="y")
    yard.now += 1
    yard.do(lambda tx, _: operating.prune(tx, yard.now, 10))
    lanes = yard.read(lambda tx: tx.lanes(10))
    assert [lane.head_number for lane in lanes] == [kept.number]
    assert yard.submit(agent="x").ready


# naming a run


def test_a_run_has_many_names(yard: Yard) -> None:
    run = yard.submit()
    for name in (run.number, f"{run.number}", f"#{run.number}", f" #{run.number} ", run.id, run.id[:5], run.id.upper()):
        assert yard.read(lambda tx, name=name: find_run(tx, name)) == run  # type: ignore[misc]


@pytest.mark.parametrize("name", ["", "#", "#99", "99", "x", "r" * 50, "9" * 30, "#-1", "%", "_", "\u0661"])
def test_no_such_run(yard: Yard, name: str) -> None:
    yard.submit()
    with pytest.raises(NotFound):
        yard.read(lambda tx: find_run(tx, name))


def test_a_prefix_that_fits_several_names_them(yard: Yard) -> None:
    first, second = yard.submit(), yard.submit()
    with pytest.raises(NotFound, match="more than one") as caught:
        yard.read(lambda tx: find_run(tx, "r"))
    assert first.id in str(caught.value.hint)
    assert second.id in str(caught.value.hint)


# moves


def test_an_illegal_move_says_what_is_possible(yard: Yard) -> None:
    run = yard.submit()
    with pytest.raises(IllegalTransition, match="a run that is queued cannot complete") as caught:
        yard.on(run, move, "complete", by="me")
    assert caught.value.hint == "possible now: dispatch, close, reject, cancel"
    assert yard.get(run) == run


def test_holding_an_open_offer_takes_it_back(yard: Yard) -> None:
    run = yard.on(yard.offered(), operating.hold)
    assert (run.state, run.held) == (RunState.QUEUED, True)
    assert yard.started() == []


@pytest.mark.parametrize("brake", ["held", "paused", "disabled"])
def test_what_comes_back_with_its_slots_is_not_offered_under_a_brake(yard: Yard, brake: str) -> None:
    claim = yard.on(yard.offered(), claims.claim_offer, holder="h")
    if brake == "held":
        yard.on(yard.read(lambda tx: tx.run(claim.run)), operating.hold)
    elif brake == "paused":
        yard.do(operating.pause)
    else:
        yard.configure(enabled=False)
    back = yard.end(claim, OutcomeKind.RETURNED)
    assert back.state is RunState.QUEUED
    assert yard.read(lambda tx: tx.slots_of(claim.run)) == []


def test_an_offer_is_not_claimed_under_a_brake(yard: Yard) -> None:
    run = yard.offered()
    yard.configure(enabled=False)
    with pytest.raises(Conflict, match="cannot be claimed now: dispatching is switched off"):
        yard.on(run, claims.claim_offer, holder="h")
