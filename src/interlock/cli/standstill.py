"""Whether a batch can go on by itself, and what its runs wait for, in a few words each.

`interlock run` ends when nothing can happen any more without a person. That is judged on one snapshot of the database and stops
at the first run that still goes on, so that it costs next to nothing while work is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from interlock.cli.text import span
from interlock.decide.capacity import GLOBAL, saturated, slot_keys
from interlock.decide.routing import agent_for, waits_for_route
from interlock.domain.run import Instance, Run
from interlock.domain.settings import Mode
from interlock.domain.states import RunState
from interlock.ports.store import Tx
from interlock.service.brakes import paused
from interlock.service.context import Context
from interlock.service.dispatching import circumstances

TRIES_OF_AN_AGENT = 2
"""An agent that could not be started this often is not waited for when nothing else is going on."""


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


class Snapshot:
    """The database as one transaction sees it, and who is there to dispatch."""

    def __init__(self, tx: Tx, ctx: Context, alive: Iterable[Instance]) -> None:
        self._tx = tx
        self._ctx = ctx
        self._alive = [instance for instance in alive if instance.state not in ("draining", "stopped")]
        self._around = circumstances(tx, ctx)
        self._healths = tx.healths()
        self._used = tx.used()
        self._known: dict[int, bool] = {}

    # may it go on?

    def first_that_goes_on(self, numbers: Iterable[int]) -> int | None:
        """The first of these runs with which something will happen without a person; None: it is a standstill."""
        return next((number for number in numbers if self._goes_on(number)), None)

    def _goes_on(self, number: int) -> bool:
        # A stack of its own: a chain of needs may be longer than Python's.
        known = self._known
        stack = [number]
        while stack:
            current = stack[-1]
            if current in known:
                stack.pop()
                continue
            run = self._tx.run(current)
            alone = run is not None and self._goes_on_but_for_needs(run)
            if run is None or not alone or run.state is not RunState.QUEUED or not run.needs_left:
                known[current] = alone
                continue
            unmet = [need for need, met in self._tx.needs_of(current) if not met]
            unknown = [need for need in unmet if need not in known]
            if unknown:
                stack.extend(unknown)
            else:
                # Any of them: one that ends badly ends this run too.
                known[current] = any(known[need] for need in unmet)
        return known[number]

    def _goes_on_but_for_needs(self, run: Run) -> bool:
        if run.terminal or run.state is RunState.BLOCKED:
            return False
        if run.state is not RunState.QUEUED:
            return True
        settings = self._ctx.settings
        if run.held or not settings.enabled or not self._looked_after(run):
            return False
        agent = agent_for(run.task, self._around.routes, settings)
        if waits_for_route(run.task, agent, self._around.agents, settings) is not None:
            return False
        if any(self._around.caps.get(key) == 0 for key in slot_keys(run.task, agent, settings)):
            return False
        if settings.mode is Mode.PULL or (health := self._healths.get(agent or "")) is None:
            return True
        asked_to_wait = run.not_before_why is None and (run.not_before_ms or 0) > self._ctx.now_ms
        return health.tries < TRIES_OF_AN_AGENT or asked_to_wait

    def _looked_after(self, run: Run) -> bool:
        return any(instance.scope in (None, run.batch) for instance in self._alive)

    # what does it wait for?

    def groups(self, numbers: Iterable[int]) -> list[Group]:
        """What these runs wait for, the most frequent first."""
        counts: dict[str, int] = {}
        first: dict[str, int] = {}
        for number in numbers:
            run = self._tx.run(number)
            if run is None or run.terminal or run.state in (RunState.CLAIMED, RunState.RUNNING):
                continue
            what, at_ms = self._obstacle(run)
            counts[what] = counts.get(what, 0) + 1
            if at_ms is not None:
                first[what] = min(at_ms, first.get(what, at_ms))
        order = sorted(counts, key=lambda what: -counts[what])
        return [Group(counts[what], what, first.get(what)) for what in order]

    def hold(self) -> str | None:
        """What holds everything back, if so."""
        pause = paused(self._tx)
        if pause is not None:
            words = f": {pause.message}" if pause.message else ""
            return f"dispatching is paused by {pause.by}{words} (`interlock resume`)"
        return next((instance.note for instance in self._alive if instance.note), None)

    def _obstacle(self, run: Run) -> tuple[str, int | None]:
        """The one thing that a person would name first."""
        if run.state is RunState.BLOCKED:
            return "asked a question (`interlock answer`)", None
        if run.state is RunState.DISPATCHED:
            return ("offered, not claimed yet" if run.pull else "about to start"), None
        if run.held:
            return "on hold (`interlock unhold`)", None
        if run.needs_left:
            return "need other tasks first", None
        settings = self._ctx.settings
        agent = agent_for(run.task, self._around.routes, settings)
        missing = waits_for_route(run.task, agent, self._around.agents, settings)
        if missing is not None:
            return missing.partition(": ")[0], None
        health = self._healths.get(agent or "")
        if health is not None and settings.mode is Mode.PUSH:
            return f"agent '{agent}' cannot be started: {health.reason}; next try", health.retry_ms
        if run.not_before_ms is not None and run.not_before_ms > self._ctx.now_ms:
            what = "not to start yet; the first" if run.not_before_why is None else "wait for another try; the first"
            return what, run.not_before_ms
        full = saturated(slot_keys(run.task, agent, settings), self._used, self._around.caps)
        # The narrowest one says most: all slots together are full nearly always.
        for limit in sorted(full, key=lambda limit: (limit.key == GLOBAL, limit.cap)):
            if limit.key == GLOBAL:
                return f"wait for a free slot (all {limit.cap} in use)" if limit.cap else "wait: concurrency is 0", None
            noun, _, value = limit.key.partition(":")
            return f"limit of {noun} {value} is full ({limit.used} of {limit.cap})", None
        if not self._looked_after(run):
            return "no dispatcher looks after them", None
        return "about to start", None
