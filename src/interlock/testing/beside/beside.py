"""The service on a real store, step by step beside the model: any interleaving of commands, DESIGN section 3 checked after each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from interlock.domain.errors import InterlockError
from interlock.domain.run import Claim, Route, Run
from interlock.domain.settings import Settings
from interlock.service.context import Context
from interlock.testing.beside import checks, values
from interlock.testing.beside.configuration import (
    CONFIGURATION,
    DRAWN_NAMES,
    Names,
    drawn_settings,
    names_of,
    rules_of,
)
from interlock.testing.beside.desk import Desk, SqliteDesk
from interlock.testing.beside.drawing import STEPS, Draw, Taken, drawn
from interlock.testing.beside.world import World
from interlock.testing.explored import Explored
from interlock.testing.promises import Broken, must

START = 1_700_000_000_000
MOST_TASKS = 40
"""At the beginning. More make every step slower, and few configurations need more to come to their limits."""


class Beside:
    """The service beside the model. ``settings`` None: each walk draws its own, from small ones.

    ``routes`` are there from the beginning and stay as they are. ``desk``: where the commands are given.
    """

    def __init__(
        self, desk: Desk | None = None, *, settings: Settings | None = None, routes: Sequence[Route] = ()
    ) -> None:
        self.desk: Desk = SqliteDesk() if desk is None else desk
        self.fixed = settings is not None
        self.routes = tuple(routes)
        self.settings = settings or Settings()
        self.names: Names = DRAWN_NAMES if settings is None else names_of(settings, routes)
        self.world = World(rules_of(self.settings), START)
        self.rng = Random(7)  # noqa: S311 - chance that repeats itself
        self.log: list[str] = []
        self.taken: list[Taken] = []
        self.explored = Explored(walks=1)
        self.rekeyed = True
        self.claims: list[Claim] = []
        self.before: object = None
        # what the checks remember from one look to the next
        self.replayed: dict[int, str] = {}
        self.last_seq = 0
        self.finals: dict[int, Run] = {}
        self.fences: dict[int, int] = {}
        self.in_use: Counter[str] = Counter()

    def close(self) -> None:
        """Leave nothing behind."""
        self.desk.close()

    # doing

    @property
    def now(self) -> int:
        """The time in the model, Unix milliseconds."""
        return self.world.now

    def context(self, settings: Settings | None = None) -> Context:
        """What a command is given."""
        return Context(now_ms=self.now, rng=self.rng, settings=settings or self.settings)

    def write(self, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Run a command of the service. One that refuses has changed nothing."""
        context = self.context()
        self.before = self.desk.everything()
        try:
            return self.desk.write(lambda tx: work(tx, context, *arguments, **named))
        except InterlockError as error:
            self.add(f": refused ({error.code}: {error.message})")
            self.explored.count("refusals", error.code)
            must(self.desk.everything() == self.before, f"a command that was refused ({error.code}) changed something")
            raise

    def on(self, run: values.Run, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Run a command on a run."""
        return self.write(lambda tx, ctx: work(tx, ctx, tx.run(run.number), *arguments, **named))

    @contextmanager
    def refused(self, *kinds: type[InterlockError]) -> Iterator[None]:
        """What is done in it must be refused, for one of these reasons."""
        try:
            yield
        except kinds:
            return
        codes = " or ".join(kind.code for kind in kinds)
        raise Broken(f"this should have been refused ({codes}) and was done")

    def unchanged(self) -> None:
        """The last command has changed nothing."""
        must(self.desk.everything() == self.before, "a command that has nothing to do changed something")

    def tell(self, line: str) -> None:
        """Begin a line of the story."""
        self.log.append(line)

    def add(self, words: str) -> None:
        """Go on with the line."""
        self.log[-1] += words

    def a_run(self, pick: int, *states: str) -> values.Run:
        """A run, of the given states if there is one."""
        runs = [run for run in self.world.runs.values() if not states or run.state in states]
        runs = runs or list(self.world.runs.values())
        return runs[pick % len(runs)]

    def stored(self, number: int) -> Run:
        """A run as it is stored."""
        run = self.desk.read(lambda tx: tx.run(number))
        if run is None:
            raise Broken(f"run #{number} is gone")
        return run

    # steps

    def begin(self, draw: Draw) -> None:
        """A configuration, and some work."""
        self.configure({} if self.fixed else drawn(draw, "rules", CONFIGURATION))
        most = min(MOST_TASKS, 2 * self.world.rules.total + 2) if self.fixed else 6
        submit = STEPS["submit"].of(self)
        for _ in range(draw("tasks", range(1, max(most, 6) + 1))):
            task = drawn(draw, "task", submit["task"])
            self.take(Taken("submit", {"task": task, "needs": (), "delay": None, "batch": None, "held": False}))

    def configure(self, choice: dict[str, Any]) -> None:
        """Begin with these settings; ``choice`` is one from CONFIGURATION, empty when they are given."""
        self.taken.append(Taken("configure", choice))
        if not self.fixed:
            self.settings = drawn_settings(choice)
        self.world.rules = rules_of(self.settings)
        self.world.lanes_by = self.world.rules.speaks_of
        with self.telling():
            self.tell(f"begin with {self.world.rules.in_words()}")
            for route in self.routes:
                self.write(lambda tx, _, route=route: tx.put_route(route))
                self.world.routes[route.workflow_type] = values.RouteRule(
                    route.agent_id, route.priority, route.max_concurrent, route.timeout_minutes
                )

    def step(self, draw: Draw) -> None:
        """Draw a step, take it, and check everything."""
        possible = [name for name, one in STEPS.items() for _ in range(one.weight) if one.when(self)]
        name = draw("step", possible)
        self.take(Taken(name, {key: drawn(draw, key, some) for key, some in STEPS[name].of(self).items()}))

    def take(self, taken: Taken) -> None:
        """Take a step, and check everything."""
        self.taken.append(taken)
        self.explored.steps += 1
        with self.telling():
            STEPS[taken.name].work(self, **taken.drawn)
            checks.check(self)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Whatever fails comes with the whole story."""
        try:
            yield
        except Exception as error:
            error.add_note("\n".join(self.story()))
            raise

    def story(self) -> Iterator[str]:
        """What was done, and what became of every run."""
        yield from (f"{number}. {line}" for number, line in enumerate(self.log, 1))
        for number, run in self.world.runs.items():
            yield f"#{number} should be: {run}"
            for event in self.desk.read(lambda tx, n=number: tx.events_of(n)):  # type: ignore[misc]
                yield f"    {event.at_ms - START} {event.event} {event.from_state} -> {event.to_state} {event.message}"
