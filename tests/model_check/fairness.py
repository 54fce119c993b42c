"""Whether an end can be reached from everywhere by steps that happen by themselves.

Faults (kills, stops, lost answers) and an operator's wishes are no such steps. What is asked is that from each reachable state
some way of fair steps leads to where all runs have ended; under strong fairness that way is taken sooner or later.
"""

from __future__ import annotations

from explore import Explorer, Found
from world import Fault


def search_with_fairness(explorer: Explorer) -> Found:
    """Visit everything, then look for states from which no end can be reached."""
    found = explorer.search()
    if found.fault is not None:
        return found
    stuck = first_stuck(explorer)
    if stuck is None:
        return found
    return explorer.report(stuck, _depth(explorer, stuck), at_step=False, fault=Fault.STUCK)


def first_stuck(explorer: Explorer) -> int | None:
    """The stuck state that the fewest steps lead to, or None.

    Works backwards from the ends: the states are gone over, the last one found first, until a round finds no further
    state from which an end can be reached.
    """
    good: set[int] = set()
    left = list(explorer.parents)
    while True:
        still: list[int] = []
        for key in reversed(left):
            if explorer.ends(key) or any(after in good for after in explorer.fair_successors(key)):
                good.add(key)
            else:
                still.append(key)
        still.reverse()
        if not still or len(still) == len(left):
            return still[0] if still else None
        left = still


def _depth(explorer: Explorer, key: int) -> int:
    depth = 0
    while (key := explorer.parents[key]) >= 0:
        depth += 1
    return depth
