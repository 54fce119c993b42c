"""Whether a batch can go on by itself, and what its runs wait for, in a few words each.

`interlock run` ends when nothing can happen any more without a person. That is judged on one snapshot of the database and stops
at the first run that still goes on, so that it costs next to nothing while work is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from interlock.cli.text import span
from interlock.decide.reasons import WaitKind
from interlock.ports.store import Tx
from interlock.service.waiting import ABOUT_TO_START, Waiting


class Group(NamedTuple):
    """Runs that wait for the same. ``at_ms``: when the first of them may go."""

    runs: int
    what: str
    at_ms: int | None = None


def group_line(group: Group, now_ms: int) -> str:
    """``3 wait for another try; the first in 12s``. Seconds are rounded up: it counts down to one, not to none."""
    if group.at_ms is None:
        return f"{group.runs} {group.what}"
    left_ms = max(1, -(-(group.at_ms - now_ms) // 1000)) * 1000
    return f"{group.runs} {group.what} in {span(left_ms)}"


def first_that_goes_on(waiting: Waiting, numbers: Iterable[int]) -> int | None:
    """The first of these runs with which something will happen without a person; None: it is a standstill."""
    return next((number for number in numbers if waiting.goes_on(number)), None)


def groups(tx: Tx, waiting: Waiting, numbers: Iterable[int]) -> list[Group]:
    """What those of these runs wait for that nobody works on: of each the one thing that a person would name first.

    The most frequent comes first.
    """
    counts: dict[tuple[WaitKind, str], int] = {}
    first: dict[tuple[WaitKind, str], int] = {}
    for number in numbers:
        run = tx.run(number)
        if run is None or run.terminal or run.held_by_agent:
            continue
        wait = next(waiting.waits(run), None)
        key = (WaitKind.NEXT, ABOUT_TO_START) if wait is None else (wait.kind, wait.short)
        counts[key] = counts.get(key, 0) + 1
        if wait is not None and wait.until_ms is not None:
            first[key] = min(wait.until_ms, first.get(key, wait.until_ms))
    order = sorted(counts, key=lambda key: -counts[key])
    return [Group(counts[key], key[1], first.get(key)) for key in order]
