"""The engine of ``interlock verify``: it explores, finds what is broken, makes it small, and leaves nothing behind."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import broken_stores as broken

from interlock.domain.run import Route
from interlock.domain.settings import Agent, Limits, Mode, Role, Settings
from interlock.service import dispatching
from interlock.testing import Explored, LimitUse
from interlock.testing.beside.desk import StoreDesk, memory
from interlock.testing.impossible import impossible
from interlock.testing.verifying import STAND_IN, Exploration
from interlock.testing.walks import _Smaller

SETTINGS = Settings(
    limits=Limits(total=4, per_tag={"gpu": 1}, per_project={"shop": 2}),
    agents={"w": Agent(name="w", command="x", max_concurrent=3), "v": Agent(name="v", command="x")},
    roles={"rev": Role(name="rev", agent="v")},
    default_agent="w",
)
ROUTES = (Route(workflow_type="review", agent_id="v", max_concurrent=2),)


def counting() -> Callable[[], float]:
    """A clock on which every look costs a second."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


def left_behind() -> list[Path]:
    return list(Path(memory() or "/tmp").glob(f"interlock-verify-{os.getpid()}-*"))


def walks_only(exploration: Exploration, walks: int, **more: Any) -> None:
    """Some walks and no simulation."""
    exploration.seconds["simulation"] = 1e9
    exploration.run(counting(), until=2 * walks, **more)


@pytest.fixture
def ignores_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that dispatches past the limits of tags."""
    whole = dispatching.saturated

    def blind(keys: Any, used: Any, limits: Any) -> Any:
        return [one for one in whole(keys, used, limits) if not one.key.startswith("tag:")]

    monkeypatch.setattr(dispatching, "saturated", blind)


def test_a_sound_service_is_explored_and_nothing_is_found() -> None:
    exploration = Exploration(SETTINGS, ROUTES, seed=1)
    walks_only(exploration, 60)
    explored = exploration.explored
    assert exploration.finding is None
    assert explored.walks >= 20
    assert explored.limits["tag:gpu"].filled
    assert explored.limits["tag:gpu"].highest == 1
    assert explored.limits["global"].highest == 4
    assert explored.routes["review -> v"]
    assert {"submit", "dispatch", "claim", "complete", "cancel"} <= set(explored.events)
    assert {"queued", "running", "completed"} <= set(explored.states)
    assert explored.faults["restart"]
    assert explored.refusals["stale_claim"]
    assert not left_behind()


def test_walks_and_simulations_take_turns() -> None:
    exploration = Exploration(SETTINGS, ROUTES, seed=3)
    exploration.run(counting(), until=20)
    assert exploration.finding is None, exploration.finding
    assert exploration.explored.walks >= 1
    assert exploration.explored.simulations >= 1
    assert exploration.explored.simulated_hours >= 1


def test_a_broken_service_is_found_with_a_small_story(ignores_tags: None) -> None:
    exploration = Exploration(SETTINGS, ROUTES, seed=1)
    walks_only(exploration, 200)
    finding = exploration.finding
    assert finding is not None
    assert finding.how == "walk"
    assert finding.smallest
    assert "tag:gpu allows 1 at once" in finding.fault
    assert len(finding.lines) <= 8, finding.lines
    assert [line for line in finding.lines if line.startswith("submit a task (tags gpu")]
    assert finding.lines[-1].startswith("dispatch by o1")

    again = Exploration(SETTINGS, ROUTES, seed=finding.seed)
    again.run(counting(), until=1, once=True)
    assert again.finding == finding


def test_a_simulation_finds_it_too(ignores_tags: None) -> None:
    for seed in range(20):
        exploration = Exploration(SETTINGS, seed=seed)
        exploration._simulate(seed, counting())
        if exploration.finding is not None:
            break
    assert exploration.finding is not None
    assert exploration.finding.how == "simulation"
    assert "tag:gpu" in exploration.finding.fault
    assert exploration.finding.lines
    assert exploration.explored.simulations == 1


def test_a_broken_store_is_found(tmp_path: Path) -> None:
    forgetful = broken.bent(meet_need=lambda tx, run, need: None)
    exploration = Exploration(SETTINGS, seed=1)
    walks_only(exploration, 200, desk=lambda folder: StoreDesk(forgetful, within=folder))
    finding = exploration.finding
    assert finding is not None
    assert "needs" in finding.fault
    assert len(finding.lines) <= 6
    assert not left_behind()


def test_an_error_that_nobody_expects_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("interlock.service.operating.set_priority", crash)
    exploration = Exploration(SETTINGS, seed=1)
    walks_only(exploration, 200)
    assert exploration.finding is not None
    assert exploration.finding.fault == "ZeroDivisionError: division by zero"
    assert len(exploration.finding.lines) == 3


def test_ctrl_c_keeps_what_was_seen_and_leaves_nothing() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    exploration = Exploration(SETTINGS, seed=1)
    with pytest.raises(KeyboardInterrupt):
        walks_only(exploration, 50, seen=interrupt)
    assert exploration.explored.walks == 1
    assert not left_behind()


def test_ctrl_c_in_the_middle_of_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("interlock.service.operating.set_priority", interrupt)
    exploration = Exploration(SETTINGS, seed=1)
    with pytest.raises(KeyboardInterrupt):
        walks_only(exploration, 200)
    assert exploration.finding is None
    assert exploration.explored.steps > 0
    assert not left_behind()


def test_ctrl_c_while_a_story_is_made_small(ignores_tags: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_Smaller, "leave_out", interrupt)
    exploration = Exploration(SETTINGS, seed=1)
    with pytest.raises(KeyboardInterrupt):
        walks_only(exploration, 200)
    assert exploration.finding is not None
    assert not exploration.finding.smallest
    assert len(exploration.finding.lines) > 5
    assert not left_behind()


def test_without_agents_a_stand_in_does_the_work() -> None:
    exploration = Exploration(Settings(), seed=1)
    walks_only(exploration, 40)
    assert exploration.finding is None
    assert exploration.explored.events["claim"]
    assert set(exploration.settings.agents) == {STAND_IN}
    assert not Exploration(Settings(mode=Mode.PULL), seed=1).stand_in


def test_the_same_seed_explores_the_same() -> None:
    seen = []
    for _ in range(2):
        exploration = Exploration(SETTINGS, ROUTES, seed=7)
        walks_only(exploration, 12)
        seen.append(exploration.explored)
    assert seen[0] == seen[1]


# what a configuration makes impossible


def notes(settings: Settings, *routes: Route, **limits: LimitUse) -> list[str]:
    return impossible(settings, routes, Explored(limits={name.replace("_", ":"): use for name, use in limits.items()}))


def changed(**changes: Any) -> Settings:
    return msgspec.structs.replace(SETTINGS, **changes)


def test_a_sound_configuration_makes_nothing_impossible() -> None:
    assert notes(SETTINGS, *ROUTES) == []


@pytest.mark.parametrize(
    ("settings", "routes", "words"),
    [
        (changed(enabled=False), (), "dispatch.enabled is false"),
        (changed(agents={}, roles={}, default_agent=None), (), "a stand-in did the work here"),
        (changed(limits=Limits(total=0)), (), "the limit global is 0: nothing ever starts"),
        (changed(limits=Limits(per_tag={"gpu": 0})), (), "the limit tag:gpu is 0: nothing of tag 'gpu' ever starts"),
        (changed(limits=Limits(total=3, per_tag={"gpu": 5})), (), "tag:gpu is 5 and can never be reached"),
        (changed(limits=Limits(per_agent={"x": 1})), (), "the limit agent:x speaks of an agent that is not defined"),
        (changed(roles={"r": Role(name="r", agent="x")}), (), "the role 'r' can never be worked for"),
        (SETTINGS, (Route(workflow_type="t", agent_id="x"),), "the route of type 't' can never be taken"),
        (SETTINGS, (Route(workflow_type="t", agent_id="w", max_concurrent=0),), "nothing of type 't' ever starts"),
        (changed(roles={}, default_agent=None), (), "a task that names none never starts"),
        (changed(roles={}), (), "nothing leads to the agent 'v' but a task that names it"),
        (changed(deadline_ms=60_000), (), "dispatch.timeout (60 minutes) is never reached"),
    ],
)
def test_what_is_impossible_is_said(settings: Settings, routes: tuple[Route, ...], words: str) -> None:
    assert [note for note in notes(settings, *routes) if words in note], notes(settings, *routes)


def test_what_happened_all_the_same_is_not_called_impossible() -> None:
    wide = changed(limits=Limits(total=3, per_tag={"gpu": 5}))
    assert notes(wide, tag_gpu=LimitUse(cap=5, highest=5, filled=1)) == []
    route = Route(workflow_type="t", agent_id="x")
    assert impossible(SETTINGS, [route], Explored(routes={"t -> x": 1})) == []


def test_what_was_explored_adds_up() -> None:
    one = Explored(walks=1, steps=2, events={"a": 1}, limits={"k": LimitUse(cap=3, highest=1, filled=0)})
    one.add(Explored(walks=1, steps=3, events={"a": 1, "b": 2}, limits={"k": LimitUse(cap=2, highest=2, filled=1)}))
    assert one == Explored(
        walks=2, steps=5, events={"a": 2, "b": 2}, limits={"k": LimitUse(cap=2, highest=2, filled=1)}
    )
