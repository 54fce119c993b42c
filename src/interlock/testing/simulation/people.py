"""The people of a simulation: they submit tasks, meddle with runs, answer questions, and steer the dispatchers."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import msgspec
import trio

from interlock.actors import Ending
from interlock.actors.instance import alive_instances
from interlock.domain.errors import InterlockError, Unavailable
from interlock.domain.run import Route
from interlock.domain.task import Task
from interlock.service import Service
from interlock.service.waiting import Surroundings
from interlock.testing.simulation.chances import chance_of
from interlock.testing.simulation.disk import Client, ClientStore
from interlock.testing.simulation.machine import FreshClock, SimulatedClock
from interlock.testing.simulation.scenario import Arrival, Deed, DeedKind, Job
from interlock.testing.simulation.watching import Tracked
from interlock.testing.simulation.words import of_deed
from interlock.testing.simulation.world import World

T = TypeVar("T")

AGAIN_SECONDS = (7.0, 60.0)
"""Who was told that the store cannot serve comes again after so long; later and later, up to so long."""
GLANCE_SECONDS = 5.0
PATIENCE_SECONDS = 1800.0
"""How long somebody waits for a run to begin, to do something to it then."""
_MUST = frozenset({DeedKind.RESUME, DeedKind.UNHOLD, DeedKind.ROUTE})
"""What somebody comes back for when the store did not take it."""
_ENDINGS = {DeedKind.DRAIN: Ending.DRAIN, DeedKind.STOP: Ending.KILL, DeedKind.DETACH: Ending.DETACH}


async def _until_served(act: Callable[[], Awaitable[T]]) -> T:
    """Again and again until the store takes it. What Interlock refuses is raised."""
    pause, longest = AGAIN_SECONDS
    while True:
        try:
            return await act()
        except Unavailable:
            await trio.sleep(pause)
            pause = min(2 * pause, longest)


class People(Client):
    """All of them, beside the dispatchers, and killed by nobody."""

    def __init__(self, world: World) -> None:
        super().__init__("people")
        self._world = world
        self._clock = FreshClock(world.machine)
        self._store = ClientStore(world.disk, self)
        self._chance = chance_of(world.scenario.seed, "people")
        self._server: tuple[str, Service] | None = None
        self.runs: dict[str, int] = {}
        self.accepted: set[int] = set()
        self.deeds: Counter[str] = Counter()

    @property
    def api(self) -> Service:
        """The service of a server, which is as old as the machine is up."""
        boot_id = self._world.machine.boot_id
        if self._server is None or self._server[0] != boot_id:
            clock = SimulatedClock(self._world.machine)
            service = Service(self._store, clock, self._world.scenario.settings, rng=self._chance)
            self._server = boot_id, service
        return self._server[1]

    @property
    def service(self) -> Service:
        """A service as a command has one: as new as its process."""
        return Service(self._store, self._clock, self._world.scenario.settings, rng=self._chance)

    async def _insist(self, act: Callable[[], Awaitable[object]]) -> None:
        """Again and again until the store takes it; what Interlock refuses is no matter."""
        with suppress(InterlockError):
            await _until_served(act)

    async def prepare(self) -> None:
        """What is there before anything begins."""
        for route in self._world.scenario.routes:
            await self.service.put_route(route)

    async def submit(self, arrival: Arrival) -> None:
        """Hand in tasks until they are accepted."""
        tasks = [self._task(job) for job in arrival.jobs]
        accepted = await _until_served(lambda: self.service.submit_all(tasks))
        for job, submitted in zip(arrival.jobs, accepted, strict=True):
            self.runs[job.name] = submitted.run.number
            self.accepted.add(submitted.run.number)
        for job in arrival.jobs:
            if job.held:
                await self._insist(lambda number=self.runs[job.name]: self.service.hold(number))  # type: ignore[misc]

    def _task(self, job: Job) -> Task:
        known = [self.runs[name] for name in job.after if name in self.runs]
        needs = tuple(f"#{number}" for number in known if number in self._world.watcher.runs)
        return msgspec.structs.replace(job.task, needs=(*job.task.needs, *needs)) if needs else job.task

    async def answer(self, run: Tracked) -> None:
        """Answer a question, in time."""
        await trio.sleep(run.job.answer_ms / 1000)
        await self._insist(lambda: self.service.answer(run.number, "this one"))

    async def do(self, deed: Deed) -> None:
        """Do something; what Interlock refuses is no matter."""
        self.deeds[deed.kind] += 1
        if deed.at_work:
            await self._until_at_work(deed)
        number = self.runs.get(deed.job or "")
        if deed.job is not None and number is None:
            return
        self._world.watcher.tell(of_deed(deed, f"#{number}"))
        if deed.kind in _MUST:
            await self._insist(lambda: self._do(deed, number or 0))
            return
        try:
            await self._do(deed, number or 0)
        except InterlockError as error:
            self._world.watcher.tell(f"  refused: {error.message}")

    async def _until_at_work(self, deed: Deed) -> None:
        number = self.runs.get(deed.job or "")
        if number is None:
            return
        with trio.move_on_after(PATIENCE_SECONDS):
            await self._world.watcher.until_at_work(number)
            # Who looks sees it a little later.
            await trio.sleep(self._chance.choice((0.0, 1.0, GLANCE_SECONDS)))

    async def _do(self, deed: Deed, number: int) -> None:
        service = self.service
        match deed.kind:
            case DeedKind.CANCEL:
                await service.cancel(number)
            case DeedKind.CLOSE:
                await service.close(number)
            case DeedKind.RETRY:
                again = await service.retry(number)
                self.runs[deed.job or ""] = again.number
                self.accepted.add(again.number)
            case DeedKind.HOLD:
                await service.hold(number)
            case DeedKind.UNHOLD:
                await service.unhold(number)
            case DeedKind.PRIORITY:
                await service.set_priority(number, deed.number)
            case DeedKind.PAUSE:
                await service.pause(message="a look at something")
            case DeedKind.RESUME:
                await service.resume()
            case DeedKind.ROUTE:
                assert deed.route is not None
                await service.put_route(deed.route)
            case DeedKind.LIMIT:
                self._world.set_limit(deed.number)
                self._world.end_dispatcher(deed.who, Ending.DETACH, deed.ms)
            case DeedKind.PRUNE:
                await self.prune(deed.ms)
            case DeedKind.DRAIN | DeedKind.STOP | DeedKind.DETACH:
                self._world.end_dispatcher(deed.who, _ENDINGS[deed.kind], deed.ms)

    async def keep_clean(self, older_than_ms: int) -> None:
        """:meth:`prune`, when the store takes it."""
        await self._insist(lambda: self.prune(older_than_ms))

    async def prune(self, older_than_ms: int) -> None:
        """Delete runs that ended long ago, with what they left."""
        world = self._world
        while True:
            gone = await self.service.prune(self._clock.now_ms() - older_than_ms)
            for number, folders in gone:
                world.watcher.pruned(number)
                self.accepted.discard(number)
                for folder in folders:
                    shutil.rmtree(world.folder / folder, ignore_errors=True)
            if not gone:
                return

    async def put_in_order(self, routes: tuple[Route, ...]) -> None:
        """Take back whatever holds work up: pauses, holds, limits."""
        await self._insist(self.service.resume)
        for route in routes:
            await self._insist(lambda route=route: self.service.put_route(route))  # type: ignore[misc]
        held = "SELECT number FROM runs WHERE held = 1 AND ended_ms IS NULL ORDER BY number"
        for (number,) in self._world.watcher.connection.execute(held).fetchall():
            await self._insist(lambda number=number: self.service.unhold(number))  # type: ignore[misc]

    async def surroundings(self) -> Surroundings:
        """What `why` looks at beside the database."""
        alive = alive_instances(self._world.folder, await self.service.instances())
        return Surroundings(alive=alive, free_memory_bytes=self._world.free_memory)
