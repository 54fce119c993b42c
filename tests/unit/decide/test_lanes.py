"""Runs of one lane start and wait together: whatever can keep one of them from starting is in the lane's key."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from interlock.decide.capacity import caps, saturated, slot_keys
from interlock.decide.lanes import LaneKey, Limited, lane_key, limited
from interlock.decide.routing import agent_for
from interlock.domain.run import Route
from interlock.domain.settings import Limits, Role, Settings
from interlock.domain.task import Task
from interlock.service.filing import lane_text

LIMITS = Limits(
    total=3,
    per_project={"p": 1},
    per_tracker={"gh": 2},
    per_role={"r": 1},
    per_tag={"net": 2, "gpu": 1, "disk": 3},
    per_agent={"b": 1},
)
SETTINGS = Settings(limits=LIMITS, roles={"r": Role(name="r", agent="b")}, default_agent="a")
ROUTES = {"review": Route(workflow_type="review", agent_id="c", max_concurrent=1)}
TASKS = st.builds(
    Task,
    title=st.sampled_from(["x", "y"]),
    priority=st.integers(-3, 3),
    project=st.sampled_from([None, "p", "q"]),
    tracker=st.sampled_from([None, "gh", "gl"]),
    role=st.sampled_from([None, "r", "s"]),
    type=st.sampled_from([None, "review", "build"]),
    agent=st.sampled_from([None, "b"]),
    tags=st.lists(st.sampled_from(["gpu", "net", "doc"])).map(tuple),
)
USED = st.dictionaries(
    st.sampled_from(["global", "project:p", "tracker:gh", "role:r", "tag:gpu", "tag:net", "route:review", "agent:b"]),
    st.integers(0, 3),
)


@given(TASKS, USED)
def test_the_lane_tells_whether_its_runs_may_start(task: Task, used: dict[str, int]) -> None:
    key = lane_key(task, "B", limited(LIMITS))
    limits = caps(SETTINGS, ROUTES)
    itself = saturated(slot_keys(task, agent_for(task, ROUTES, SETTINGS), SETTINGS), used, limits)
    stand_in = key.as_task()
    of_lane = saturated(slot_keys(stand_in, agent_for(stand_in, ROUTES, SETTINGS), SETTINGS), used, limits)
    assert {full.key for full in itself} == {full.key for full in of_lane}


@given(TASKS)
def test_what_no_limit_speaks_of_makes_no_lane(task: Task) -> None:
    key = lane_key(task, None, limited(Limits()))
    assert (key.project, key.tracker, key.tags) == (None, None, ())
    assert (key.agent, key.type, key.role) == (task.agent, task.type, task.role)


def test_tags_are_a_set() -> None:
    by = limited(LIMITS)
    one = lane_key(Task(title="t", tags=("net", "doc", "gpu", "net")), None, by)
    assert one == lane_key(Task(title="u", tags=("gpu", "net")), None, by)
    assert one.tags == ("gpu", "net")


def test_tags_stand_in_order() -> None:
    names = [f"tag-{n}" for n in range(20)]
    by = limited(Limits(per_tag=dict.fromkeys(names, 1)))
    assert lane_key(Task(title="t", tags=tuple(reversed(names))), None, by).tags == tuple(sorted(names))


def test_a_batch_has_lanes_of_its_own() -> None:
    assert lane_key(Task(title="t"), "B", Limited()) == LaneKey(batch="B")


def test_the_order_in_which_limits_are_written_does_not_matter() -> None:
    found = limited(Limits(per_project={"q": 1, "p": 2}, per_tracker={"gl": 1, "gh": 2}, per_tag={"net": 1, "gpu": 2}))
    assert found == Limited(projects=("p", "q"), trackers=("gh", "gl"), tags=("gpu", "net"))


def test_the_stand_in_has_what_the_lane_has_and_nothing_else() -> None:
    key = LaneKey(batch="B", agent="b", type="review", role="r", project="p", tracker="gh", tags=("gpu",))
    assert key.as_task() == Task(
        title="", agent="b", type="review", role="r", project="p", tracker="gh", tags=("gpu",)
    )  # fmt: skip


def test_a_lane_is_stored_as_short_text() -> None:
    assert lane_text(LaneKey()) == "{}"
    assert lane_text(LaneKey(tags=("gpu",))) == '{"tags":["gpu"]}'
    left_out = {"batch": None, "agent": None, "type": None, "role": None, "project": None, "tracker": None, "tags": ()}
    assert msgspec.structs.asdict(msgspec.json.decode("{}", type=LaneKey)) == left_out
