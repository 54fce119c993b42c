"""Limits: which slots a run takes, how many there are, and what stands in its way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from interlock.decide.routing import is_pattern, route_for
from interlock.domain.run import Route
from interlock.domain.settings import Settings
from interlock.domain.task import Task

GLOBAL = "global"
ROUTE = "route:"


class Saturated(msgspec.Struct, frozen=True):
    """A limit without room: its key, what is in use, what it allows."""

    key: str
    used: int
    cap: int


def slot_keys(task: Task, agent: str | None, settings: Settings) -> tuple[str, ...]:
    """Keys of the slots that a run of ``task`` takes: one for every value it has, limited today or not.

    Taking the unlimited ones as well is what makes a limit that is set tomorrow exact from its first moment.
    """
    role = task.role or settings.default_role
    keys = [GLOBAL]
    if task.project is not None:
        keys.append(f"project:{task.project}")
    if task.tracker is not None:
        keys.append(f"tracker:{task.tracker}")
    if role is not None:
        keys.append(f"role:{role}")
    if task.type is not None:
        keys.append(f"route:{task.type}")
    if agent is not None:
        keys.append(f"agent:{agent}")
    keys.extend(f"tag:{tag}" for tag in dict.fromkeys(task.tags))
    return tuple(keys)


def caps(settings: Settings, routes: Mapping[str, Route]) -> dict[str, int]:
    """Every limit in force: slot key -> how many at once. A key that is not there is not limited."""
    limits = settings.limits
    result = {GLOBAL: limits.total}
    for noun, values in (
        ("project", limits.per_project),
        ("tracker", limits.per_tracker),
        ("role", limits.per_role),
        ("tag", limits.per_tag),
    ):
        result.update((f"{noun}:{name}", cap) for name, cap in values.items())
    for agent in settings.agents.values():
        if agent.max_concurrent is not None:
            result[f"agent:{agent.name}"] = agent.max_concurrent
    for name, cap in limits.per_agent.items():
        key = f"agent:{name}"
        result[key] = min(cap, result.get(key, cap))
    for route in routes.values():
        if route.max_concurrent is not None:
            result[f"{ROUTE}{route.workflow_type}"] = route.max_concurrent
    return _WithPatterns(result, routes) if any(map(is_pattern, routes)) else result


class _WithPatterns(dict[str, int]):
    """Limits of which some are for every type that matches a pattern: of each such type, so many at once."""

    def __init__(self, limits: Mapping[str, int], routes: Mapping[str, Route]) -> None:
        super().__init__(limits)
        self._routes = routes

    def get(self, key: str, default: Any = None) -> Any:
        if key.startswith(ROUTE):
            route = route_for(key[len(ROUTE) :], self._routes)
            found = None if route is None else route.max_concurrent
        else:
            found = super().get(key)
        return default if found is None else found


def saturated(keys: Iterable[str], used: Mapping[str, int], limits: Mapping[str, int]) -> list[Saturated]:
    """The limits among ``keys`` that have no room for one more."""
    return [
        Saturated(key, used.get(key, 0), cap)
        for key in keys
        if (cap := limits.get(key)) is not None and used.get(key, 0) >= cap
    ]
