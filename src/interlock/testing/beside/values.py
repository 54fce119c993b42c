"""What the model remembers: plain values, and the rules that it goes by. Imports nothing of the code under test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

HELD = ("claimed", "running")
ACTIVE = ("dispatched", *HELD)
ENDED = ("completed", "failed", "timed_out", "cancelled")

SECOND = 1000
MINUTE = 60 * SECOND
STOP_MEANS = {
    "cancel": "cancelled",
    "timeout": "timed_out",
    "stall": "stalled",
    "interrupt": "interrupted",
    "close": "closed",
}

Caps = tuple[tuple[str, int], ...]
"""Pairs of a name and how many at once."""


@dataclass
class Attempt:
    """One execution; ``asked`` is how it was ended, None while it lives."""

    holder: str
    request: str | None
    asked: str | None = None


@dataclass
class Run:
    """A run as the design sees it. ``window`` is where ``not_before`` lies when chance decides it; the first look at the row makes
    it exact. ``then`` is a cancel or close that came behind another intent. Moments are Unix milliseconds.
    """

    number: int
    id: str
    project: str | None = None
    tracker: str | None = None
    role: str | None = None
    type: str | None = None
    wish: str | None = None
    tags: tuple[str, ...] = ()
    batch: str | None = None
    unique: str | None = None
    own_priority: int = 0
    timeout: int | None = None
    not_before: int | None = None
    backoff: bool = False
    window: tuple[int, int] | None = None
    state: str = "queued"
    held: bool = False
    needs: dict[int, bool] = field(default_factory=dict)
    agent: str | None = None
    fence: int = 0
    holder: str | None = None
    remote: bool = False
    owner: str | None = None
    epoch: int = 0
    pull: bool = False
    lease: int | None = None
    offered: int | None = None
    claimed: int | None = None
    first_claimed: int | None = None
    timeout_at: int | None = None
    spent: int = 0
    stop: tuple[str, str] | None = None
    then: str | None = None
    retry_of: int | None = None
    dispatches: int = 0
    failures: int = 0
    losts: int = 0
    defers: int = 0
    offers: int = 0
    releases: int = 0
    misfires: int = 0
    slots: frozenset[str] = frozenset()
    attempts: dict[int, Attempt] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether a claim on it is live."""
        return self.state in HELD

    @property
    def ended(self) -> bool:
        """Whether nothing can happen to it any more."""
        return self.state in ENDED

    @property
    def unmet(self) -> int:
        """How many needs it waits for."""
        return sum(not met for met in self.needs.values())


@dataclass(frozen=True)
class RouteRule:
    """Which agent does a type of work."""

    agent: str
    priority: int = 0
    cap: int | None = None
    minutes: int | None = None


@dataclass(frozen=True)
class Worker:
    """A defined agent: the limit and the timeout that it brings."""

    cap: int | None = None
    timeout: int | None = None


@dataclass(frozen=True)
class Rules:
    """The configuration as far as runs feel it. Durations are milliseconds."""

    workers: tuple[tuple[str, Worker], ...]
    role_agents: tuple[tuple[str, str | None], ...] = ()
    default_agent: str | None = None
    default_role: str | None = None
    enabled: bool = True
    pull: bool = False
    total: int = 10
    projects: Caps = ()
    trackers: Caps = ()
    roles: Caps = ()
    tags: Caps = ()
    agents: Caps = ()
    deadline: int | None = None
    retry_on_timeout: bool = False
    need_failed: str = "fail"
    never_claimed: str = "withdraw"
    max_retries: int = 3
    retry_base: int = 10 * SECOND
    retry_longest: int = 5 * MINUTE
    max_losts: int = 5
    max_defers: int = 20
    max_offers: int = 3
    default_defer: int = 60 * SECOND
    timeout: int = 60 * MINUTE
    local_lease: int = 5 * MINUTE
    remote_lease: int = 10 * MINUTE
    grace: int = 5 * SECOND
    claim_timeout: int = 5 * MINUTE

    @property
    def speaks_of(self) -> tuple[frozenset[str], ...]:
        """The values that limits name."""
        return tuple(frozenset(name for name, _ in pairs) for pairs in (self.projects, self.trackers, self.tags))

    def worker(self, name: str | None) -> Worker | None:
        """The defined agent of that name."""
        return next((worker for known, worker in self.workers if known == name), None)

    def role_agent(self, role: str | None) -> str | None:
        """Who does the work of a role."""
        return next((agent for known, agent in self.role_agents if known == role), None)

    def limits(self) -> Iterable[tuple[str, int]]:
        """Every limit but those of routes, as slot key and cap."""
        yield "global", self.total
        for noun, pairs in (
            ("project", self.projects),
            ("tracker", self.trackers),
            ("role", self.roles),
            ("tag", self.tags),
        ):
            yield from ((f"{noun}:{name}", cap) for name, cap in pairs)
        caps = {name: worker.cap for name, worker in self.workers if worker.cap is not None}
        for name, cap in self.agents:
            caps[name] = min(cap, caps.get(name, cap))
        yield from ((f"agent:{name}", cap) for name, cap in caps.items())

    def in_words(self) -> str:
        """What is not as it is by default, for people."""
        workers = [
            name + (f" (timeout {worker.timeout} ms)" if worker.timeout else "") for name, worker in self.workers
        ]
        said = [
            f"agents {', '.join(workers) or 'none'}",
            "limits " + ", ".join(f"{k} {cap}" for k, cap in self.limits()),
        ]
        said += [f"role {role} -> {agent}" for role, agent in self.role_agents if agent is not None]
        plain = Rules(workers=())
        told = {"workers", "role_agents", "total", "projects", "trackers", "roles", "tags", "agents"}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in told and value != getattr(plain, each.name):
                said.append(f"{each.name.replace('_', ' ')} {value}")
        return "; ".join(said)
