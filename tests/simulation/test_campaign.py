"""Seeds, each with settings, tasks and faults of its own: every rule holds, and what is to happen does happen."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from simulation_campaign import FIRST_SEED, HOURS, RUNS, SEEDS, assert_every_rule_holds, drawn

from interlock.domain.settings import Mode
from interlock.domain.states import RunState
from interlock.testing.simulation import Faults, draw, draw_settings, playing


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_every_rule_holds_whatever_goes_wrong(seed: int, tmp_path: Path) -> None:
    story = assert_every_rule_holds(drawn(seed), tmp_path)

    assert story.left == sum(story.waits.values()), "what has not ended waits for what only a person can give"
    assert sum(story.ends.values()) + story.left == story.events["submit"]


def test_a_longer_one_meets_faults_and_agents_of_every_kind(tmp_path: Path) -> None:
    scenario = drawn(FIRST_SEED + SEEDS, runs=3 * RUNS, hours=2 * HOURS)
    story = assert_every_rule_holds(scenario, tmp_path)

    assert scenario.settings.mode is Mode.PUSH or FIRST_SEED + SEEDS != 5, "the usual seed starts agents here"
    assert len(story.faults) >= 8
    assert len(story.conducts) >= 6
    assert story.ends[RunState.COMPLETED] > story.ends.get(RunState.FAILED, 0)


def test_a_long_one_is_pruned_while_things_go_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(playing, "KEPT_RUNS", 10)
    monkeypatch.setattr(playing, "JANITOR_SECONDS", 120.0)
    settings, routes = draw_settings(3)
    faults = msgspec.structs.replace(Faults.none(), outages=400, disk_fulls=100)
    story = assert_every_rule_holds(draw(settings, 3, runs=60, hours=1, routes=routes, faults=faults), tmp_path)

    assert story.events["submit"] == 60
    assert story.faults["outage"] > 10


def test_in_fair_weather_all_is_done_at_the_first_try(tmp_path: Path) -> None:
    settings, routes = draw_settings(1)
    scenario = draw(settings, 1, runs=100, hours=1, routes=routes, faults=Faults.none())
    story = assert_every_rule_holds(scenario, tmp_path)

    assert story.ends == {RunState.COMPLETED: story.events["submit"]}
    assert story.events["claim"] == story.events["submit"]
