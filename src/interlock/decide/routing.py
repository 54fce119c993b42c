"""Which agent does a run's work."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from interlock.domain.run import Route
from interlock.domain.settings import Mode, Settings
from interlock.domain.task import Task

_SPECIAL = frozenset("*?[")


def route_for(workflow_type: str | None, routes: Mapping[str, Route]) -> Route | None:
    """The route of a type: its own, else that of the most specific pattern (``review.*``) that it matches."""
    if workflow_type is None:
        return None
    if (route := routes.get(workflow_type)) is not None:
        return route
    patterns = [pattern for pattern in routes if fnmatchcase(workflow_type, pattern)]
    return routes[max(patterns, key=_specificity)] if patterns else None


def is_pattern(workflow_type: str) -> bool:
    """Whether a route is for every type that matches it."""
    return not _SPECIAL.isdisjoint(workflow_type)


def _specificity(pattern: str) -> tuple[int, str]:
    # More that is spelt out is more specific; the rest only makes the choice a definite one.
    return sum(sign not in _SPECIAL for sign in pattern), pattern


def agent_for(task: Task, routes: Mapping[str, Route], settings: Settings) -> str | None:
    """Name of the agent: the task's own, else its route's, else its role's, else the default. None: nobody."""
    if task.agent is not None:
        return task.agent
    if (route := route_for(task.type, routes)) is not None:
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
