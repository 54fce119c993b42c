"""What can never happen under some settings is said once, and nothing of what was seen to happen."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.run import Route
from interlock.domain.settings import Agent, Limits, Mode, Role, Settings
from interlock.testing import Explored, LimitUse
from interlock.testing.impossible import impossible

AGENTS = {"w": Agent(name="w", command="x")}
SOUND = Settings(agents=AGENTS, default_agent="w")


def notes(settings: Settings, *routes: Route, **limits: LimitUse) -> list[str]:
    explored = Explored()
    explored.limits.update({key.replace("_", ":"): use for key, use in limits.items()})
    return list(impossible(settings, routes, explored))


def changed(**changes: Any) -> Settings:
    import msgspec

    return msgspec.structs.replace(SOUND, **changes)


def test_sound_settings_have_no_notes() -> None:
    assert notes(SOUND) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (changed(enabled=False), "nothing is ever dispatched"),
        (Settings(), "no agent is defined"),
        (changed(limits=Limits(total=0)), "the limit global is 0: nothing ever starts"),
        (changed(limits=Limits(per_tag={"gpu": 0})), "the limit tag:gpu is 0: nothing of tag 'gpu' ever starts"),
        (changed(limits=Limits(total=2, per_tag={"gpu": 3})), "the limit tag:gpu is 3 and can never be reached"),
        (changed(limits=Limits(per_agent={"x": 1})), "speaks of an agent that is not defined"),
        (changed(roles={"r": Role(name="r", agent="x")}), "the role 'r' can never be worked for"),
        (changed(default_agent=None), "a task that names none never starts"),
        (changed(agents={**AGENTS, "v": Agent(name="v", command="x")}), "nothing leads to the agent 'v'"),
        (changed(deadline_ms=60_000), "dispatch.timeout (60 minutes) is never reached: dispatch.deadline (1 minutes)"),
    ],
)
def test_what_can_never_happen(settings: Settings, words: str) -> None:
    found = notes(settings)
    assert [note for note in found if words in note], found


def test_what_was_seen_is_not_called_impossible() -> None:
    none = changed(limits=Limits(per_tag={"gpu": 0}))
    assert notes(none, tag_gpu=LimitUse(cap=0, highest=1)) == []
    assert notes(changed(deadline_ms=2 * SOUND.timeout_ms)) == []


def test_routes_to_nobody() -> None:
    route = Route(workflow_type="review", agent_id="nobody")
    assert [note for note in notes(SOUND, route) if "can never be taken" in note]
    assert notes(changed(mode=Mode.PULL), route) == []
