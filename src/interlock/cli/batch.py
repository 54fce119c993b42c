"""What `interlock run` knows of its runs: kept current from the event log, without reading any run twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from interlock.domain.run import Event, Run
from interlock.domain.states import HELD_BY_AGENT, TERMINAL, RunState

RECENT_FAILURES = 20
_BAD_NEWS = frozenset({"fail", "reject", "time_out", "cancel", "retry", "release"})


class Working(NamedTuple):
    """A run that an agent works on now."""

    number: int
    fence: int
    since_ms: int


class Failure(NamedTuple):
    """Something that went wrong. ``final``: the run has ended by it."""

    number: int
    word: str
    message: str
    final: bool


class Batch:
    """The runs of one backlog. ``number_of`` its tasks' keys: the newest run of each is the one that counts.

    Runs of the same batch that stand for no task of it any more (the backlog was shortened, or a retry took over) are followed
    too while they go on, but say nothing about success.
    """

    def __init__(self, name: str, tasks: Iterable[tuple[str, Run]], leftovers: Iterable[Run] = ()) -> None:
        self.name = name
        self.number_of: dict[str, int] = {}
        self.titles: dict[int, str] = {}
        self.states: dict[int, RunState] = {}
        self.counts: Counter[RunState] = Counter()
        self.working: dict[int, Working] = {}
        self.unfinished: dict[int, None] = {}
        self._failures: dict[int, Failure] = {}
        self._counting: set[int] = set()
        for key, run in tasks:
            self.number_of[key] = run.number
            self._counting.add(run.number)
            self._add(run)
        for run in leftovers:
            self._add(run)

    def _add(self, run: Run) -> None:
        self.titles[run.number] = run.task.title
        self._set(run.number, run.state)
        if run.state in HELD_BY_AGENT:
            self.working[run.number] = Working(run.number, run.fence, run.claimed_ms or run.updated_ms)

    def _set(self, number: int, state: RunState) -> None:
        before = self.states.get(number)
        self.states[number] = state
        if number in self._counting:
            if before is not None:
                self.counts[before] -= 1
            self.counts[state] += 1
        if state in TERMINAL:
            self.unfinished.pop(number, None)
        elif before is None or before in TERMINAL:
            self.unfinished[number] = None
        if state not in HELD_BY_AGENT:
            self.working.pop(number, None)

    def __len__(self) -> int:
        """How many tasks the backlog has."""
        return len(self._counting)

    @property
    def completed(self) -> int:
        """How many of its tasks are done."""
        return self.counts[RunState.COMPLETED]

    @property
    def ended(self) -> int:
        """How many of its tasks have ended, well or not."""
        return sum(self.counts[state] for state in TERMINAL)

    @property
    def succeeded(self) -> bool:
        """Whether every task of the backlog is done."""
        return self.completed == len(self)

    @property
    def failures(self) -> list[Failure]:
        """The last thing that went wrong with each run that is not done, the newest first, those for good before others."""
        newest = [*reversed(self._failures.values())]
        return sorted(newest, key=lambda failure: not failure.final)

    def knows(self, number: int) -> bool:
        """Whether the run is one of these."""
        return number in self.states

    def title(self, number: int) -> str:
        """A run's title."""
        return self.titles.get(number, "")

    def counting(self) -> list[int]:
        """The runs that stand for the tasks, in the order of the backlog."""
        return list(self.number_of.values())

    def join(self, run: Run) -> bool:
        """Follow a run that came later (by `interlock retry`, or another `interlock run`). False: not of this batch."""
        if run.batch != self.name or run.number in self.states:
            return run.number in self.states
        replaced = self.number_of.get(run.task_key or "")
        if replaced is not None and run.task_key is not None:
            self._counting.discard(replaced)
            self.counts[self.states[replaced]] -= 1
            self.number_of[run.task_key] = run.number
            self._counting.add(run.number)
        self._add(run)
        return True

    def see(self, event: Event) -> None:
        """Take in an event of one of the runs."""
        state = RunState(event.to_state or self.states[event.run])
        self._set(event.run, state)
        if state in HELD_BY_AGENT and event.fence is not None:
            before = self.working.get(event.run)
            if before is None or before.fence != event.fence:
                self.working[event.run] = Working(event.run, event.fence, event.at_ms)
        if event.event in _BAD_NEWS:
            self._failures.pop(event.run, None)
            self._failures[event.run] = Failure(event.run, event.event, event.message or "", state in TERMINAL)
            if len(self._failures) > RECENT_FAILURES:
                del self._failures[next(iter(self._failures))]
        elif state is RunState.COMPLETED:
            # It went well in the end.
            self._failures.pop(event.run, None)
