"""Shadow: the decisions of a dispatcher, and not a byte written."""

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
from yard import START, Yard

from interlock.decide.outcome import OutcomeKind
from interlock.decide.reasons import WaitKind
from interlock.domain.errors import InterlockError
from interlock.domain.run import Instance, Route, Run
from interlock.domain.settings import Agent, Limits, Mode, Settings
from interlock.domain.states import RunState
from interlock.ports.store import Tx
from interlock.service import claims, operating, supervising
from interlock.service.shadow import Round, Taken, shadow

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
ME = Instance(id="shadow", host="", pid=1, boot_id="", ordinal=0, state="active")


class Shade:
    """A shadow over a yard."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.active: dict[int, Taken] = {}
        self.last: Round | None = None

    def look(self, **named: Any) -> list[tuple[int, str | None]]:
        """Rounds until nothing more would start; what would start, in order."""

        def decide(tx: Tx) -> Round:
            return shadow(tx, self.yard.ctx, list(self.active.values()), me=ME, **named)

        found = []
        while True:
            round_ = self.last = self.yard.store.rehearse_now(decide)
            for gone in round_.gone:
                del self.active[gone.number]
            for taken in round_.taken:
                self.active[taken.number] = taken
                found.append((taken.number, taken.agent))
            if not round_.again or round_.unchecked is not None:
                return found

    def waits(self) -> dict[int, WaitKind]:
        assert self.last is not None
        return {each.number: each.wait.kind for each in self.last.waits}


@pytest.fixture
def shade(yard: Yard) -> Shade:
    return Shade(yard)


def contents(yard: Yard) -> list[str]:
    raw = yard.raw()
    dump = list(raw.iterdump())
    raw.close()
    return dump


def test_nothing_is_written_and_nobody_hears_of_it(yard: Yard, shade: Shade) -> None:
    for number in range(30):
        yard.submit(f"task {number}", tags=(f"t{number % 3}",), not_before_ms=START + 10 if number % 5 == 0 else None)
    yard.do(operating.agent_cannot_start, "b", "broken")
    broken = yard.submit("broken")
    with yard.raw() as raw:
        raw.execute("UPDATE runs SET task = '{}' WHERE number = ?", (broken.number,))
    raw.close()
    yard.now += 20
    before = contents(yard)
    files = {
        path.name: path.read_bytes()
        for path in yard.path.parent.glob("interlock.db*")
        if not path.name.endswith("-shm")
    }
    changes = yard.store._writer.connection.total_changes
    assert len(shade.look()) == 30
    yard.configure(limits=Limits(total=100, per_tag={"t1": 1}))
    shade.look()
    assert contents(yard) == before
    assert {name: (yard.path.parent / name).read_bytes() for name in files} == files
    assert yard.store._writer.connection.total_changes == changes
    assert yard.store._writer.tx.take_news() is None


def test_it_says_who_would_start_and_why(yard: Yard, shade: Shade) -> None:
    yard.configure(agents={name: Agent(name=name, command="true") for name in ("a", "b", "c")})
    yard.do(operating.put_route, Route(workflow_type="review.*", agent_id="b", max_concurrent=None))
    yard.submit("1")
    yard.submit("2", type="review.code")
    yard.submit("3", agent="c")
    shade.look()
    assert [(taken.number, taken.agent, taken.by, taken.pull) for taken in shade.active.values()] == [
        (1, "a", "the default", False),
        (2, "b", "route review.*", False),
        (3, "c", "its own", False),
    ]
    yard.configure(mode=Mode.PULL, default_agent=None)
    yard.submit("4", type="other")
    shade.look()
    assert (shade.active[4].agent, shade.active[4].pull, shade.active[4].by) == (None, True, "")


def test_what_would_be_active_keeps_its_slots_until_it_ends(yard: Yard, shade: Shade) -> None:
    yard.configure(limits=Limits(total=2))
    runs = [yard.submit(str(number)) for number in range(4)]
    assert shade.look() == [(1, "a"), (2, "a")]
    assert shade.look() == []
    assert shade.waits() == {3: WaitKind.LIMIT, 4: WaitKind.LIMIT}
    yard.on(runs[0], operating.hold)
    assert shade.look() == [], "who works goes on, held or not"
    yard.on(runs[0], operating.close, by="x")
    assert shade.look() == [(3, "a")]
    yard.on(runs[1], operating.cancel)
    yard.store.write_now(lambda tx: operating.prune(tx, START + 1, 10))
    assert yard.read(lambda tx: tx.run(2)) is None
    assert shade.look() == [(4, "a")]


def test_a_pause_takes_offers_back_and_leaves_agents(yard: Yard, shade: Shade) -> None:
    yard.submit()
    assert shade.look() == [(1, "a")]
    yard.do(operating.pause)
    yard.submit()
    assert shade.look() == []
    assert list(shade.active) == [1]
    yard.store.write_now(operating.resume)
    assert shade.look() == [(2, "a")]
    pulled = Shade(yard)
    yard.configure(mode=Mode.PULL)
    assert pulled.look() == [(1, "a"), (2, "a")]
    yard.do(operating.pause)
    assert pulled.look() == []
    assert pulled.active == {}
    yard.store.write_now(operating.resume)
    assert pulled.look() == [(1, "a"), (2, "a")]


def test_beside_a_dispatcher_its_runs_are_its_own(yard: Yard, shade: Shade) -> None:
    yard.configure(limits=Limits(total=1))
    yard.submit("1")
    yard.submit("2")
    assert shade.look() == [(1, "a")]
    yard.dispatch()
    assert shade.look() == []
    assert shade.active == {}
    claim = claims.claim_of(yard.get(yard.read(lambda tx: tx.run(1))))  # type: ignore[arg-type]
    yard.end(claim, OutcomeKind.DEFERRED)
    assert shade.look() == [(2, "a")]


def test_what_was_done_in_truth_between_two_looks_is_noticed(yard: Yard, shade: Shade) -> None:
    yard.submit()
    shade.look()
    claim = claims.claim_of(yard.get(yard.dispatch().claimed[0][0]))
    yard.end(claim, OutcomeKind.DEFERRED)
    assert shade.look() == []
    assert shade.active == {}
    assert shade.waits() == {1: WaitKind.BACKOFF}


def test_a_run_that_lost_its_agent_would_start_again(yard: Yard, shade: Shade) -> None:
    yard.end(yard.claimed(), OutcomeKind.LOST)
    assert yard.read(lambda tx: tx.run(1)).state is RunState.DISPATCHED  # type: ignore[union-attr]
    assert shade.look() == [(1, "a")]
    assert shade.look() == []
    assert list(shade.active) == [1]


def test_offers_of_another_mode_come_back(yard: Yard, shade: Shade) -> None:
    yard.offered()
    assert shade.look() == [(1, "a")]
    assert shade.look() == []
    assert list(shade.active) == [1]


def test_time_alone_lets_runs_start(yard: Yard, shade: Shade) -> None:
    yard.submit(not_before_ms=START + 1000)
    assert shade.look() == []
    assert shade.last is not None
    assert shade.last.next_ms == START + 1000
    yard.now = START + 1000
    assert shade.look() == [(1, "a")]


def test_agents_that_cannot_be_started(yard: Yard, shade: Shade) -> None:
    yard.submit()
    assert shade.look(fit=[]) == []
    assert shade.last is not None
    assert shade.last.unchecked == yard.settings.agents["a"]
    assert shade.look(fit=[], unfit={"a": "no such command"}) == []
    assert shade.waits() == {1: WaitKind.AGENT_UNAVAILABLE}
    assert shade.look(fit=["a"]) == [(1, "a")]


def test_an_agent_on_trial_is_tried_by_one_and_then_by_all(yard: Yard, shade: Shade) -> None:
    yard.do(operating.agent_cannot_start, "a", "no such command")
    for number in range(3):
        yard.submit(str(number))
    assert shade.look() == []
    yard.now += 60_000
    assert shade.look() == [(1, "a"), (2, "a"), (3, "a")]


def test_lanes_are_keyed_by_the_limits_in_force(yard: Yard, shade: Shade) -> None:
    yard.submit("1", tags=("x",))
    yard.submit("2", tags=("x",))
    yard.submit("3", tags=("y",))
    yard.configure(limits=Limits(total=10, per_tag={"x": 1}))
    assert shade.look() == [(1, "a"), (3, "a")]
    assert shade.last is not None
    assert not shade.last.misfiled


def test_too_many_to_file_anew_is_said(yard: Yard, shade: Shade, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.service.shadow.REFILED", 1)
    yard.submit("1")
    yard.submit("2")
    yard.configure(limits=Limits(total=10, per_tag={"x": 1}))
    shade.look()
    assert shade.last is not None
    assert shade.last.misfiled


# the same as a dispatcher whose agents never end


@contextmanager
def two_yards(config: Settings) -> Iterator[tuple[Yard, Yard]]:
    with TemporaryDirectory(dir=MEMORY) as folder:
        both = [Yard(Path(folder) / name, config) for name in ("real", "shadow")]
        try:
            yield both[0], both[1]
        finally:
            for yard in both:
                yard.store.close()


TAGS, TYPES, AGENTS = ("x", "y"), ("review.code", "review.text", "report"), ("a", "b", "ghost")
TASKS = st.fixed_dictionaries(
    {
        "priority": st.integers(0, 3),
        "tags": st.lists(st.sampled_from(TAGS), max_size=2, unique=True).map(tuple),
        "project": st.sampled_from([None, "p"]),
        "type": st.sampled_from([None, *TYPES]),
        "agent": st.sampled_from([None, None, *AGENTS]),
        "held": st.sampled_from([False, False, False, True]),
        "delay": st.sampled_from([None, None, 1000, 3000]),
        "need": st.sampled_from([None, None, 1, 2]),
    }
)
SMALL = st.sampled_from([0, 1, 1, 2])
LIMITS = st.builds(
    Limits,
    total=st.integers(0, 6),
    per_tag=st.dictionaries(st.sampled_from(TAGS), SMALL),
    per_project=st.dictionaries(st.just("p"), SMALL),
    per_agent=st.dictionaries(st.sampled_from(AGENTS), SMALL),
)
ROUTES = st.builds(
    Route,
    workflow_type=st.sampled_from([*TYPES, "review.*", "*"]),
    agent_id=st.sampled_from(AGENTS),
    priority=st.integers(0, 2),
    max_concurrent=st.sampled_from([None, 0, 1, 2]),
)
STEPS = st.one_of(
    st.tuples(st.just("submit"), st.lists(TASKS, min_size=1, max_size=6)),
    st.tuples(st.just("route"), ROUTES),
    st.tuples(st.sampled_from(["hold", "unhold", "end", "cancel"]), st.integers(1, 12)),
    st.tuples(st.just("priority"), st.integers(1, 12)),
    st.tuples(st.sampled_from(["pause", "resume"]), st.none()),
    st.tuples(st.just("later"), st.integers(100, 3000)),
)


def act(yard: Yard, step: tuple[str, Any]) -> None:
    what, value = step
    if what == "submit":
        for fields in value:
            given_fields = dict(fields)
            delay, need = given_fields.pop("delay"), given_fields.pop("need")
            there = need is not None and yard.read(lambda tx, need=need: tx.run(need)) is not None  # type: ignore[misc]
            yard.submit(
                **given_fields,
                not_before_ms=None if delay is None else yard.now + delay,
                needs=(f"#{need}",) if there else (),
            )
    elif what == "route":
        yard.do(operating.put_route, value)
    elif what == "pause":
        yard.do(operating.pause)
    elif what == "resume":
        yard.store.write_now(operating.resume)
    elif what == "later":
        yard.now += value
    else:
        run = yard.read(lambda tx: tx.run(value))
        if run is not None:
            on_run(yard, what, run)


def on_run(yard: Yard, what: str, run: Run) -> None:
    try:
        if what == "priority":
            yard.on(run, operating.set_priority, 5)
        elif what in ("hold", "unhold"):
            yard.on(run, getattr(operating, what))
        else:
            yard.on(run, *((operating.close,) if what == "end" else (operating.cancel,)), by="x")
            now = yard.get(run)
            if now.held_by_agent:
                kind = OutcomeKind.COMPLETED if what == "end" else OutcomeKind.CANCELLED
                yard.end(claims.claim_of(now), kind)
    except InterlockError:
        # It has ended in both.
        return


def really(yard: Yard) -> list[tuple[int, str | None]]:
    """A dispatcher's rounds, until nothing more starts; its agents are up at once."""
    found: list[tuple[int, str | None]] = []
    while True:
        done = yard.dispatch(bound=7)
        for run, _ in done.claimed:
            yard.do(claims.start, run.number, run.holder, run.fence)
        found += [(run.number, run.agent) for run, _ in done.claimed]
        found += [(run.number, run.agent) for run in done.offered]
        if not done.claimed and not done.offered:
            return found


@settings(max_examples=150, deadline=None)
@given(LIMITS, st.sampled_from([Mode.PUSH, Mode.PUSH, Mode.PULL]), st.lists(STEPS, min_size=1, max_size=8))
def test_it_decides_as_a_dispatcher_whose_agents_never_end(
    limits: Limits, mode: Mode, steps: list[tuple[str, Any]]
) -> None:
    config = Settings(
        agents={name: Agent(name=name, command="true") for name in ("a", "b")},
        default_agent="a",
        limits=limits,
        mode=mode,
    )
    with two_yards(config) as (real, dim):
        shade = Shade(dim)
        for step in steps:
            act(real, step)
            act(dim, step)
            real.do(supervising.reap, 100)
            before = contents(dim)
            assert shade.look(bound=7) == really(real), step
            assert contents(dim) == before
            active = {run.number for run in real.read(lambda tx: tx.live_runs())}
            assert set(shade.active) == active
