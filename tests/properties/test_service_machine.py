"""Any interleaving of commands: what DESIGN section 3 says holds after every step, and nothing happens that the model does not.

Hypothesis draws the steps and makes a failure small; plain chance goes deeper into the machine, where Hypothesis, which
likes to repeat itself, seldom comes. ``INTERLOCK_HYPOTHESIS=deep`` looks much longer; ``INTERLOCK_SEED=N`` walks one way again.
A failure prints what each step did and the story of every run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from random import Random, SystemRandom
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from service_beside_model import Beside

DEEP = os.environ.get("INTERLOCK_HYPOTHESIS") == "deep"
SEEDS = [int(seed) for seed in os.environ.get("INTERLOCK_SEED", "").split()] or [
    SystemRandom().randrange(10**9) for _ in range(3000 if DEEP else 60)
]


class ServiceMachine(RuleBasedStateMachine):
    """Steps as Hypothesis draws them."""

    def __init__(self) -> None:
        super().__init__()
        self.beside = Beside()

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.beside.begin(lambda label, options: data.draw(st.sampled_from(options), label=label))

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self.beside.step(lambda label, options: data.draw(st.sampled_from(options), label=label))

    def teardown(self) -> None:
        self.beside.close()


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
        _walk(seed)


def _walk(seed: int) -> None:
    chance = Random(seed)

    def draw(label: str, options: Sequence[Any]) -> Any:
        return chance.choice(options)

    with closing(Beside()) as beside:
        try:
            beside.begin(draw)
            for _ in range(80):
                beside.step(draw)
        except BaseException as error:
            error.add_note(f"walk this way again with INTERLOCK_SEED={seed}")
            raise
