"""Plays a scenario, from its beginning until everything has come to its end."""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio
import trio.testing

from interlock.actors import Ending
from interlock.decide.reasons import Wait
from interlock.testing.simulation.auditing import Auditor
from interlock.testing.simulation.chances import chance_of
from interlock.testing.simulation.people import People
from interlock.testing.simulation.processes import named_locks
from interlock.testing.simulation.pullers import Puller
from interlock.testing.simulation.scenario import Arrival, Fault, Scenario
from interlock.testing.simulation.scheduler import fair_trio, take_over
from interlock.testing.simulation.story import Story
from interlock.testing.simulation.watching import Tracked
from interlock.testing.simulation.world import World

AUDIT_SECONDS = 240.0
LOOK_SECONDS = 600.0
PATIENCE_MS = 2 * 3600 * 1000
KEPT_RUNS = 5000
"""More runs than this are pruned from time to time, as on a machine that is to last."""
JANITOR_SECONDS = 3 * 3600.0


def play(scenario: Scenario, *, log: Callable[[bytes], None] | None = None, until_ms: int | None = None) -> Story:
    """Play ``scenario``. ``log`` is given the event log, line by line, in its canonical form.

    ``until_ms``: break off after so much simulated time, for those who look for something that happens before.
    """
    memory = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
    with (
        tempfile.TemporaryDirectory(prefix="interlock-simulation-", dir=memory if memory.is_dir() else None) as folder,
        fair_trio(),
        named_locks(),
        _quiet(),
    ):
        return trio.run(
            _Play(scenario, Path(folder), log, until_ms).run, clock=trio.testing.MockClock(autojump_threshold=0)
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """What the actors say about their troubles is of no interest here: there are many."""
    logger = logging.getLogger("interlock")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


class _Play:
    def __init__(
        self, scenario: Scenario, folder: Path, log: Callable[[bytes], None] | None, until_ms: int | None
    ) -> None:
        self._scenario = scenario
        self._until_ms = until_ms
        self._folder = folder
        self._log = log

    async def run(self) -> Story:
        take_over(chance_of(self._scenario.seed, "order"))
        self._world = World(self._scenario, self._folder, asked=self._asked, log=self._log)
        self._people = People(self._world)
        self._auditor = Auditor(self._world, self._people)
        self._waits: Counter[str] = Counter()
        try:
            with self._world.scope:
                await self._people.prepare()
                async with trio.open_nursery() as self._tasks:
                    await self._live()
                    self._tasks.cancel_scope.cancel()
            return self._story()
        finally:
            self._world.close()

    async def _live(self) -> None:
        self._tasks.start_soon(self._audits)
        if self._until_ms is not None:
            self._tasks.start_soon(self._break_off, self._until_ms)
        agents = [None, *sorted(self._scenario.settings.agents)]
        for number in range(self._scenario.pullers):
            puller = Puller(self._world, self._people, number, agents[number % len(agents)] if number > 1 else None)
            self._tasks.start_soon(puller.work)
        async with trio.open_nursery() as dispatchers:
            for who in range(self._scenario.dispatchers):
                dispatchers.start_soon(self._world.keep, who)
            async with trio.open_nursery() as happenings:
                await self._happen(happenings)
            await self._see_out()
            self._world.closing = True
            for process in self._world.processes.values():
                process.end(Ending.DRAIN)
        self._last_look()

    async def _happen(self, happenings: trio.Nursery) -> None:
        began = trio.current_time()
        for entry in self._scenario.entries:
            await trio.sleep_until(began + entry.at_ms / 1000)
            if isinstance(entry, Arrival):
                happenings.start_soon(self._people.submit, entry)
            elif isinstance(entry, Fault):
                happenings.start_soon(self._world.suffer, entry)
            else:
                happenings.start_soon(self._people.do, entry)

    def _asked(self, run: Tracked) -> None:
        self._tasks.start_soon(self._people.answer, run)

    async def _break_off(self, after_ms: int) -> None:
        await trio.sleep(after_ms / 1000)
        self._world.end()

    async def _audits(self) -> None:
        if self._scenario.jobs > KEPT_RUNS:
            self._tasks.start_soon(self._janitor)
        while True:
            await trio.sleep(AUDIT_SECONDS)
            await self._auditor.audit()

    async def _janitor(self) -> None:
        while True:
            await trio.sleep(JANITOR_SECONDS)
            await self._people.keep_clean(int(JANITOR_SECONDS * 1000))

    # the end

    async def _see_out(self) -> None:
        """Nothing goes wrong any more, nothing is held back: everything ends, or waits for what only a person can give."""
        world = self._world
        world.watcher.tell("nothing goes wrong any more; whatever held work up is taken back")
        world.restore_settings()
        await self._people.put_in_order(self._scenario.routes)
        patience_ms = PATIENCE_MS + self._longest_ms()
        while world.watcher.unfinished:
            await trio.sleep(LOOK_SECONDS)
            idle_ms = world.machine.elapsed_ms() - world.watcher.last_event_ms
            if idle_ms < PATIENCE_MS:
                continue
            explained = await self._explain()
            if explained is None:
                return
            if idle_ms > patience_ms:
                number, waits = explained
                words = "; ".join(wait.message for wait in waits)
                world.broken("everything_ends", f"nothing happens any more, and it waits: {words}", number)

    def _longest_ms(self) -> int:
        settings = self._scenario.settings
        times = [settings.timeout_ms, settings.leases.remote_ms, settings.leases.claim_timeout_ms << 4]
        times += [agent.timeout_ms or 0 for agent in settings.agents.values()]
        times += [(route.timeout_minutes or 0) * 60_000 for route in self._scenario.routes]
        times += [run.job.task.timeout_ms or 0 for run in self._world.watcher.unfinished.values()]
        return max(times)

    async def _explain(self) -> tuple[int, list[Wait]] | None:
        """A run that should go on by itself with what `why` says of it; None when there is none."""
        self._waits.clear()
        around = await self._people.surroundings()
        for number in sorted(self._world.watcher.unfinished):
            waits = await self._people.service.why(number, around)
            if not waits or any(wait.by_itself for wait in waits):
                return number, waits
            self._waits[waits[0].kind] += 1
        return None

    def _last_look(self) -> None:
        world = self._world
        self._auditor.books()
        for number in sorted(self._people.accepted - world.watcher.runs.keys()):
            world.broken("nothing_is_lost", "it was accepted, and there is no trace of it", number)
        stored = {number for (number,) in world.watcher.connection.execute("SELECT number FROM runs")}
        for number in sorted(world.watcher.runs.keys() - stored):
            world.broken("nothing_is_lost", "it is in the event log, and not in the database", number)
        left = [name for (name,) in world.watcher.connection.execute("SELECT id FROM instances")]
        if left:
            world.broken("dispatchers_sign_off", f"all dispatchers have ended, and still there are {left}", None)

    def _story(self) -> Story:
        world = self._world
        return Story(
            scenario=self._scenario,
            failure=world.failure,
            digest=world.watcher.digest,
            events=dict(sorted(world.watcher.events.items())),
            faults=dict(sorted(world.faults.items())),
            deeds=dict(sorted(self._people.deeds.items())),
            conducts=dict(sorted(world.conducts.items())),
            ends=dict(sorted(world.watcher.ends.items())),
            left=len(world.watcher.unfinished),
            waits=dict(sorted(self._waits.items())),
            checks=world.watcher.checks,
            simulated_ms=world.machine.elapsed_ms(),
        )
