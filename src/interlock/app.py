"""The composition root: the only place that chooses adapters. The CLI's host and the Python API are made here."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import trio

from interlock.actors import Dispatcher, Ending
from interlock.actors.instance import alive_instances
from interlock.actors.run import Surroundings as ActorSurroundings
from interlock.api.listening import Listen, Listening
from interlock.cli.main import run_command_line
from interlock.config import Config, example_config, load_config
from interlock.domain.errors import Conflict, InvalidInput, NotFound
from interlock.domain.places import CONFIG_FILE, DATA_FOLDER, DATABASE
from interlock.domain.run import Brake, Event, Instance, ProcessIdentity, Run
from interlock.domain.settings import Agent, RuntimeKind, Settings
from interlock.domain.task import Task
from interlock.ports.runtime import CannotStart, Handle, Launch, Recovery
from interlock.ports.store import Tx
from interlock.runtimes import (
    AgentContext,
    CommandRuntime,
    FunctionRuntime,
    available_memory_bytes,
    give_up,
    raise_fd_limit,
)
from interlock.service import Service
from interlock.service.context import Context
from interlock.service.supervising import CLOCK_STEP_MS, follow_clock
from interlock.service.waiting import Surroundings
from interlock.store.clock import SystemClock
from interlock.store.disk import trouble
from interlock.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from interlock.api.gateway import Gateway

T = TypeVar("T")
AgentFunction = Callable[[AgentContext], Awaitable[Any]]


def version() -> str:
    """Version of the installed package."""
    return metadata.version("interlock")


class Runtimes:
    """One runtime out of several: each agent goes to the adapter of its kind."""

    def __init__(self, command: CommandRuntime, function: FunctionRuntime | None) -> None:
        self._command = command
        self._function = function

    def _for(self, agent: Agent) -> CommandRuntime | FunctionRuntime:
        if agent.runtime is RuntimeKind.COMMAND:
            return self._command
        if self._function is None:
            raise CannotStart(f"agent '{agent.name}' is a Python function, and this process has none")
        return self._function

    @property
    def contained(self) -> bool:
        """Whether commands are held in cgroups."""
        return self._command.contained

    def prepare(self) -> None:
        """Start what the first launch of a command would wait for; if that fails, the launch says why."""
        with suppress(OSError):
            self._command.prepare()

    def check(self, agent: Agent, cwd: Path) -> str | None:
        """Why ``agent`` could not be started now, or None."""
        try:
            return self._for(agent).check(agent, cwd)
        except CannotStart as error:
            return str(error)

    async def launch(self, launch: Launch) -> Handle:
        """Start the agent. Raises :class:`CannotStart`."""
        return await self._for(launch.agent).launch(launch)

    async def recover(self, folder: Path, known: ProcessIdentity | None = None, *, started: bool = False) -> Recovery:
        """What became of the agent of a folder. Functions of this process are the only ones that need their own look."""
        if self._function is not None:
            return await self._function.recover(folder, known, started=started)
        return await self._command.recover(folder, known, started=started)


class Interlock:
    """An open data folder: the service over it, and what a program needs beside that."""

    def __init__(self, data: Path, store: SqliteStore, config: Config, runtime: Runtimes) -> None:
        self.data = data
        self.store = store
        self.settings: Settings = config.settings
        self.config_path = config.path
        self.inactive = tuple(f"{key.place}: {key.key}: {key.why}" for key in config.inactive)
        self.clock = SystemClock()
        self.service = Service(store, self.clock, self.settings)
        self.migrated_from = store.migrated_from
        self._runtime = runtime

    # what a program does

    async def submit(self, task: Task | str) -> Run:
        """Queue a task (a string is a title). With a ``unique`` key that an unfinished run has, that run comes back."""
        task = Task(title=task) if isinstance(task, str) else task
        return (await self.service.submit(task)).run

    async def submit_all(self, tasks: list[Task]) -> list[Run]:
        """Queue several, all or none; their ``needs`` may name each other's ids."""
        return [submitted.run for submitted in await self.service.submit_all(tasks)]

    async def get(self, ref: str | int | Run) -> Run:
        """A run as it is now. ``ref``: number, ``#number``, id, unique prefix. Raises NotFound."""
        return await self.service.get(ref)

    async def wait(self, ref: str | int | Run) -> Run:
        """Until the run has ended; the run as it ended."""
        async with self.service.changes() as changes:
            while True:
                run = await self.service.get(ref)
                if run.terminal:
                    return run
                with trio.move_on_after(self.settings.poll_ms / 1000):
                    await changes.wait()

    @trio.as_safe_channel
    async def events(self, after: int | None = None) -> AsyncGenerator[Event, None]:
        """The event log as it grows: from behind sequence number ``after``, or from now on. Never ends by itself.

        ``async with il.events() as events: async for event in events: ...``
        """
        if after is None:
            after = await self.store.read(lambda tx: tx.last_seq())
        async with self.service.changes() as changes:
            while True:
                found = await self.service.events(after)
                for event in found:
                    after = event.seq
                    yield event
                if not found:
                    with trio.move_on_after(self.settings.poll_ms / 1000):
                        await changes.wait()

    async def cancel(self, ref: str | int | Run) -> Run:
        """Cancel a run: at once, or as soon as its agent is gone."""
        return await self.service.cancel(ref)

    async def answer(self, ref: str | int | Run, text: str) -> Run:
        """Answer the question of a blocked run."""
        return await self.service.answer(ref, text)

    # what the command line asks beside that

    async def alive(self) -> tuple[Instance, ...]:
        """Dispatchers that live. What keeps them from writing they cannot leave word of: it is said here in their stead."""
        found = alive_instances(self.data, await self.service.instances())
        what = trouble(self.data)
        if what is None:
            return found
        note = Brake.STORE.note(what)
        return tuple(msgspec.structs.replace(instance, note=instance.note or note) for instance in found)

    async def surroundings(self) -> Surroundings:
        """What ``why`` needs beside the database."""
        return Surroundings(alive=await self.alive(), free_memory_bytes=available_memory_bytes())

    async def rehearse(self, work: Callable[[Tx, Context], T]) -> T:
        """Do ``work`` in a transaction that is undone: nothing of it is kept, or heard of by anybody."""
        if abs(self.clock.step_ms()) > CLOCK_STEP_MS:
            self.clock.reanchor()
        epoch = self.clock.epoch()

        def undone(tx: Tx) -> T:
            follow_clock(tx, self.service.context(), epoch)
            return work(tx, self.service.context())

        return await self.store.rehearse(undone)

    def dispatcher(self, *, scope: str | None = None, alone: bool = True) -> Dispatcher:
        """A dispatcher in this process; start it with ``nursery.start(dispatcher.run)``."""
        if any(agent.runtime is RuntimeKind.COMMAND for agent in self.settings.agents.values()):
            self._runtime.prepare()
        around = ActorSurroundings(
            service=self.service,
            clock=self.clock,
            settings=self.settings,
            data=self.data,
            runtime=self._runtime,
            environment=dict(os.environ),
            folder=self.config_path.parent if self.config_path is not None else Path.cwd(),
        )
        return Dispatcher(around, scope=scope, alone=alone, free_memory=available_memory_bytes, version=version())

    def listening(self, listen: str | None = None) -> Listening:
        """Where the HTTP interface listens, not opened yet. ``listen``: HOST:PORT, else as configured. Raises InvalidInput."""
        server = self.settings.server
        host, port = split_address(listen or server.listen)
        return Listening(
            Listen(
                host=host,
                port=port,
                folder=self.data,
                hosts=server.hosts,
                strict=server.require_token,
                insists=listen is not None,
            )
        )

    def gateway(self, dispatcher: Dispatcher, listening: Listening) -> Gateway:
        """The HTTP interface beside a dispatcher of this process; start it with ``nursery.start(gateway.run)``."""
        # Half a second, which only a daemon has to wait for, and not before it dispatches.
        from interlock.api.desk import Desk  # noqa: PLC0415
        from interlock.api.gateway import Gateway  # noqa: PLC0415

        folder = self.config_path.parent if self.config_path is not None else Path.cwd()
        desk = Desk(self.service, dispatcher, data=self.data, folder=folder, version=version())
        return Gateway(desk, listening)

    def check_agent(self, agent: Agent) -> str | None:
        """Why an agent could not be started now, or None."""
        folder = self.config_path.parent if self.config_path is not None else Path.cwd()
        return self._runtime.check(agent, folder / agent.cwd if agent.cwd is not None else folder)

    @property
    def contained(self) -> bool:
        """Whether agents are held in cgroups, which nothing escapes from."""
        return self._runtime.contained

    async def doctor(self, *, repair: bool) -> list[str]:
        """Faults found in database and data folder, one sentence each; ``repair`` mends what can be mended."""
        faults = await trio.to_thread.run_sync(self.store.integrity_faults)
        slot_faults = await self.store.read(lambda tx: tx.slot_faults())
        if slot_faults and repair:
            await self.service.repair_slots()
            left = await self.store.read(lambda tx: tx.slot_faults())
            slot_faults = [f"{fault} (mended)" for fault in slot_faults if fault not in left] + left
        living = {instance.id for instance in await self.alive()}
        for run in await self.store.read(lambda tx: tx.live_runs()):
            if run.held_by_agent and not run.remote and run.owner not in living:
                faults.append(
                    f"run #{run.number} has an agent that no dispatcher looks after (`interlock up` takes it up)"
                )
        return [*faults, *slot_faults]

    async def forget(self, ref: str | int | Run) -> Run:
        """A person vouches that the agent of a run is gone: its attempt is lost, and never starts any more. Raises OSError."""
        run = await self.service.get(ref)
        attempt = await self.store.read(lambda tx: tx.attempt(run.number, run.fence))
        if attempt is not None and attempt.folder is not None and not attempt.remote:
            # Its dispatcher may only be asleep, on its way to the start.
            await trio.to_thread.run_sync(give_up, self.data / attempt.folder)
        return await self.service.forget(run)

    async def backup(self, target: Path) -> None:
        """Copy the database to a new file while it is in use."""
        await trio.to_thread.run_sync(self.store.backup, target)


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` (``[::1]:7420`` for an IPv6 address). Raises InvalidInput."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise InvalidInput(f"'{text}' is no address to listen on", hint="write HOST:PORT, such as 127.0.0.1:7420")
    return host, int(port)


def locate(data: Path | None) -> Path:
    """The data folder: as given, else INTERLOCK_DATA, else the nearest ``.interlock`` from here up, else ``./.interlock``."""
    if data is not None:
        return data.absolute()
    if named := os.environ.get("INTERLOCK_DATA"):
        return Path(named).absolute()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / DATA_FOLDER / DATABASE).exists():
            return folder / DATA_FOLDER
    return here / DATA_FOLDER


def read_config(config: Path | None, data: Path) -> Config:
    """The configuration: the named file, else interlock.yaml here or beside the data folder, else defaults."""
    if config is not None:
        return load_config(config.absolute())
    for candidate in (Path.cwd() / CONFIG_FILE, data.parent / CONFIG_FILE):
        if candidate.exists():
            return load_config(candidate)
    return Config()


def _changed(config: Config, changes: Mapping[str, object]) -> Config:
    settings = config.settings
    for name, value in changes.items():
        group, _, field = name.rpartition(".")
        if group:
            within = msgspec.structs.replace(getattr(settings, group), **{field: value})
            settings = msgspec.structs.replace(settings, **{group: within})
        else:
            settings = msgspec.structs.replace(settings, **{name: value})
    return msgspec.structs.replace(config, settings=settings)


class AppHost:
    """The composition root as the command line sees it."""

    @asynccontextmanager
    async def open(
        self,
        *,
        data: Path | None,
        config: Path | None,
        create: bool = False,
        settings_changes: Mapping[str, object] | None = None,
    ) -> AsyncIterator[Interlock]:
        """Open a data folder; see :meth:`interlock.cli.host.Host.open`."""
        folder = locate(data)
        loaded = _changed(read_config(config, folder), settings_changes or {})
        async with _opened(folder, loaded, create=create) as opened:
            yield opened

    def locate(self, data: Path | None) -> Path:
        """The data folder that :meth:`open` would use."""
        return locate(data)

    @contextmanager
    def command_runtime(self) -> Iterator[CommandRuntime]:
        """What runs agents that are commands, without a data folder."""
        runtime = CommandRuntime(soft_fd_limit=raise_fd_limit())
        try:
            yield runtime
        finally:
            runtime.close()

    def check_config(self, path: Path) -> tuple[Settings, tuple[str, ...]]:
        """Settings of a configuration file, and what in it has no effect yet."""
        loaded = load_config(path)
        return loaded.settings, tuple(f"{key.place}: {key.key}: {key.why}" for key in loaded.inactive)

    def check_agent(self, agent: Agent, folder: Path) -> str | None:
        """Why an agent of a configuration in ``folder`` could not be started now, or None."""
        cwd = folder / agent.cwd if agent.cwd is not None else folder
        return Runtimes(CommandRuntime(cgroups=False), None).check(agent, cwd)

    def example_config(self) -> str:
        """A commented interlock.yaml."""
        return example_config()

    def version(self) -> str:
        """Version of this program."""
        return version()


@asynccontextmanager
async def _opened(
    folder: Path,
    config: Config,
    *,
    create: bool,
    functions: Mapping[str, AgentFunction] | None = None,
    nursery: trio.Nursery | None = None,
) -> AsyncIterator[Interlock]:
    store = SqliteStore(folder, create=create)
    try:
        command = CommandRuntime(soft_fd_limit=raise_fd_limit())
        function = FunctionRuntime(functions, nursery) if functions and nursery is not None else None
        try:
            yield Interlock(folder, store, config, Runtimes(command, function))
        finally:
            command.close()
    finally:
        store.close()


@asynccontextmanager
async def open_interlock(
    path: str | Path = DATA_FOLDER,
    config: Settings | str | Path | None = None,
    *,
    agents: Mapping[str, AgentFunction] | None = None,
    dispatch: bool | None = None,
) -> AsyncIterator[Interlock]:
    """Open (or make) the data folder ``path`` and, unless a daemon is up for it, dispatch from this process.

    ``config``: settings, the path of an interlock.yaml, or None for ``interlock.yaml`` when there is one. ``agents``: async
    functions as agents, by name; each is called with an :class:`AgentContext`, and what it returns is the run's result.
    ``dispatch``: True insists on dispatching here (Conflict when a daemon is up), False never does. At the end of
    the block nothing new starts and running agents are waited for; an error in the block leaves commands running, to
    be taken up by the next process.
    """
    folder = Path(path).absolute()
    loaded = (
        Config(settings=config)
        if isinstance(config, Settings)
        else read_config(Path(config) if config else None, folder)
    )
    functions = dict(agents or {})
    if functions:
        named = {
            name: Agent(name=name, runtime=RuntimeKind.FUNCTION, max_concurrent=None)
            for name in functions
            if name not in loaded.settings.agents
        }
        changes: dict[str, object] = {"agents": {**loaded.settings.agents, **named}}
        if loaded.settings.default_agent is None and len(functions) == 1:
            changes["default_agent"] = next(iter(functions))
        loaded = _changed(loaded, changes)
    failure: BaseException | None = None
    async with (
        trio.open_nursery() as nursery,
        _opened(folder, loaded, create=True, functions=functions, nursery=nursery) as il,
    ):
        dispatcher: Dispatcher | None = None
        try:
            if dispatch is not False:
                dispatcher = await _start_dispatcher(il, nursery, insist=bool(dispatch))
            yield il
        except BaseException as error:  # noqa: BLE001 - raised again below, as itself rather than in a group
            failure = error
        if dispatcher is not None:
            dispatcher.end(Ending.DRAIN if failure is None else Ending.DETACH)
            with trio.CancelScope(shield=failure is not None):
                await dispatcher.ended.wait()
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _start_dispatcher(il: Interlock, nursery: trio.Nursery, *, insist: bool) -> Dispatcher | None:
    dispatcher = il.dispatcher()
    try:
        await nursery.start(dispatcher.run)
    except Conflict:
        if insist:
            raise
        return None
    return dispatcher


def main() -> None:
    """Entry point of the ``interlock`` command."""
    run_command_line(AppHost())


__all__ = ["AgentContext", "Interlock", "NotFound", "main", "open_interlock"]
