"""The port to agents: how one is started, watched, stopped and found again.

Contract (:class:`interlock.testing.RuntimeConformance` holds an adapter to it):

* ``launch`` returns only when the agent runs and can be found again by ``recover`` after a crash of this process at
  any point; it raises :class:`CannotStart` when there is nothing that could run, and then nothing runs.
* At most one agent ever runs for one attempt folder: once ``recover`` has answered ``NeverStarted`` or ``Ended``, no launch
  that was under way in another process can still start one.
* That holds also when the folder was removed while the agent ran: a handle's ``wait`` and ``stop`` still end, and ``recover``
  finds the agent by what its caller and the system know. Only what is in the folder is lost, the exit status with it.
* ``Handle.wait`` returns when the agent itself has ended; descendants may be left. ``Handle.stop`` returns when the whole tree
  is confirmed to be gone, and raises :class:`TreeSurvives` when that cannot be confirmed.
* Output goes to the attempt's log file without passing through this process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from interlock.domain.run import ProcessIdentity
from interlock.domain.settings import Agent


class CannotStart(Exception):
    """The agent's command is missing, not executable, or refused by the system. ``str()`` is the reason."""


class TreeSurvives(Exception):
    """Processes of the tree are alive (or may be) after KILL. ``str()`` names them."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to start an agent for one attempt. ``folder`` exists and holds the prompt."""

    run: int
    run_id: str
    fence: int
    agent: Agent
    folder: Path
    cwd: Path
    env: dict[str, str]


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent ended: its exit status (128 + n for signal n), or None when it is gone without leaving one."""

    exit_status: int | None


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """Signs of life; equal values over the stall limit mean a stall."""

    output_bytes: int
    cpu_ticks: int


class Handle(Protocol):
    """A live agent."""

    @property
    def identity(self) -> ProcessIdentity | None:
        """The process to be found again; None for an agent inside this process."""
        ...

    async def wait(self) -> Ending:
        """Until the agent itself has ended."""
        ...

    async def stop(self, grace_ms: int) -> None:
        """End the whole tree: TERM, grace, KILL, confirmed. May be called again, and after the end.

        Raises :class:`TreeSurvives`.
        """
        ...

    def activity(self) -> Activity:
        """Output and CPU so far."""
        ...

    def close(self) -> None:
        """Let go of descriptors; the agent lives on."""
        ...


class Alive(msgspec.Struct, frozen=True):
    """The agent of this folder runs (or its lock is held, which counts as running)."""

    handle: Handle


class Ended(msgspec.Struct, frozen=True):
    """It ran and is gone with its whole tree."""

    ending: Ending


class NeverStarted(msgspec.Struct, frozen=True):
    """It never ran (its start was not confirmed, and nothing is found of it), and never will: the folder is void."""


class Unknown(msgspec.Struct, frozen=True):
    """It may be alive; nobody can tell. ``why`` says what is in the way."""

    why: str


Recovery = Alive | Ended | NeverStarted | Unknown


class Runtime(Protocol):
    """An adapter that runs one kind of agent."""

    def check(self, agent: Agent, cwd: Path) -> str | None:
        """Why ``agent`` could not be started now, or None. Cheap: looks the command up, starts nothing."""
        ...

    async def launch(self, launch: Launch) -> Handle:
        """Start the agent. Raises :class:`CannotStart`."""
        ...

    async def recover(self, folder: Path, known: ProcessIdentity | None = None, *, started: bool = False) -> Recovery:
        """What became of the agent of this attempt folder; see the contract above.

        ``known`` is the process that was recorded for the attempt, ``started`` whether its start was confirmed: the folder
        may be gone, and they are not. An attempt that was started is never ``NeverStarted``.
        """
        ...
