"""A dispatcher process of the simulation: the real dispatcher with its service, to be started, killed, stopped and woken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from interlock.actors import Dispatcher, Ending
from interlock.actors import dispatcher as dispatcher_module
from interlock.actors.instance import InstanceLock
from interlock.actors.run import Surroundings
from interlock.domain.errors import Unavailable
from interlock.domain.settings import Settings
from interlock.service import Service
from interlock.testing.simulation.chances import chance_of
from interlock.testing.simulation.disk import Client, ClientStore, Disk
from interlock.testing.simulation.machine import Machine, SimulatedClock
from interlock.testing.simulation.paper import PaperRuntime
from interlock.testing.simulation.scheduler import PROCESS, stop_tasks, wake_tasks


class NamedLock(InstanceLock):
    """The lock of an instance, under a name that does not come from this host, this process or this folder."""

    def __init__(self, data: Path, *, alone: bool) -> None:
        super().__init__(data, alone=alone)
        process = PROCESS.get()
        assert isinstance(process, DispatcherProcess)
        self.id = f"paper:{process.pid}:sim.{self.ordinal}"
        # Whoever asks whether we live compares what is in the file.
        lock = self.folder / f"{self.ordinal}.lock"
        lock.write_text(f"{self.id}\n")


@contextmanager
def named_locks() -> Iterator[None]:
    """Dispatchers that start within the block go by simulated names."""
    names = vars(dispatcher_module)
    before = names["InstanceLock"]
    names["InstanceLock"] = NamedLock
    try:
        yield
    finally:
        names["InstanceLock"] = before


class DispatcherProcess(Client):
    """One life of a dispatcher. ``who``: which of them; ``settings`` as they were when it started."""

    def __init__(
        self,
        who: int,
        life: int,
        disk: Disk,
        machine: Machine,
        settings: Settings,
        runtime: Callable[[Callable[[], bool]], PaperRuntime],
        *,
        seed: int,
        free_memory: Callable[[], int | None],
    ) -> None:
        super().__init__(f"dispatcher {who}")
        self.who = who
        self.settings = settings
        self.pid = machine.new_pid()
        self._disk = disk
        self._scope = trio.CancelScope()
        clock = SimulatedClock(machine)
        service = Service(ClientStore(disk, self), clock, settings, rng=chance_of(seed, "dispatcher", who, life))
        around = Surroundings(
            service=service,
            clock=clock,
            settings=settings,
            data=disk.folder,
            runtime=runtime(lambda: not self.dead),
            environment={},
            folder=disk.folder,
        )
        self.dispatcher = Dispatcher(around, alone=False, free_memory=free_memory, version="simulation")

    @property
    def id(self) -> str | None:
        """Its instance id, once it has its lock."""
        try:
            return self.dispatcher.id
        except AssertionError:
            return None

    @property
    def awake(self) -> bool:
        """Whether it does its work: it is up, and nobody has stopped it."""
        return not self.dead and not self.stopped and self.dispatcher.state in {"active", "paused"}

    async def run(self) -> None:
        """Until it has ended, or was killed. A store that cannot serve at its start ends it, as it does the real one."""
        PROCESS.set(self)
        self._disk.clients.append(self)
        try:
            with self._scope:
                try:
                    await self.dispatcher.run()
                except* Unavailable:
                    if self.dispatcher.state != "starting":
                        raise
        finally:
            self.dead = True
            self._disk.clients.remove(self)

    def end(self, how: Ending) -> None:
        """Ask it to end."""
        self.dispatcher.end(how)

    def kill(self) -> None:
        """KILL: nothing of it runs any more that anybody could notice."""
        self.dead = True
        if self.stopped:
            wake_tasks(self)
        self._scope.cancel()
        for crossing in list(self.crossings):
            crossing.cancel()

    def stop(self) -> None:
        """SIGSTOP."""
        if not self.dead:
            stop_tasks(self)

    def wake(self) -> None:
        """SIGCONT."""
        if self.stopped:
            wake_tasks(self)
