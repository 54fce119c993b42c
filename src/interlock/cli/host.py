"""What the command line asks of the composition root, which hands itself in (imports only point down)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import trio

from interlock.actors import Dispatcher
from interlock.domain.run import Instance, Run
from interlock.domain.settings import Agent, Settings
from interlock.ports.runtime import Runtime
from interlock.ports.store import Tx
from interlock.service import Service
from interlock.service.context import Context
from interlock.service.waiting import Surroundings

T = TypeVar("T")


class Listening(Protocol):
    """Where an HTTP interface listens."""

    addresses: list[str]

    def open(self) -> object:
        """Listen. Raises Conflict for an address that is taken."""
        ...

    def close(self) -> None:
        """Listen no more."""
        ...


class Serving(Protocol):
    """An HTTP interface."""

    async def run(self, task_status: trio.TaskStatus[None] = ...) -> None:
        """Until cancelled. Reports started when requests are served."""
        ...


class Opened(Protocol):
    """An open data folder."""

    @property
    def data(self) -> Path:
        """The data folder."""
        ...

    @property
    def service(self) -> Service:
        """The service over it."""
        ...

    @property
    def settings(self) -> Settings:
        """Settings in force, from interlock.yaml and the options."""
        ...

    @property
    def config_path(self) -> Path | None:
        """The configuration file that was read, if there is one."""
        ...

    @property
    def inactive(self) -> tuple[str, ...]:
        """Keys of the configuration that have no effect yet, one sentence each."""
        ...

    @property
    def migrated_from(self) -> Path | None:
        """Backup that was made before the database was migrated just now."""
        ...

    async def alive(self) -> tuple[Instance, ...]:
        """Dispatchers that live."""
        ...

    async def forget(self, ref: str | int | Run) -> Run:
        """A person vouches that the agent of a run is gone."""
        ...

    async def surroundings(self) -> Surroundings:
        """What ``why`` needs beside the database."""
        ...

    async def rehearse(self, work: Callable[[Tx, Context], T]) -> T:
        """Do ``work`` in a transaction that is undone: nothing of it is kept, or heard of by anybody."""
        ...

    def dispatcher(self, *, scope: str | None = None, alone: bool = True) -> Dispatcher:
        """A dispatcher in this process; start it with ``nursery.start(dispatcher.run)``."""
        ...

    def listening(self, listen: str | None = None) -> Listening:
        """Where the HTTP interface listens, not opened yet; ``listen``: HOST:PORT, else as configured."""
        ...

    def gateway(self, dispatcher: Dispatcher, listening: Any) -> Serving:
        """The HTTP interface beside a dispatcher of this process; start it with ``nursery.start(gateway.run)``."""
        ...

    def check_agent(self, agent: Agent) -> str | None:
        """Why an agent could not be started now, or None."""
        ...

    @property
    def contained(self) -> bool:
        """Whether agents are held in cgroups, which nothing escapes from."""
        ...

    async def doctor(self, *, repair: bool) -> list[str]:
        """Faults found in database and data folder, one sentence each; ``repair`` mends what can be mended."""
        ...

    async def backup(self, target: Path) -> None:
        """Copy the database to a new file while it is in use."""
        ...


class Host(Protocol):
    """The composition root as commands see it."""

    def open(
        self,
        *,
        data: Path | None,
        config: Path | None,
        create: bool = False,
        settings_changes: Mapping[str, object] | None = None,
    ) -> AbstractAsyncContextManager[Opened]:
        """Open a data folder: ``data``, else INTERLOCK_DATA, else the nearest ``.interlock`` from here up, else ``./.interlock``.

        ``config``: else ``interlock.yaml`` beside the data folder, when there. ``settings_changes`` replace fields of
        :class:`Settings`, by name; ``limits.total`` is the field ``total`` of its field ``limits``.
        """
        ...

    def locate(self, data: Path | None) -> Path:
        """The data folder that :meth:`open` would use."""
        ...

    def command_runtime(self) -> AbstractContextManager[Runtime]:
        """What runs agents that are commands, without a data folder. To be used within one run of trio."""
        ...

    def check_config(self, path: Path) -> tuple[Settings, tuple[str, ...]]:
        """Settings of a configuration file, and what in it has no effect yet. Raises :class:`InvalidConfig`."""
        ...

    def check_agent(self, agent: Agent, folder: Path) -> str | None:
        """Why an agent of a configuration in ``folder`` could not be started now, or None."""
        ...

    def example_config(self) -> str:
        """A commented interlock.yaml."""
        ...

    def version(self) -> str:
        """Version of this program."""
        ...
