"""What a configuration makes impossible: said where exploring it came to nothing either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from interlock.decide.capacity import GLOBAL, caps
from interlock.domain.run import Route
from interlock.domain.settings import MINUTE, Mode, Settings
from interlock.testing.explored import Explored


def impossible(settings: Settings, routes: Sequence[Route], explored: Explored) -> list[str]:
    """Sentences about what can never happen under these settings and routes, and did not while they were explored."""
    said = [
        *_nothing_starts(settings),
        *_limits(settings, routes, explored),
        *_routes(settings, routes, explored),
        *_agents(settings, routes, explored),
        *_times(settings),
    ]
    return list(dict.fromkeys(said))


def _nothing_starts(settings: Settings) -> Iterator[str]:
    if not settings.enabled:
        yield "dispatch.enabled is false: nothing is ever dispatched"
    if settings.mode is Mode.PUSH and not settings.agents:
        yield (
            "no agent is defined: nothing starts unless a command names one (`interlock run --agent`); "
            "a stand-in did the work here"
        )


def _limits(settings: Settings, routes: Sequence[Route], explored: Explored) -> Iterator[str]:
    total = settings.limits.total
    for key, cap in sorted(caps(settings, {route.workflow_type: route for route in routes}).items()):
        use = explored.limits.get(key)
        if use is not None and use.highest > 0 and cap == 0:
            continue
        if cap == 0:
            what = "nothing ever starts" if key == GLOBAL else f"nothing of {_words(key)} ever starts"
            yield f"the limit {key} is 0: {what}"
        elif key != GLOBAL and cap > total and (use is None or not use.filled):
            yield f"the limit {key} is {cap} and can never be reached: all together may be {total}"


def _words(key: str) -> str:
    noun, _, name = key.partition(":")
    return f"{'type' if noun == 'route' else noun} '{name}'"


def _routes(settings: Settings, routes: Sequence[Route], explored: Explored) -> Iterator[str]:
    if settings.mode is Mode.PULL:
        return
    for route in routes:
        taken = explored.routes.get(f"{route.workflow_type} -> {route.agent_id}")
        if not taken and route.agent_id not in settings.agents:
            yield (
                f"the route of type '{route.workflow_type}' can never be taken: "
                f"its agent '{route.agent_id}' is not defined under `agents:`"
            )


def _agents(settings: Settings, routes: Sequence[Route], explored: Explored) -> Iterator[str]:
    limits = settings.limits
    for name in limits.per_agent:
        if settings.mode is Mode.PUSH and settings.agents and name not in settings.agents:
            yield f"the limit agent:{name} speaks of an agent that is not defined"
    for role in settings.roles.values():
        if role.agent is not None and role.agent not in settings.agents:
            yield f"the role '{role.name}' can never be worked for: its agent '{role.agent}' is not defined"
    chosen = {settings.default_agent, *(role.agent for role in settings.roles.values())}
    chosen |= {route.agent_id for route in routes}
    if settings.mode is Mode.PUSH and settings.agents and chosen == {None}:
        yield "no default agent, role or route names an agent: a task that names none never starts (dispatch.defaultAgent)"
    for name in settings.agents:
        if name not in chosen and explored.limits.get(f"agent:{name}") is None and chosen != {None}:
            yield f"nothing leads to the agent '{name}' but a task that names it: no default, role or route does"


def _times(settings: Settings) -> Iterator[str]:
    deadline = settings.deadline_ms
    if deadline is None:
        return
    if settings.timeout_ms > deadline:
        yield (
            f"dispatch.timeout ({_minutes(settings.timeout_ms)}) is never reached: "
            f"dispatch.deadline ({_minutes(deadline)}) comes first"
        )


def _minutes(ms: int) -> str:
    return f"{ms / MINUTE:g} minutes"
