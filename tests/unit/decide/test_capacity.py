"""Which slots a run takes, how many there are, and which limit is the most restrictive."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from interlock.decide.capacity import Saturated, caps, saturated, slot_keys
from interlock.domain.run import Route
from interlock.domain.settings import Agent, Limits, Settings
from interlock.domain.task import Task

FULL = Task(title="t", project="p", tracker="gh", role="r", type="review", tags=("gpu", "net", "gpu"))


def test_a_slot_for_every_value_it_has_limited_or_not() -> None:
    assert slot_keys(FULL, "a", Settings()) == (
        "global",
        "project:p",
        "tracker:gh",
        "role:r",
        "route:review",
        "agent:a",
        "tag:gpu",
        "tag:net",
    )


def test_one_slot_for_a_run_without_anything() -> None:
    assert slot_keys(Task(title="t"), None, Settings()) == ("global",)


def test_the_default_role_counts_as_its_role() -> None:
    assert "role:coder" in slot_keys(Task(title="t"), None, Settings(default_role="coder"))
    assert "role:r" in slot_keys(FULL, None, Settings(default_role="coder"))


def test_every_kind_of_limit() -> None:
    settings = Settings(
        limits=Limits(
            total=7,
            per_project={"p": 1},
            per_tracker={"gh": 2},
            per_role={"r": 3},
            per_tag={"gpu": 0},
            per_agent={"a": 5, "b": 9, "c": 3, "remote": 6},
        ),
        agents={"a": Agent(name="a", max_concurrent=8), "b": Agent(name="b", max_concurrent=2), "c": Agent(name="c")},
    )
    routes = {
        "review": Route(workflow_type="review", agent_id="a", max_concurrent=4),
        "free": Route(workflow_type="free", agent_id="a", max_concurrent=None),
    }
    assert caps(settings, routes) == {
        "global": 7,
        "project:p": 1,
        "tracker:gh": 2,
        "role:r": 3,
        "tag:gpu": 0,
        "agent:a": 5,
        "agent:b": 2,
        "agent:c": 3,
        "agent:remote": 6,
        "route:review": 4,
    }


def test_what_is_full_says_by_how_much() -> None:
    used = {"global": 3, "tag:gpu": 2, "project:p": 1}
    limits = {"global": 10, "tag:gpu": 1, "project:p": 1}
    assert saturated(("global", "project:p", "tag:gpu", "role:r"), used, limits) == [
        Saturated("project:p", 1, 1),
        Saturated("tag:gpu", 2, 1),
    ]


def test_a_limit_of_nothing_is_full_at_once() -> None:
    assert saturated(("tag:gpu",), {}, {"tag:gpu": 0}) == [Saturated("tag:gpu", 0, 0)]
    assert saturated(("tag:gpu",), {}, {"tag:gpu": 1}) == []


KEYS = st.sampled_from(["global", "tag:a", "tag:b", "project:p", "agent:x"])


@given(
    st.sets(KEYS),
    st.dictionaries(KEYS, st.integers(0, 5)),
    st.dictionaries(KEYS, st.integers(0, 5)),
)
def test_one_more_fits_when_every_limit_has_room_and_only_then(
    keys: set[str], used: dict[str, int], limits: dict[str, int]
) -> None:
    after = Counter(used)
    after.update(keys)
    fits = all(after[key] <= cap for key, cap in limits.items() if key in keys)
    assert (not saturated(keys, used, limits)) == fits


def test_a_limit_of_a_pattern_is_for_each_type_that_matches_it() -> None:
    routes = {
        "review.*": Route(workflow_type="review.*", agent_id="a", max_concurrent=2),
        "review.code": Route(workflow_type="review.code", agent_id="a", max_concurrent=None),
    }
    limits = caps(Settings(), routes)
    assert limits.get("route:review.docs") == 2
    assert limits.get("route:review.code") is None, "the most specific one does not limit it"
    assert limits.get("route:build") is None
    assert limits.get("label:review.docs") is None
    assert limits.get("label:review.docs", 7) == limits.get("route:build", 7) == 7
    assert limits.get("route:review.docs", 7) == 2
    assert limits.get("global") == Settings().limits.total
    keys = ("global", "route:review.docs")
    assert saturated(keys, {"route:review.docs": 1}, limits) == []
    assert [each.key for each in saturated(keys, {"route:review.docs": 2}, limits)] == ["route:review.docs"]
