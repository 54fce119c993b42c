"""What the tests of the simulation share: how much to play, and how to tell a broken rule so that it can be played again.

``INTERLOCK_SIMULATION_SEEDS`` (how many), ``INTERLOCK_SIMULATION_FIRST_SEED``, ``INTERLOCK_SIMULATION_RUNS`` (tasks of each) and
``INTERLOCK_SIMULATION_HOURS`` make the campaign as long as wanted.
"""

from __future__ import annotations

import os
from pathlib import Path

from interlock.testing.simulation import Faults, Scenario, Story, draw, draw_settings, encode, play, shrink, tell

KEPT = Path(__file__).resolve().parents[2] / "fixtures" / "simulation"
SEEDS = int(os.environ.get("INTERLOCK_SIMULATION_SEEDS", "4"))
FIRST_SEED = int(os.environ.get("INTERLOCK_SIMULATION_FIRST_SEED", "1"))
RUNS = int(os.environ.get("INTERLOCK_SIMULATION_RUNS", "80"))
HOURS = float(os.environ.get("INTERLOCK_SIMULATION_HOURS", "1"))


def drawn(seed: int, *, runs: int = RUNS, hours: float = HOURS, often: float | None = None) -> Scenario:
    """A scenario with settings of its own. However short it is, it has the faults of a day and a half."""
    settings, routes = draw_settings(seed)
    faults = Faults().often(36 / hours if often is None else often)
    return draw(settings, seed, runs=runs, hours=hours, routes=routes, faults=faults)


def assert_every_rule_holds(scenario: Scenario, folder: Path) -> Story:
    """Play; a broken rule is told with its smallest story, which is kept in ``folder`` to be played again."""
    story = play(scenario)
    if story.failure is not None:
        story = shrink(story, seconds=60)
        kept = folder / f"seed-{scenario.seed}.json"
        kept.write_bytes(encode(story.scenario))
        again = f"To play it again: python -m interlock.testing.simulation --scenario {kept}"
        raise AssertionError(f"{tell(story)}\n\n{again}\nOnce it is mended, keep it: copy the file to {KEPT}.")
    return story
