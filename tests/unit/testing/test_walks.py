"""Walks find what is wrong: for each kind of check a service or a store that is wrong in just that, and the story is small."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import settings as how

sys.path.insert(0, str(Path(__file__).parent))

import broken_stores as broken

from interlock.domain.run import Route
from interlock.domain.settings import Agent, Limits, Settings
from interlock.domain.states import RunState
from interlock.ports.store import Store
from interlock.service import claims, dispatching, moves, supervising
from interlock.store.sqlite import SqliteStore
from interlock.testing import Explored, FailingStory, ServiceMachine, WalkFailed, walk
from interlock.testing.beside.desk import Loop, StoreDesk
from interlock.testing.beside.steps.work import has_circle

replace = msgspec.structs.replace
MINE = Settings(
    limits=Limits(total=2, per_tag={"gpu": 1}), agents={"w": Agent(name="w", command="x")}, default_agent="w"
)


def story_of(most_seeds: int = 80, **named: Any) -> FailingStory:
    """The story of the first walk that fails."""
    for seed in range(most_seeds):
        try:
            walk(seed, **named)
        except WalkFailed as failure:
            return failure.story
    raise AssertionError("no walk found it")


Patch = Callable[[pytest.MonkeyPatch], None]


def no_fences(patch: pytest.MonkeyPatch) -> None:
    """Whoever had a claim once may write."""
    whole = claims.checked

    def checked(tx: Any, number: int, holder: str, fence: int) -> Any:
        run = tx.run(number)
        if run is not None and run.held_by_agent:
            return whole(tx, number, run.holder, run.fence)
        return whole(tx, number, holder, fence)

    patch.setattr(claims, "checked", checked)


def odd_reasons(patch: pytest.MonkeyPatch) -> None:
    whole = claims.settle
    patch.setattr(claims, "settle", lambda *arguments: replace(whole(*arguments), reason="because"))


def longer_waits(patch: pytest.MonkeyPatch) -> None:
    whole = claims.settle

    def settle(*arguments: Any) -> Any:
        settled = whole(*arguments)
        late = settled.not_before_ms
        return settled if late is None else replace(settled, not_before_ms=late + 400_000)

    patch.setattr(claims, "settle", settle)


def never_exhausted(patch: pytest.MonkeyPatch) -> None:
    whole = claims.settle

    def settle(run: Any, outcome: Any, settings: Settings, *more: Any) -> Any:
        return whole(run, outcome, replace(settings, retry=replace(settings.retry, max_retries=99)), *more)

    patch.setattr(claims, "settle", settle)


def silent_moves(patch: pytest.MonkeyPatch) -> None:
    """A cancel leaves no line in the log."""
    whole = moves.record

    def record(tx: Any, ctx: Any, run: Any, event: Any, **more: Any) -> None:
        if str(event) != "cancel":
            whole(tx, ctx, run, event, **more)

    patch.setattr(moves, "record", record)


def forgotten_deadlines(patch: pytest.MonkeyPatch) -> None:
    whole = moves.derived

    def derived(run: Any, *more: Any) -> Any:
        made = whole(run, *more)
        return replace(made, due_ms=None) if made.state is RunState.QUEUED else made

    patch.setattr(moves, "derived", derived)


def takes_anything_over(patch: pytest.MonkeyPatch) -> None:
    whole = supervising.adopt

    def adopt(tx: Any, ctx: Any, number: int, *, old_owner: str, new_owner: str) -> Any:
        run = tx.run(number)
        return whole(tx, ctx, number, old_owner=run.owner or old_owner, new_owner=new_owner)

    patch.setattr(supervising, "adopt", adopt)


def spinning(patch: pytest.MonkeyPatch) -> None:
    whole = supervising.reap

    def reap(tx: Any, ctx: Any, bound: int) -> Any:
        return whole(tx, ctx, bound) or [
            supervising.Reaped(run=tx.run(1), due=supervising.Due(kind=supervising.DueKind.NOTHING))
        ]

    patch.setattr(supervising, "reap", reap)


def counts_downtime(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(supervising, "catch_up", lambda *_, **__: 0)


SERVICES: list[tuple[Patch, str]] = [
    (no_fences, "this should have been refused (stale_claim) and was done"),
    (odd_reasons, "ended without a known reason"),
    (longer_waits, "should lie between"),
    (never_exhausted, "state is 'queued' and should be 'failed'"),
    (silent_moves, "the log tells"),
    (forgotten_deadlines, "is due at None and should be at"),
    (takes_anything_over, "which o"),
    (spinning, "the reaper would spin"),
    (counts_downtime, "deadlines were moved on by 0 ms"),
]


@pytest.mark.parametrize(("patch", "words"), SERVICES, ids=[patch.__name__ for patch, _ in SERVICES])
def test_a_wrong_service_is_found(monkeypatch: pytest.MonkeyPatch, patch: Patch, words: str) -> None:
    patch(monkeypatch)
    story = story_of()
    assert words in story.fault
    assert len(story.lines) <= 12
    assert len(story.lines) <= story.steps_before + 1


def older_fence(tx: Any, run: int) -> list[Any]:
    return [replace(attempt, fence=attempt.fence + 1) for attempt in tx.attempts(run)]


def changed_after_the_end(tx: Any, by: Any) -> Any:
    runs = tx.find_runs(by)
    count = next(_ticks)
    return [replace(run, updated_ms=count) if run.terminal else run for run in runs]


_ticks = itertools.count()

STORES: list[tuple[dict[str, Callable[..., Any]], str]] = [
    ({"attempts": older_fence}, "has attempts [2] under fence 1"),
    ({"attempts": lambda tx, run: [replace(a, ended_ms=None) for a in tx.attempts(run)]}, "live attempts"),
    ({"find_runs": changed_after_the_end}, "had ended and was changed"),
    ({"find_runs": lambda tx, by: tx.find_runs(by)[1:]}, "these runs are not there"),
    ({"slots_of": lambda tx, run: []}, "holds the slots []"),
    ({"slot_faults": lambda tx: ["one too many"]}, "the books of slots are wrong: one too many"),
    ({"recount": lambda tx: {}}, "by a recount {}"),
    ({"lanes": lambda tx, n, after=None: []}, "the heads of lanes are {}"),
    ({"lanes": lambda tx, n, after=None: tx.lanes(n, after)[::-1]}, "in the order of their heads"),
    ({"lane": lambda tx, key: tx.lane("{}")}, "queued runs share lanes"),
    ({"needs_of": lambda tx, run: []}, "needs, and 0 are not met"),
    (
        {"events_after": lambda tx, seq, n: [replace(e, from_state=None) for e in tx.events_after(seq, n)]},
        "the log of #1 has a gap",
    ),
    ({"add_event": lambda tx, event: tx.add_event(replace(event, to_state="running"))}, "was submitted as running"),
    ({"renew_owned": lambda tx, *arguments: tx.renew_owned(*arguments) + 1}, "were renewed, and it has"),
    ({"due": lambda tx, now, n: [r for r in tx.due(now, n) if tx.run(r).state != "queued"]}, "after the reaper"),
]


@pytest.mark.parametrize(("methods", "words"), STORES, ids=[words for _, words in STORES])
def test_a_wrong_store_is_found(methods: dict[str, Callable[..., Any]], words: str) -> None:
    story = story_of(make_store=broken.bent(**methods))
    assert words in story.fault
    assert len(story.lines) <= 12


def test_a_refusal_that_changes_something_is_found() -> None:
    story = story_of(make_store=broken.ScribblesOnRefusals)
    assert story.fault.startswith("a command that was refused (")
    assert story.fault.endswith("changed something")
    assert len(story.lines) <= 4


def test_a_walk_is_the_same_again() -> None:
    assert walk(5) == walk(5)
    assert walk(5, settings=MINE) == walk(5, settings=MINE)
    assert walk(5) != walk(6)


def test_the_story_is_made_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not matter has its plainest value: no priority, no tag but the one that it is about."""
    whole = dispatching.saturated
    monkeypatch.setattr(
        dispatching,
        "saturated",
        lambda keys, used, limits: [one for one in whole(keys, used, limits) if one.key != "tag:gpu"],
    )
    story = story_of(settings=MINE)
    tasks = [line for line in story.lines if line.startswith("submit a task (")]
    assert tasks
    assert all("tags gpu" in line for line in tasks)
    assert not [line for line in tasks if any(word in line for word in ("priority", "timeout", "batch", "project"))]
    assert "dispatch by o1" in story.lines[-1]


def test_given_settings_and_routes_are_walked_under() -> None:
    routes = (Route(workflow_type="review", agent_id="w", max_concurrent=1),)
    explored = Explored()
    for seed in range(25):
        explored.add(walk(seed, settings=MINE, routes=routes))
    assert set(explored.limits) == {"global", "tag:gpu", "route:review"}
    assert {key: use.highest for key, use in explored.limits.items()} == {"global": 2, "tag:gpu": 1, "route:review": 1}
    assert explored.routes["review -> w"]


def test_any_store_will_do(tmp_path: Path) -> None:
    opened: list[Path] = []

    async def make(folder: Path) -> Store:
        opened.append(folder)
        return SqliteStore(folder, create=True)

    explored = walk(1, make_store=make, settings=MINE)
    assert explored == walk(1, settings=MINE)
    assert opened
    assert not any(folder.exists() for folder in opened)


def test_the_machine_takes_a_store_and_settings() -> None:
    made: list[Path] = []

    class Mine(ServiceMachine):
        configuration = MINE
        routes = (Route(workflow_type="review", agent_id="w"),)

        def make_store(self, folder: Path) -> Store:
            made.append(folder)
            return SqliteStore(folder, create=True, inline=True)

    Mine.TestCase.settings = how(
        max_examples=4, stateful_step_count=15, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    Mine.TestCase().runTest()
    assert made
    assert not any(folder.exists() for folder in made)


def test_the_machine_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    silent_moves(monkeypatch)

    class Mine(ServiceMachine):
        configuration = MINE

    Mine.TestCase.settings = how(
        max_examples=200,
        stateful_step_count=20,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    with pytest.raises(AssertionError, match="the log tells"):
        Mine.TestCase().runTest()


def test_a_loop_of_its_own_ends() -> None:
    loop = Loop()

    async def answer(number: int) -> int:
        return number + 1

    assert loop.call(answer, 1) == 2
    loop.close()
    assert not loop._thread.is_alive()


def test_a_store_that_cannot_be_opened_leaves_no_loop(tmp_path: Path) -> None:
    def make(folder: Path) -> Store:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        StoreDesk(make, within=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("edges", "circular"),
    [
        ((), False),
        ((("a", "a"),), True),
        ((("a", "b"), ("b", "c")), False),
        ((("a", "b"), ("b", "c"), ("c", "a")), True),
    ],
)
def test_circles(edges: tuple[tuple[str, str], ...], circular: bool) -> None:
    assert has_circle(edges) is circular
