"""Who does the work: the task's own agent, else its route's, else its role's, else the default."""

from __future__ import annotations

import pytest

from interlock.decide.routing import agent_for, is_pattern, route_for, waits_for_route
from interlock.domain.run import Route
from interlock.domain.settings import Mode, Role, Settings
from interlock.domain.task import Task

ROUTES = {"review": Route(workflow_type="review", agent_id="of-route")}
SETTINGS = Settings(
    roles={"r": Role(name="r", agent="of-role"), "idle": Role(name="idle")}, default_role="r", default_agent="default"
)


@pytest.mark.parametrize(
    ("fields", "agent"),
    [
        ({"agent": "own", "type": "review", "role": "r"}, "own"),
        ({"type": "review", "role": "r"}, "of-route"),
        ({"type": "build", "role": "r"}, "of-role"),
        ({}, "of-role"),
        ({"role": "idle"}, "default"),
        ({"role": "unknown"}, "default"),
    ],
)
def test_the_first_that_says_so(fields: dict[str, str], agent: str) -> None:
    assert agent_for(Task(title="t", **fields), ROUTES, SETTINGS) == agent  # type: ignore[arg-type]


def test_nobody() -> None:
    assert agent_for(Task(title="t"), {}, Settings()) is None


def test_what_is_missing_is_said_with_its_remedy() -> None:
    task = Task(title="t", type="build")
    assert waits_for_route(task, "a", {"a": 1}, Settings()) is None
    no_route = waits_for_route(task, None, {}, Settings()) or ""
    assert "no route for type 'build'" in no_route
    assert "interlock routes set build" in no_route
    assert "--agent" in (waits_for_route(Task(title="t"), None, {}, Settings()) or "")
    unknown = waits_for_route(task, "ghost", {"a": 1}, Settings()) or ""
    assert "agent 'ghost'" in unknown
    assert "under `agents:`" in unknown


def test_agents_that_pull_need_no_route() -> None:
    assert waits_for_route(Task(title="t"), None, {}, Settings(mode=Mode.PULL)) is None


@pytest.mark.parametrize(
    ("workflow_type", "pattern"),
    [
        ("review.code.rust", "review.code.rust"),
        ("review.code.go", "review.code.*"),
        ("review.docs", "review.*"),
        ("build", "*"),
        ("review.", "review.*"),
        ("Review.docs", "*"),
        (None, None),
    ],
)
def test_the_most_specific_pattern_wins(workflow_type: str | None, pattern: str | None) -> None:
    patterns = ("*", "review.*", "review.code.*", "review.code.rust")
    routes = {each: Route(workflow_type=each, agent_id="a") for each in patterns}
    found = route_for(workflow_type, routes)
    assert (found and found.workflow_type) == pattern


@pytest.mark.parametrize("other", ["re*", "r*b*d"])
def test_more_that_is_spelt_out_is_more_specific(other: str) -> None:
    routes = {each: Route(workflow_type=each, agent_id=each) for each in ("*build", other)}
    found = route_for("rebuild", routes)
    assert found is not None
    assert found.workflow_type == "*build"


def test_a_type_of_that_very_name_comes_first() -> None:
    routes = {each: Route(workflow_type=each, agent_id=each) for each in ("[x]", "*")}
    found = route_for("[x]", routes)
    assert found is not None
    assert found.workflow_type == "[x]"


def test_of_two_as_specific_it_is_always_the_same() -> None:
    routes = {each: Route(workflow_type=each, agent_id=each) for each in ("a*", "*b")}
    backwards = dict(reversed(routes.items()))
    assert route_for("ab", routes) == route_for("ab", backwards) is not None
    assert route_for("c", routes) is None


def test_what_a_pattern_is() -> None:
    assert [each for each in ("a", "X", "a.*", "?", "[ab]") if is_pattern(each)] == ["a.*", "?", "[ab]"]
