"""The simulation: Interlock as a whole (service, actors, SQLite store) in a world of paper, where a week takes minutes.

Dispatchers, agents, people and the machine's clocks live under one simulated clock and one seeded scheduler, so that a seed
always gives the same story, event for event. Things go wrong in it as the seed says: dispatchers are killed, stopped and
started again, the power goes, the disk is full, clocks jump, agents hang, vanish and do not heed signals. The rules of
DESIGN section 3 are checked at every event. See docs/simulation.md.

>>> from interlock.testing.simulation import Faults, shrink, simulate, tell
>>> story = simulate(settings, seed=7, hours=24, runs=300)            # doctest: +SKIP
>>> if not story.ok:                                                  # doctest: +SKIP
...     print(tell(shrink(story, seconds=60)))

Nothing here may be called inside a trio loop, or by two threads at a time: the scheduler that is seeded is the process's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from interlock.domain.run import Route
from interlock.domain.settings import Settings
from interlock.testing.simulation.drawing import Faults, draw, draw_settings
from interlock.testing.simulation.playing import play
from interlock.testing.simulation.scenario import Scenario, decode, encode
from interlock.testing.simulation.shrinking import shrink
from interlock.testing.simulation.story import Failure, Story
from interlock.testing.simulation.telling import tell

__all__ = [
    "Failure",
    "Faults",
    "Scenario",
    "Story",
    "decode",
    "draw",
    "draw_settings",
    "encode",
    "play",
    "shrink",
    "simulate",
    "tell",
]


def simulate(
    settings: Settings,
    seed: int,
    *,
    hours: float = 24.0,
    runs: int = 300,
    routes: Sequence[Route] = (),
    faults: Faults | None = None,
    dispatchers: int = 2,
    log: Callable[[bytes], None] | None = None,
) -> Story:
    """Draw a scenario for ``settings`` from ``seed`` and play it. Equal arguments give an equal story, in any process.

    ``hours``: over how much simulated time tasks arrive and things go wrong; the play goes on until everything has ended, or waits
    for what only a person can give. ``runs``: about how many tasks arrive. ``routes``: as in ``workflow_agent_routing``.
    ``faults``: how often what goes wrong, by default a bit of everything; ``Faults.none()`` for fair weather. ``dispatchers``:
    processes that share the data folder. ``log`` is given the event log, line by line, in its canonical form.

    The settings decide what the tasks look like: projects, tags, roles and agents that limits speak of, and some that none does.
    A broken rule is no exception: it is in ``Story.failure``.
    """
    return play(
        draw(settings, seed, hours=hours, runs=runs, routes=routes, faults=faults, dispatchers=dispatchers), log=log
    )
