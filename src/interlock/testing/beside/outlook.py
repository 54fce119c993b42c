"""Where runs stand in the model: who does their work, which limits they come under, whether they may start."""

from __future__ import annotations

from collections import Counter

from interlock.testing.beside.values import MINUTE, RouteRule, Rules, Run


class Outlook:
    """All runs, and everything that decides about them."""

    def __init__(self, rules: Rules, now: int) -> None:
        self.rules = rules
        self.lanes_by = rules.speaks_of
        self.now = now
        self.runs: dict[int, Run] = {}
        self.routes: dict[str, RouteRule] = {}
        self.unavailable: dict[str, int] = {}
        self.pullers: dict[str, tuple[str | None, tuple[str, ...], int]] = {}
        self.paused = False
        self.alive: int | None = None

    # what decides whether a run may start

    def priority(self, run: Run) -> int:
        route = self.routes.get(run.type or "")
        return run.own_priority + (route.priority if route else 0)

    def agent_for(self, run: Run) -> str | None:
        if run.wish:
            return run.wish
        if run.type in self.routes:
            return self.routes[run.type or ""].agent
        return self.rules.role_agent(self.role(run)) or self.rules.default_agent

    def keys(self, run: Run, agent: str | None) -> frozenset[str]:
        found = {"global", *(f"tag:{tag}" for tag in run.tags)}
        named = {
            "project": run.project,
            "tracker": run.tracker,
            "role": self.role(run),
            "route": run.type,
            "agent": agent,
        }
        found |= {f"{noun}:{name}" for noun, name in named.items() if name is not None}
        return frozenset(found)

    def caps(self) -> dict[str, int]:
        caps = dict(self.rules.limits())
        caps |= {f"route:{name}": route.cap for name, route in self.routes.items() if route.cap is not None}
        return caps

    def used(self) -> Counter[str]:
        return Counter(key for run in self.runs.values() for key in run.slots)

    def has_room(self, keys: frozenset[str]) -> bool:
        used, caps = self.used(), self.caps()
        return all(used[key] < caps[key] for key in keys if key in caps)

    def startable(self, run: Run) -> bool:
        """Of a ready run: whether agent and limits allow it now."""
        agent = self.agent_for(run)
        if not self.rules.pull and (self.rules.worker(agent) is None or self.closed(agent)):
            return False
        return self.has_room(self.keys(run, agent))

    def closed(self, agent: str | None) -> bool:
        """Whether an agent gets no run now: it could not be started, or one run tries whether it can be again."""
        retry = self.unavailable.get(agent or "", 0)
        if not retry or retry > self.now:
            return retry > self.now
        since = max(retry, self.now - MINUTE)
        return any(
            run.state == "claimed" and not run.remote and run.agent == agent and (run.claimed or 0) >= since
            for run in self.runs.values()
        )

    def braked(self, run: Run) -> bool:
        """Whether it must not stand open for a claim."""
        return run.held or self.paused or not self.rules.enabled

    def role(self, run: Run) -> str | None:
        """Its own role, else the default one."""
        return run.role or self.rules.default_role

    def is_ready(self, run: Run) -> bool:
        return (
            run.state == "queued"
            and not run.held
            and not run.unmet
            and (run.not_before is None or run.not_before <= self.now)
            and (run.window is None or run.window[0] <= self.now)
        )

    def lane(self, run: Run) -> tuple[object, ...]:
        """What a queued run shares with those that start and wait with it."""
        projects, trackers, tags = self.lanes_by
        return (
            run.batch,
            run.wish,
            run.type,
            run.role,
            run.project if run.project in projects else None,
            run.tracker if run.tracker in trackers else None,
            tuple(sorted(tags.intersection(run.tags))),
        )
