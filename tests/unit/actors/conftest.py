"""Actors under a clock that jumps: an inline store, time as trio tells it, and agents that exist on paper only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from interlock.actors import Dispatcher, Ending
from interlock.actors.run import Surroundings
from interlock.domain.run import ProcessIdentity, Run
from interlock.domain.settings import Agent, Limits, Retry, Settings
from interlock.domain.task import Task
from interlock.ports import runtime as port
from interlock.service import Service
from interlock.store.clock import TrioClock
from interlock.store.sqlite import SqliteStore

WORKER = Agent(name="worker", command="true")


class FakeHandle:
    """An agent: ends when told to, or when stopped. It outlives dispatchers, as a process does."""

    def __init__(self, launch: port.Launch) -> None:
        self.launch = launch
        self.identity = ProcessIdentity(
            boot_id="b", pid_namespace="n", pid=launch.run * 100 + launch.fence, start_ticks=1
        )
        self.over = trio.Event()
        self.status: int | None = None
        self.stops: list[int] = []
        self.survives = 0
        self.closed = 0
        self.output = 0

    def end(self, status: int | None) -> None:
        """End by itself."""
        self.status = status
        self.over.set()

    async def wait(self) -> port.Ending:
        await self.over.wait()
        return port.Ending(exit_status=self.status)

    async def stop(self, grace_ms: int) -> None:
        await trio.lowlevel.checkpoint()
        self.stops.append(grace_ms)
        if self.survives:
            self.survives -= 1
            raise port.TreeSurvives("pid 1 (stone, state D)")
        if not self.over.is_set():
            self.end(143)

    def activity(self) -> port.Activity:
        return port.Activity(output_bytes=self.output, cpu_ticks=0)

    def close(self) -> None:
        self.closed += 1


class FakeRuntime:
    """Launches on paper. ``missing`` agents cannot be started, which ``check`` sees, nor can ``refusing`` ones, which it does
    not; ``on_launch`` is called first and may raise.
    """

    def __init__(self) -> None:
        self.handles: dict[Path, FakeHandle] = {}
        self.missing: dict[str, str] = {}
        self.refusing: dict[str, str] = {}
        self.void: set[Path] = set()
        self.on_launch: Callable[[port.Launch], Any] = lambda _: None
        self.launches = 0
        self.recoveries = 0
        self.known: dict[Path, tuple[ProcessIdentity | None, bool]] = {}

    @property
    def live(self) -> list[FakeHandle]:
        """Agents that have not ended, in order of launch."""
        return [handle for handle in self.handles.values() if not handle.over.is_set()]

    def check(self, agent: Agent, cwd: Path) -> str | None:
        return self.missing.get(agent.name)

    async def launch(self, launch: port.Launch) -> FakeHandle:
        await trio.lowlevel.checkpoint()
        self.launches += 1
        if launch.agent.name in self.missing:
            raise port.CannotStart(self.missing[launch.agent.name])
        if launch.agent.name in self.refusing:
            raise port.CannotStart(self.refusing[launch.agent.name])
        assert launch.folder not in self.handles, "launched twice"
        assert launch.folder not in self.void, "launched though it was given up"
        self.on_launch(launch)
        handle = self.handles[launch.folder] = FakeHandle(launch)
        return handle

    async def recover(
        self, folder: Path, known: ProcessIdentity | None = None, *, started: bool = False
    ) -> port.Recovery:
        await trio.lowlevel.checkpoint()
        self.recoveries += 1
        self.known[folder] = known, started
        handle = self.handles.get(folder)
        if handle is None:
            if started:
                return port.Ended(port.Ending(exit_status=None))
            self.void.add(folder)
            return port.NeverStarted()
        if handle.over.is_set():
            return port.Ended(port.Ending(exit_status=handle.status))
        return port.Alive(handle)


class Depot:
    """A data folder, a service over it, and dispatchers that come and go."""

    def __init__(self, data: Path, settings: Settings) -> None:
        self.data = data
        self.clock = TrioClock()
        self.settings = settings
        self.store = SqliteStore(data, create=True, inline=True)
        self.service = Service(self.store, self.clock, settings, rng=Random(7))
        self.runtime = FakeRuntime()
        self.free_memory: int | None = None

    def dispatcher(self, *, alone: bool = True, scope: str | None = None) -> Dispatcher:
        around = Surroundings(
            service=self.service,
            clock=self.clock,
            settings=self.settings,
            data=self.data,
            runtime=self.runtime,
            environment={"PATH": "/bin"},
            folder=self.data,
        )
        return Dispatcher(around, alone=alone, scope=scope, free_memory=lambda: self.free_memory, version="test")

    @asynccontextmanager
    async def up(self, *, alone: bool = True, end: Ending = Ending.KILL) -> AsyncIterator[Dispatcher]:
        """A dispatcher for the length of the block, which ends it if the block did not."""
        async with trio.open_nursery() as nursery:
            dispatcher = self.dispatcher(alone=alone)
            await nursery.start(dispatcher.run)
            yield dispatcher
            dispatcher.end(end)
            await dispatcher.ended.wait()

    async def submit(self, *titles: str, **fields: Any) -> list[Run]:
        tasks = [Task(title=title, **fields) for title in titles]
        return [submitted.run for submitted in await self.service.submit_all(tasks)]

    async def until(self, condition: Callable[[], Any], seconds: float = 100) -> Any:
        """Wait for a condition in the clock's own time."""
        with trio.fail_after(seconds):
            while not (value := condition()):
                await trio.sleep(0.01)
        return value

    async def until_state(self, run: Run, *states: str, seconds: float = 100) -> Run:
        return await self.until(lambda: (now := self.get(run)).state in states and now, seconds)

    def get(self, run: Run) -> Run:
        return self.store.read_now(lambda tx: tx.run(run.number))  # type: ignore[return-value]

    def attempts(self, run: Run) -> list[Any]:
        return self.store.read_now(lambda tx: tx.attempts(run.number))

    def events(self, run: Run) -> list[str]:
        return [event.event for event in self.store.read_now(lambda tx: tx.events_of(run.number))]

    def healths(self) -> dict[str, Any]:
        return self.store.read_now(lambda tx: tx.healths())

    async def ended_agent(self, run: Run, status: int | None = 0) -> None:
        """Let the live agent of a run end."""
        handle = await self.until(lambda: self.agent_of(run))
        handle.end(status)

    def agent_of(self, run: Run) -> FakeHandle | None:
        return next((handle for handle in self.runtime.live if handle.launch.run == run.number), None)

    def close(self) -> None:
        faults = self.store.read_now(lambda tx: tx.slot_faults())
        self.store.close()
        assert faults == []


@pytest.fixture
def settings() -> Settings:
    """What the depots of a test are configured by; tests override it by parametrising ``changes``."""
    return Settings(
        agents={"worker": WORKER, "other": Agent(name="other", command="true")},
        default_agent="worker",
        limits=Limits(total=4),
        retry=Retry(max_retries=2, base_delay_ms=1000, max_delay_ms=4000),
    )


@pytest.fixture
def make_depot(tmp_path: Path, settings: Settings) -> Any:
    """Make a depot; keyword arguments change its settings."""
    import msgspec

    made: list[Depot] = []

    def make(**changes: Any) -> Depot:
        depot = Depot(tmp_path / f"data{len(made)}", msgspec.structs.replace(settings, **changes))
        made.append(depot)
        return depot

    yield make
    for depot in made:
        depot.close()


@pytest.fixture
def depot(make_depot: Any) -> Depot:
    """A depot with the usual settings."""
    return make_depot()  # type: ignore[no-any-return]
