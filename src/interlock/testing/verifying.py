"""What ``interlock verify`` does: walks and simulations under somebody's own settings, for a while, and what came of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import msgspec

from interlock.domain.run import Route
from interlock.domain.settings import Agent, Mode, Settings
from interlock.domain.states import RunEvent
from interlock.testing.beside.desk import Desk, SqliteDesk, memory
from interlock.testing.explored import Explored
from interlock.testing.simulation import Story, shrink, simulate, tell
from interlock.testing.walks import FailingStory, Walk, WalkFailed

STAND_IN = "stand-in"
"""Does the work where the settings name no agent."""
HOURS_OF_A_SIMULATION = 1.0
RUNS_OF_A_SIMULATION = 12
SECONDS_TO_SHRINK = 20.0
HEAD_START_SECONDS = 3.0
"""Walks first: their stories are the smaller ones."""
SEEDS = 1_000_000_000


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """An invariant that failed. ``how``: ``walk`` or ``simulation``; ``lines`` lead to it, one sentence each; ``smallest`` is False
    when there was no time to leave out what does not matter.
    """

    how: str
    seed: int
    fault: str
    lines: tuple[str, ...]
    smallest: bool


class Exploration:
    """An exploration under way: what was seen so far, and what was found. Can be read at any time, after an interruption too."""

    def __init__(self, settings: Settings, routes: Sequence[Route] = (), *, seed: int) -> None:
        self.stand_in = not settings.agents and settings.mode is Mode.PUSH
        self.settings = with_an_agent(settings) if self.stand_in else settings
        self.routes = tuple(routes)
        self.seed = seed
        self.explored = Explored()
        self.finding: Finding | None = None
        self.seconds = {"walk": 0.0, "simulation": 0.0}
        self.longest = {"walk": 0.0, "simulation": 0.0}
        self.doing = ""

    def run(
        self,
        now: Callable[[], float],
        *,
        until: float,
        once: bool = False,
        seen: Callable[[], None] = lambda: None,
        desk: Callable[[Path], Desk] = SqliteDesk,
    ) -> None:
        """Walk and simulate by turns until ``now()`` reaches ``until`` (seconds), or an invariant fails. ``once``: one walk and one
        simulation, both of the seed itself, instead. ``seen`` is called after each. Not to be called inside a trio loop.

        ``desk`` makes the place of a walk within a folder. All that it leaves behind is removed, also on Ctrl-C.
        """
        with tempfile.TemporaryDirectory(
            dir=memory(), prefix=f"interlock-verify-{os.getpid()}-", ignore_cleanup_errors=True
        ) as folder:
            walk = Walk(settings=self.settings, routes=self.routes, desk=lambda: desk(Path(folder)))
            if once:
                self._walk(walk, self.seed, now)
                if self.finding is None:
                    self._simulate(self.seed, now)
                return
            self.seconds["simulation"] += min(HEAD_START_SECONDS, (until - now()) / 4)
            chance = Random(self.seed)  # noqa: S311 - seeds that can be told again
            while now() < until and self.finding is None:
                seed = chance.randrange(SEEDS)
                if self._a_simulation_is_due(until - now()):
                    self._simulate(seed, now)
                else:
                    self._walk(walk, seed, now)
                seen()

    def _a_simulation_is_due(self, seconds_left: float) -> bool:
        """Both get as much time; a simulation is not begun that would last beyond the end."""
        return self.seconds["simulation"] < self.seconds["walk"] and self.longest["simulation"] <= seconds_left

    @contextmanager
    def _timed(self, what: str, now: Callable[[], float]) -> Iterator[None]:
        began, self.doing = now(), what
        try:
            yield
        finally:
            took = now() - began
            self.seconds[what] += took
            self.longest[what] = max(self.longest[what], took)

    def _walk(self, walk: Walk, seed: int, now: Callable[[], float]) -> None:
        def failed(story: FailingStory) -> None:
            self.finding = _of_a_walk(story, smallest=False)
            self.doing = "making the failing story small"

        with self._timed("walk", now):
            try:
                walk.take(seed, shown=self.explored.add, failed=failed)
            except WalkFailed as failure:
                self.finding = _of_a_walk(failure.story, smallest=True)

    def _simulate(self, seed: int, now: Callable[[], float]) -> None:
        with self._timed("simulation", now):
            story = simulate(
                self.settings, seed, hours=HOURS_OF_A_SIMULATION, runs=RUNS_OF_A_SIMULATION, routes=self.routes
            )
            self.explored.add(seen_in(story))
            if not story.ok:
                self.finding = _of_a_simulation(story, seed, smallest=False)
                self.doing = "making the failing story small"
                self.finding = _of_a_simulation(shrink(story, seconds=SECONDS_TO_SHRINK), seed, smallest=True)


def _of_a_walk(story: FailingStory, *, smallest: bool) -> Finding:
    return Finding(how="walk", seed=story.seed, fault=story.fault, lines=story.lines, smallest=smallest)


def _of_a_simulation(story: Story, seed: int, *, smallest: bool) -> Finding:
    assert story.failure is not None
    return Finding(
        how="simulation",
        seed=seed,
        fault=f"{story.failure.rule}: {story.failure.what}",
        lines=tuple(line for line in tell(story).splitlines() if line.strip()),
        smallest=smallest,
    )


def seen_in(story: Story) -> Explored:
    """What a simulation explored."""
    return Explored(
        simulations=1,
        simulated_hours=story.simulated_ms / 3_600_000,
        runs=story.events.get(str(RunEvent.SUBMIT), 0),
        events=_moves(story.events),
        states=_counted(story.ends),
        faults=_counted(story.faults),
    )


def _counted(numbers: Mapping[str, int]) -> dict[str, int]:
    return {str(name): number for name, number in numbers.items() if number}


def _moves(events: Mapping[str, int]) -> dict[str, int]:
    """Without what only makes a note."""
    moves = set(map(str, RunEvent))
    return {name: number for name, number in _counted(events).items() if name in moves}


def with_an_agent(settings: Settings) -> Settings:
    """The same settings with an agent that does the work of all who name none."""
    agent = Agent(name=STAND_IN, command="true")
    return msgspec.structs.replace(settings, agents={STAND_IN: agent}, default_agent=STAND_IN)
