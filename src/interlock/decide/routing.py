"""Which agent does a run's work."""

from __future__ import annotations

from collections.abc import Mapping

from interlock.domain.run import Route
from interlock.domain.settings import Mode, Settings
from interlock.domain.task import Task


def agent_for(task: Task, routes: Mapping[str, Route], settings: Settings) -> str | None:
    """Name of the agent: the task's own, else its route's, else its role's, else the default. None: nobody."""
    if task.agent is not None:
        return task.agent
    if task.type is not None and (route := routes.get(task.type)) is not None:
        return route.agent_id
    role = settings.roles.get(task.role or settings.default_role or "")
    if role is not None and role.agent is not None:
        return role.agent
    return settings.default_agent


def waits_for_route(task: Task, agent: str | None, known: Mapping[str, object], settings: Settings) -> str | None:
    """Why no agent can be chosen, as a sentence with its remedy; None when one can."""
    if settings.mode is Mode.PULL:
        return None
    if agent is None:
        if task.type is not None:
            return (
                f"no route for type '{task.type}' and no default agent: "
                f"`interlock routes set {task.type} AGENT`, or set dispatch.defaultAgent"
            )
        return "no agent: give --agent, name one in the task, or set dispatch.defaultAgent in interlock.yaml"
    if agent not in known:
        return f"agent '{agent}' is not defined: add it under `agents:` in interlock.yaml"
    return None
