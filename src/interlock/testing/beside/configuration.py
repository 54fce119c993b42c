"""Settings and the model's rules, the names that tasks are made of, and configurations to be drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from interlock.domain.run import Route
from interlock.domain.settings import (
    Agent,
    Budgets,
    Leases,
    Limits,
    Mode,
    OnNeedFailed,
    OnNeverClaimed,
    OnTimeout,
    Retry,
    Role,
    Settings,
)
from interlock.testing.beside.drawing import mostly
from interlock.testing.beside.values import MINUTE, SECOND, Rules, Worker

UNKNOWN = "ghost"
"""An agent that no configuration defines, unless somebody means to."""


def rules_of(settings: Settings) -> Rules:
    """The model's rules for these settings."""
    limits, budgets, leases = settings.limits, settings.budgets, settings.leases
    return Rules(
        workers=tuple(
            (agent.name, Worker(agent.max_concurrent, agent.timeout_ms)) for agent in settings.agents.values()
        ),
        role_agents=tuple((role.name, role.agent) for role in settings.roles.values()),
        default_agent=settings.default_agent,
        default_role=settings.default_role,
        enabled=settings.enabled,
        pull=settings.mode is Mode.PULL,
        total=limits.total,
        projects=tuple(limits.per_project.items()),
        trackers=tuple(limits.per_tracker.items()),
        roles=tuple(limits.per_role.items()),
        tags=tuple(limits.per_tag.items()),
        agents=tuple(limits.per_agent.items()),
        deadline=settings.deadline_ms,
        retry_on_timeout=settings.on_timeout is OnTimeout.RETRY,
        need_failed=str(settings.on_need_failed),
        never_claimed=str(settings.on_never_claimed),
        max_retries=settings.retry.max_retries,
        retry_base=settings.retry.base_delay_ms,
        retry_longest=settings.retry.max_delay_ms,
        max_losts=budgets.max_losts,
        max_defers=budgets.max_defers,
        max_offers=budgets.max_offers,
        default_defer=budgets.default_defer_ms,
        timeout=settings.timeout_ms,
        local_lease=leases.local_ms,
        remote_lease=leases.remote_ms,
        grace=leases.grace_ms,
        claim_timeout=leases.claim_timeout_ms,
    )


@dataclass(frozen=True)
class Names:
    """What tasks, claims and routes speak of. ``agents`` holds one that is not defined; ``types`` have no route to begin with."""

    projects: tuple[str, ...]
    trackers: tuple[str, ...]
    roles: tuple[str, ...]
    tags: tuple[str, ...]
    agents: tuple[str, ...]
    routed: tuple[str, ...] = ()
    types: tuple[str, ...] = ("review", "build")

    @property
    def defined(self) -> list[str]:
        """Agents that are defined."""
        return [name for name in dict.fromkeys(self.agents) if not name.startswith(UNKNOWN)]

    def task(self) -> dict[str, list[Any]]:
        """The fields of a task, each with its options."""
        pairs = [self.tags[:2]] if len(self.tags) > 1 else []
        return {
            "project": mostly(None, *self.projects),
            "tracker": mostly(None, *self.trackers),
            "role": mostly(None, *self.roles),
            "type": mostly(None, *self.routed, *self.types),
            "agent": mostly(None, *self.agents),
            "tags": mostly((), *((tag,) for tag in self.tags), *pairs, (self.tags[-1], self.tags[-1])),
            "priority": mostly(0, -1, 1, 2, 3),
            "unique": mostly(None, None, None, "u1", "u2"),
            "timeout_ms": mostly(None, 10 * MINUTE, 50 * MINUTE),
        }


def names_of(settings: Settings, routes: Sequence[Route]) -> Names:
    """The names that settings and routes speak of, and for each kind one that they do not."""
    limits = settings.limits
    agents = [*settings.agents, *(route.agent_id for route in routes)]
    routed = tuple(route.workflow_type for route in routes)
    return Names(
        projects=_with_another(limits.per_project, "another-project"),
        trackers=_with_another(limits.per_tracker, "another-tracker"),
        roles=_with_another([*settings.roles, *limits.per_role], "another-role"),
        tags=_with_another(limits.per_tag, "another-tag"),
        agents=_with_another(agents, UNKNOWN),
        routed=routed,
        types=tuple(name for name in ("unrouted-1", "unrouted-2") if name not in routed),
    )


def _with_another(names: Iterable[str], other: str) -> tuple[str, ...]:
    return (*dict.fromkeys(name for name in names if name != other), other)


DRAWN_NAMES = Names(
    projects=("p1", "p2", "p3"),
    trackers=("t1", "t2"),
    roles=("r1", "r2"),
    tags=("gpu", "net", "doc"),
    agents=("a1", "a2", "a2", "a2", UNKNOWN),
)


def _pairs(*names: str) -> list[tuple[tuple[str, int], ...]]:
    """Limits of some of the names, none half of the time."""
    options = [[(name, cap) for cap in (1, 2, 3, 1, 2, 3, 0)] + [None] * 2 for name in names]
    found = [tuple(pair for pair in pairs if pair is not None) for pairs in product(*options)]
    return [()] * len(found) + found


CONFIGURATION: dict[str, list[Any]] = {
    "pull": [False, True],
    "total": [3, 4, 2, 5, 6, 8, 4, 1, 3, 4, 5, 6, 8, 3, 0],
    "projects": _pairs("p1", "p2"),
    "trackers": _pairs("t1"),
    "roles": _pairs("r1"),
    "tags": _pairs("gpu", "net"),
    "agents": _pairs("a1", "a2"),
    "default_agent": ["a1", "a1", "a1", "a2", None],
    "default_role": mostly(None, "r1", "r2"),
    "enabled": [True] * 14 + [False],
    "deadline": mostly(None, 40 * MINUTE),
    "retry_on_timeout": [False, True],
    "retry_base": mostly(10 * SECOND, 0, 400 * SECOND),
    "default_defer": mostly(60 * SECOND, 0),
    "need_failed": ["fail", "skip", "run"],
    "never_claimed": ["withdraw", "fail"],
}
"""What configurations are drawn from: two agents, small limits and budgets, so that a short walk comes to their ends."""


def drawn_settings(choice: dict[str, Any]) -> Settings:
    """The settings of a choice from :data:`CONFIGURATION`."""
    retry_base = choice["retry_base"]
    return Settings(
        enabled=choice["enabled"],
        mode=Mode.PULL if choice["pull"] else Mode.PUSH,
        limits=Limits(
            total=choice["total"],
            per_project=dict(choice["projects"]),
            per_tracker=dict(choice["trackers"]),
            per_role=dict(choice["roles"]),
            per_tag=dict(choice["tags"]),
            per_agent=dict(choice["agents"]),
        ),
        retry=Retry(max_retries=1, base_delay_ms=retry_base, max_delay_ms=max(retry_base, 5 * MINUTE)),
        budgets=Budgets(max_losts=1, max_defers=1, max_offers=1, default_defer_ms=choice["default_defer"]),
        leases=Leases(local_ms=5 * MINUTE, remote_ms=10 * MINUTE, grace_ms=5 * SECOND, claim_timeout_ms=5 * MINUTE),
        agents={
            "a1": Agent(name="a1", command="true", max_concurrent=2),
            "a2": Agent(name="a2", command="true", timeout_ms=20 * MINUTE),
        },
        roles={"r1": Role(name="r1", agent="a2")},
        default_agent=choice["default_agent"],
        default_role=choice["default_role"],
        timeout_ms=30 * MINUTE,
        deadline_ms=choice["deadline"],
        on_timeout=OnTimeout.RETRY if choice["retry_on_timeout"] else OnTimeout.END,
        on_need_failed=OnNeedFailed(choice["need_failed"]),
        on_never_claimed=OnNeverClaimed(choice["never_claimed"]),
    )
