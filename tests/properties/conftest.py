"""Chooses how long Hypothesis looks: ``INTERLOCK_HYPOTHESIS=deep``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

_SLOW_ON_PURPOSE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile("quick", deadline=None, suppress_health_check=_SLOW_ON_PURPOSE)
settings.register_profile(
    "deep",
    deadline=None,
    suppress_health_check=_SLOW_ON_PURPOSE,
    max_examples=3000,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
settings.load_profile(os.environ.get("INTERLOCK_HYPOTHESIS", "quick"))
