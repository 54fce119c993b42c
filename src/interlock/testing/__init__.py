"""The kit for testing Interlock with your own adapters and settings. ``pip install 'interlock[testing]'``.

* Conformance suites: :class:`StoreConformance`, :class:`RuntimeConformance`. Subclass one and say how yours is made.
* :class:`ServiceMachine`: the service beside a model of it, as a state machine for Hypothesis, on your store, under your
  settings; :func:`walk` takes the same steps by chance, from a seed.
* Strategies: :func:`tasks`, :func:`backlogs`, :func:`settings`, :func:`configs`, :func:`faulty_configs`, :func:`event_sequences`,
  :func:`illegal_pairs`.
* :mod:`interlock.testing.simulation`: the whole of Interlock under a simulated clock, with faults.

No command but ``interlock verify`` imports any of this.
"""

from __future__ import annotations

import interlock.testing.extra  # noqa: F401 - first, since it says what is missing

# isort: split
from interlock.testing.explored import Explored, LimitUse
from interlock.testing.machine import ServiceMachine
from interlock.testing.promises import Broken
from interlock.testing.runtime_suite import RuntimeConformance
from interlock.testing.runtime_yard import Deed
from interlock.testing.store_suite import StoreConformance
from interlock.testing.strategies import Move, backlogs, event_sequences, illegal_pairs, settings, tasks
from interlock.testing.strategies_config import ConfigDocument, FaultyConfig, configs, faulty_configs
from interlock.testing.walks import FailingStory, WalkFailed, walk

__all__ = [
    "Broken",
    "ConfigDocument",
    "Deed",
    "Explored",
    "FailingStory",
    "FaultyConfig",
    "LimitUse",
    "Move",
    "RuntimeConformance",
    "ServiceMachine",
    "StoreConformance",
    "WalkFailed",
    "backlogs",
    "configs",
    "event_sequences",
    "faulty_configs",
    "illegal_pairs",
    "settings",
    "tasks",
    "walk",
]
