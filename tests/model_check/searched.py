"""Searches, each done once in a test session however many tests look at it."""

from __future__ import annotations

from functools import cache

from explore import Explorer, Found
from fairness import search_with_fairness
from rules_off import Off
from setting import Setting
from world import Fault

from interlock.domain.states import RunState

Moves = frozenset[tuple[RunState, str]]


@cache
def searched(setting: Setting) -> tuple[Found, Moves]:
    """What a search of the whole comes to, and the moves of the run machine that were made in it."""
    explorer = Explorer(setting)
    found = search_with_fairness(explorer) if setting.checks_fairness else explorer.search()
    return found, frozenset(explorer.model.commands.taken)


@cache
def searched_without(off: Off) -> Found:
    """What the search comes to without a rule."""
    explorer = Explorer(off.off, only=frozenset({off.fault}) if off.alone else None)
    return search_with_fairness(explorer) if off.fault == Fault.STUCK else explorer.search()
