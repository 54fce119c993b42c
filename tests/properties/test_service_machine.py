"""Any interleaving of commands: what DESIGN section 3 says holds after every step, and nothing happens that the model does not.

Hypothesis draws the steps and makes a failure small; plain chance goes deeper into the machine, where Hypothesis, which
likes to repeat itself, seldom comes. ``INTERLOCK_HYPOTHESIS=deep`` looks much longer; ``INTERLOCK_SEED=N`` walks one way again.
A failure prints what each step did and the story of every run. Model, steps and checks are those of :mod:`interlock.testing`.
"""

from __future__ import annotations

import os
from random import SystemRandom

import pytest
from hypothesis import HealthCheck, Phase, settings

from interlock.domain.run import Route
from interlock.domain.settings import Agent, Leases, Limits, Mode, Role, Settings
from interlock.testing import Explored, ServiceMachine, walk

DEEP = os.environ.get("INTERLOCK_HYPOTHESIS") == "deep"
SEEDS = [int(seed) for seed in os.environ.get("INTERLOCK_SEED", "").split()] or [
    SystemRandom().randrange(10**9) for _ in range(3000 if DEEP else 60)
]
HOUSE = Settings(
    limits=Limits(total=4, per_tag={"gpu": 1}, per_project={"shop": 2}, per_role={"rev": 1}),
    agents={"w": Agent(name="w", command="x", max_concurrent=3), "v": Agent(name="v", command="x", timeout_ms=60_000)},
    roles={"rev": Role(name="rev", agent="v")},
    leases=Leases(remote_ms=60_000, grace_ms=0, claim_timeout_ms=30_000),
    default_agent="w",
    default_role="rev",
    deadline_ms=3_600_000,
)
ROUTES = (Route(workflow_type="review", agent_id="v", max_concurrent=1, priority=3),)

TestService = ServiceMachine.TestCase
TestService.settings = settings(
    deadline=None,
    max_examples=1000 if DEEP else 40,
    stateful_step_count=100 if DEEP else 40,
    suppress_health_check=list(HealthCheck),
    # Explaining takes longer than reading the story.
    phases=[phase for phase in Phase if phase is not Phase.explain],
)


def test_random_walks() -> None:
    # The seeds differ from run to run, so they are no parameters: workers that share the tests must agree on those.
    for seed in SEEDS:
        walk(seed)


@pytest.mark.parametrize("mode", Mode)
def test_random_walks_under_given_settings(mode: Mode) -> None:
    import msgspec

    explored = Explored()
    for seed in SEEDS[: max(1, len(SEEDS) // 5)]:
        explored.add(walk(seed, settings=msgspec.structs.replace(HOUSE, mode=mode), routes=ROUTES))
    if len(SEEDS) > 10:
        assert explored.limits["tag:gpu"].filled
        assert explored.routes["review -> v"]
