"""Interlock: a durable dispatcher for AI agents on one host.

::

    async with interlock.open(".interlock", agents={"greet": greet}) as il:
        run = await il.submit(interlock.Task(title="Say hello"))
        print((await il.wait(run)).result)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from interlock.domain.errors import InterlockError
from interlock.domain.run import Attempt, Event, Route, Run
from interlock.domain.settings import Agent, Limits, Retry, Settings
from interlock.domain.states import RunState
from interlock.domain.task import Task, TaskContext

if TYPE_CHECKING:
    from interlock.app import AgentContext, Interlock
    from interlock.app import open_interlock as open  # noqa: A004 - interlock.open reads as what it does

__all__ = [
    "Agent",
    "AgentContext",
    "Attempt",
    "Event",
    "Interlock",
    "InterlockError",
    "Limits",
    "Retry",
    "Route",
    "Run",
    "RunState",
    "Settings",
    "Task",
    "TaskContext",
    "open",
]


def __getattr__(name: str) -> Any:
    # The composition root imports every room; a program that only needs the values does not wait for that.
    if name in ("AgentContext", "Interlock", "open"):
        from interlock import app  # noqa: PLC0415

        return getattr(app, "open_interlock" if name == "open" else name)
    raise AttributeError(f"module 'interlock' has no attribute '{name}'")
