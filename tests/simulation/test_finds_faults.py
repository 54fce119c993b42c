"""The test of the test: a fault that is put into Interlock is found, by a seed or by a kept story, and told as a small story."""

from __future__ import annotations

import pytest
from simulation_campaign import KEPT, drawn
from simulation_mutations import MUTATIONS, Mutation

from interlock.testing.simulation import Scenario, decode, play, shrink, tell


def what_finds(mutation: Mutation) -> Scenario:
    if isinstance(mutation.found_by, str):
        return decode((KEPT / f"{mutation.found_by}.json").read_bytes())
    return drawn(mutation.found_by, runs=60, hours=1)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.name}-{mutation.found_by}")
def test_a_fault_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = what_finds(mutation)
    mutation.patch(monkeypatch)

    story = play(scenario)

    assert story.failure is not None, "nobody noticed"
    assert story.failure.rule in mutation.rules, tell(story)


def test_its_story_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    (mutation,) = (one for one in MUTATIONS if "moved_only_when_gone" in one.rules)
    scenario = what_finds(mutation)
    mutation.patch(monkeypatch)

    story = shrink(play(scenario), seconds=300)

    assert story.failure is not None
    assert story.failure.rule == "moved_only_when_gone"
    assert story.scenario.jobs == 1, "one task"
    assert len(story.scenario.entries) == 2, "and somebody who cancels it"
    told = tell(story)
    assert "is submitted" in told
    assert "somebody asks to cancel t" in told
    assert "processes of attempt 1 are alive" in told


def test_a_story_without_a_fault_stays_as_it_is() -> None:
    story = play(drawn(1, runs=5, hours=0.2))

    assert shrink(story) is story
    assert "every rule held" in tell(story)
