"""What was explored: counted while it happens, added up over walks and simulations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec


class LimitUse(msgspec.Struct, kw_only=True):
    """How far a limit was used: its cap (the lowest one, where it changed), the most at once, how often it became full."""

    cap: int
    highest: int = 0
    filled: int = 0


class Explored(msgspec.Struct, kw_only=True):
    """What was seen. ``events``: transitions by event; ``states``: runs that were seen in a state; ``routes``: dispatches by
    ``type -> agent``; ``refusals``: commands that were refused as they must be, by code; ``faults``: what was made to go wrong.
    """

    walks: int = 0
    steps: int = 0
    simulations: int = 0
    simulated_hours: float = 0.0
    runs: int = 0
    events: dict[str, int] = {}
    states: dict[str, int] = {}
    limits: dict[str, LimitUse] = {}
    routes: dict[str, int] = {}
    refusals: dict[str, int] = {}
    faults: dict[str, int] = {}

    def count(self, what: str, name: str, by: int = 1) -> None:
        """One more of ``name`` in the field ``what``."""
        counted: dict[str, int] = getattr(self, what)
        counted[name] = counted.get(name, 0) + by

    def saw_limits(self, caps: Mapping[str, int], used: Mapping[str, int], before: Mapping[str, int]) -> None:
        """The limits after a step, and what was used of them before it."""
        for key, cap in caps.items():
            use = self.limits.setdefault(key, LimitUse(cap=cap))
            now = used.get(key, 0)
            use.cap = min(use.cap, cap)
            use.highest = max(use.highest, now)
            if now >= cap > before.get(key, 0):
                use.filled += 1

    def add(self, other: Explored) -> None:
        """Take in what another exploration saw."""
        self.walks += other.walks
        self.steps += other.steps
        self.simulations += other.simulations
        self.simulated_hours += other.simulated_hours
        self.runs += other.runs
        for what in ("events", "states", "routes", "refusals", "faults"):
            setattr(self, what, dict(Counter(getattr(self, what)) + Counter(getattr(other, what))))
        for key, use in other.limits.items():
            mine = self.limits.setdefault(key, LimitUse(cap=use.cap))
            mine.cap = min(mine.cap, use.cap)
            mine.highest = max(mine.highest, use.highest)
            mine.filled += use.filled
