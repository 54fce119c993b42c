"""What runs do, written a second time from DESIGN section 2 with plain values. Imports nothing of the code under test."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

HELD = ("claimed", "running")
ACTIVE = ("dispatched", *HELD)
ENDED = ("completed", "failed", "timed_out", "cancelled")

MINUTE = 60_000
GRACE = 5_000
STOP_MEANS = {
    "cancel": "cancelled",
    "timeout": "timed_out",
    "stall": "stalled",
    "interrupt": "interrupted",
    "close": "closed",
}


@dataclass
class Attempt:
    """One execution; ``asked`` is how it was ended, None while it lives."""

    holder: str
    request: str | None
    asked: str | None = None


@dataclass
class Run:
    """A run as the design sees it."""

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
    """Where ``not_before`` lies, when chance decides it; the first look at the row makes it exact."""
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
    """A cancel or close that came behind another intent."""
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
        return self.state in HELD

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def unmet(self) -> int:
        return sum(not met for met in self.needs.values())


@dataclass(frozen=True)
class Route:
    agent: str
    priority: int
    cap: int | None
    minutes: int | None


@dataclass(frozen=True)
class Rules:
    """The configuration."""

    pull: bool = False
    total: int = 2
    projects: tuple[tuple[str, int], ...] = ()
    trackers: tuple[tuple[str, int], ...] = ()
    roles: tuple[tuple[str, int], ...] = ()
    tags: tuple[tuple[str, int], ...] = ()
    agents: tuple[tuple[str, int], ...] = ()
    default_agent: str | None = "a1"
    deadline: int | None = None
    retry_on_timeout: bool = False
    need_failed: str = "fail"
    never_claimed: str = "withdraw"
    max_retries: int = 1
    max_losts: int = 1
    max_defers: int = 1
    max_offers: int = 1
    timeout: int = 30 * MINUTE
    local_lease: int = 5 * MINUTE
    remote_lease: int = 10 * MINUTE
    claim_timeout: int = 5 * MINUTE

    @property
    def speaks_of(self) -> tuple[frozenset[str], ...]:
        """The values that limits name."""
        return tuple(frozenset(name for name, _ in pairs) for pairs in (self.projects, self.trackers, self.tags))


AGENTS = {"a1": 2, "a2": None}
"""The defined agents, and the limit that each brings."""
AGENT_TIMEOUTS = {"a1": None, "a2": 20 * MINUTE}
ROLE_AGENTS = {"r1": "a2"}


class World:
    """All runs, and everything that decides about them."""

    def __init__(self, rules: Rules, now: int) -> None:
        self.rules = rules
        self.lanes_by = rules.speaks_of
        self.now = now
        self.runs: dict[int, Run] = {}
        self.routes: dict[str, Route] = {}
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
        return ROLE_AGENTS.get(run.role or "") or self.rules.default_agent

    def keys(self, run: Run, agent: str | None) -> frozenset[str]:
        found = {"global", *(f"tag:{tag}" for tag in run.tags)}
        named = {"project": run.project, "tracker": run.tracker, "role": run.role, "route": run.type, "agent": agent}
        found |= {f"{noun}:{name}" for noun, name in named.items() if name is not None}
        return frozenset(found)

    def caps(self) -> dict[str, int]:
        rules = self.rules
        caps = {"global": rules.total}
        for noun, pairs in (
            ("project", rules.projects),
            ("tracker", rules.trackers),
            ("role", rules.roles),
            ("tag", rules.tags),
        ):
            caps |= {f"{noun}:{name}": cap for name, cap in pairs}
        caps |= {f"agent:{name}": cap for name, cap in AGENTS.items() if cap is not None}
        for name, cap in rules.agents:
            caps[f"agent:{name}"] = min(cap, caps.get(f"agent:{name}", cap))
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
        if not self.rules.pull and (agent not in AGENTS or self.closed(agent)):
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

    # moves

    def _leave_claim(self, run: Run) -> None:
        self._count(run)
        run.claimed = None
        if run.live:
            run.holder = run.owner = run.lease = run.stop = run.then = None
            run.remote = False

    def _count(self, run: Run) -> None:
        """The time of claims, and that of offers after the first one, is spent."""
        if run.claimed is not None:
            run.spent += self.now - run.claimed
            run.claimed = self.now

    def _give_back(self, run: Run) -> None:
        self._leave_claim(run)
        run.slots = frozenset()
        run.pull, run.offered, run.timeout_at = False, None, None

    def enqueue(self, run: Run, *, wait: tuple[int, int] | None = None) -> None:
        self._give_back(run)
        run.state = "queued"
        self._set_wait(run, wait)

    def _set_wait(self, run: Run, wait: tuple[int, int] | None) -> None:
        run.not_before, run.backoff, run.window = None, wait is not None, None
        if wait is not None:
            run.window = (self.now + wait[0], self.now + wait[1])

    def finish(self, run: Run, state: str) -> None:
        self._give_back(run)
        run.state = state
        run.not_before, run.backoff, run.window = None, False, None
        for other in list(self.runs.values()):
            if other.needs.get(run.number) is False and not other.ended:
                self.need_ended(other, run)

    def need_ended(self, run: Run, need: Run) -> None:
        if need.state == "completed" or self.rules.need_failed == "run":
            run.needs[need.number] = True
        else:
            self.finish(run, "cancelled" if self.rules.need_failed == "skip" else "failed")

    def submit(self, run: Run) -> None:
        self.runs[run.number] = run
        for number in run.needs:
            if self.runs[number].ended and not run.ended:
                self.need_ended(run, self.runs[number])

    def admit(self, run: Run) -> None:
        agent = self.agent_for(run)
        run.state, run.agent, run.slots = "dispatched", agent, self.keys(run, agent)
        run.dispatches += 1
        run.offers = run.releases = 0
        self._set_wait(run, None)
        if self.rules.pull:
            run.pull, run.offered = True, self.now
            run.claimed = None if run.first_claimed is None else self.now
            if self.rules.deadline is not None and run.first_claimed is not None:
                run.timeout_at = self.now + max(0, self.rules.deadline - run.spent)

    def claim(
        self, run: Run, holder: str, agent: str | None, owner: str | None, request: str | None, lease: int
    ) -> None:
        run.fence += 1
        run.state, run.holder, run.agent = "claimed", holder, agent
        run.remote, run.owner = owner is None, owner
        run.epoch += owner is not None
        run.pull, run.offered, run.offers = False, None, 0
        self._set_wait(run, None)
        self._count(run)
        run.lease, run.claimed = self.now + lease, self.now
        run.first_claimed = self.now if run.first_claimed is None else run.first_claimed
        ends = [self.now + self.timeout(run, agent)]
        if self.rules.deadline is not None:
            ends.append(self.now + max(0, self.rules.deadline - run.spent))
        run.timeout_at = min(ends)
        run.attempts[run.fence] = Attempt(holder, request)

    def timeout(self, run: Run, agent: str | None) -> int:
        route = self.routes.get(run.type or "")
        if run.timeout is not None:
            return run.timeout
        if route is not None and route.minutes is not None:
            return route.minutes * MINUTE
        return AGENT_TIMEOUTS.get(agent or "") or self.rules.timeout

    def dispatch(self, ready: list[int], *, owner: str, scope: str | None, bound: int) -> tuple[list[int], bool]:
        """The runs that are claimed or offered, in order, and whether the bound was reached. ``ready``: as woken so far."""
        if self.paused:
            return [], False
        candidates = set(ready)
        if not self.rules.pull:
            for run in self.runs.values():
                if run.state == "dispatched" and run.pull and scope in (None, run.batch):
                    self.enqueue(run)
                    if self.is_ready(run):
                        candidates.add(run.number)
        taken: list[int] = []
        for run in sorted(self.runs.values(), key=lambda run: run.number):
            if len(taken) == bound:
                return taken, True
            if run.state != "dispatched" or run.pull or scope not in (None, run.batch):
                continue
            if run.not_before is not None and run.not_before > self.now:
                continue
            if run.agent not in AGENTS or self.unavailable.get(run.agent or "", 0) > self.now:
                self.enqueue(run)
                if self.is_ready(run):
                    candidates.add(run.number)
            elif not self.closed(run.agent):
                self.claim_local(run, owner)
                taken.append(run.number)
        while len(taken) < bound:
            possible = [
                run
                for run in map(self.runs.__getitem__, candidates)
                if run.state == "queued" and scope in (None, run.batch) and self.startable(run)
            ]
            if not possible:
                return taken, False
            run = min(possible, key=lambda run: (-self.priority(run), run.number))
            self.admit(run)
            if not self.rules.pull:
                self.claim_local(run, owner)
            taken.append(run.number)
        return taken, True

    def claim_local(self, run: Run, owner: str) -> None:
        assert run.agent is not None
        holder = f"{run.agent}/{run.number}.{run.fence + 1}"
        self.claim(run, holder, run.agent, owner, None, self.rules.local_lease)

    def end_attempt(
        self, run: Run, asked: str, *, permanent: bool = False, delay: int | None = None, deadline: bool = False
    ) -> None:
        """The live attempt ends as its holder says; while it is being stopped, as the intent says, unless it came first to its own
        end on this machine."""
        then = run.then
        self._end_attempt(run, asked, permanent=permanent, delay=delay, deadline=deadline)
        if then is not None and not run.ended:
            self.finish(run, "cancelled" if then == "cancel" else "completed")

    def _end_attempt(self, run: Run, asked: str, *, permanent: bool, delay: int | None, deadline: bool) -> None:
        kind = asked
        if run.stop is not None and (run.remote or asked != "completed"):
            kind = STOP_MEANS[run.stop[0]]
            deadline = run.stop == ("timeout", "deadline")
            permanent = False
        run.attempts[run.fence].asked = asked
        rules = self.rules
        if kind not in ("interrupted", "cannot_start", "returned"):
            run.misfires = 0
        if kind not in ("lost", "lapsed", "returned", "cannot_start", "interrupted"):
            run.losts = 0
        if kind == "timed_out" and not (rules.retry_on_timeout and not deadline):
            self.finish(run, "timed_out")
        elif kind in ("failed", "stalled", "timed_out"):
            run.failures += 1
            if permanent or run.failures > rules.max_retries:
                self.finish(run, "failed")
            else:
                delay = min(300_000, 10_000 * 2 ** (run.failures - 1))
                self.enqueue(run, wait=(delay // 2, delay))
        elif kind in ("completed", "closed"):
            self.finish(run, "completed")
        elif kind == "cancelled":
            self.finish(run, "cancelled")
        elif kind == "blocked":
            self._give_back(run)
            run.state = "blocked"
        elif kind == "deferred":
            run.defers += 1
            if run.defers > rules.max_defers:
                self.finish(run, "failed")
            else:
                delay = 60_000 if delay is None else delay
                self.enqueue(run, wait=(delay, delay))
        elif kind in ("lost", "lapsed"):
            run.losts += 1
            if run.losts > rules.max_losts:
                self.finish(run, "failed")
            else:
                delay = 0 if run.losts == 1 else min(60_000, 1000 * 2 ** (run.losts - 2))
                self.offer_again(run, delay)
        elif kind == "returned" and run.releases == 0 and not run.held and not self.paused:
            self.offer_again(run, 0)
            run.releases = 1
        elif kind == "cannot_start":
            run.misfires += 1
            delay = min(300_000, 5000 * 2 ** (run.misfires - 1))
            self.enqueue(run, wait=(delay // 2, delay))
        else:
            self.enqueue(run)

    def offer_again(self, run: Run, delay: int) -> None:
        if run.held or self.paused:
            self.enqueue(run, wait=(delay // 2, delay) if delay else None)
            return
        remote = run.remote
        run.timeout_at = None
        self._leave_claim(run)
        run.claimed = self.now
        if self.rules.deadline is not None:
            run.timeout_at = self.now + max(0, self.rules.deadline - run.spent)
        run.state, run.offers, run.pull = "dispatched", 0, remote
        self._set_wait(run, (delay // 2, delay) if delay and not remote else None)
        if remote:
            run.offered = self.now
            if self.agent_for(run) is None and run.agent is not None:
                run.slots -= {f"agent:{run.agent}"}
                run.agent = None

    # time

    def due(self, run: Run) -> int | None:
        """When the system has to look at it next; a passed ``not_before`` is for the caller to forgive."""
        dues: list[int | None] = []
        if run.state == "queued" and not run.held and not run.unmet:
            dues = [run.not_before]
        elif run.state == "dispatched":
            dues = [run.timeout_at, run.not_before]
            if run.pull:
                assert run.offered is not None
                dues = [run.timeout_at, run.offered + self.rules.claim_timeout * 2**run.offers]
        elif run.live:
            dues = [run.timeout_at if run.stop is None else None]
            if run.remote:
                assert run.lease is not None
                dues.append(run.lease + GRACE)
        return min((due for due in dues if due is not None), default=None)

    def reap(self) -> None:
        for run in list(self.runs.values()):
            due = self.due(run)
            if due is not None and due <= self.now:
                self._reap(run)

    def _reap(self, run: Run) -> None:
        rules = self.rules
        timed_out = run.timeout_at is not None and run.timeout_at <= self.now
        if run.state == "dispatched":
            if timed_out:
                self.finish(run, "timed_out")
            elif run.pull and not self._somebody_fits(run):
                run.offered = self.now
            elif run.pull and run.offers < rules.max_offers:
                run.offers += 1
                run.dispatches += 1
                run.offered = self.now
            elif run.pull and rules.never_claimed == "fail":
                self.finish(run, "failed")
            elif run.pull:
                rounds = max(1, run.dispatches // (rules.max_offers + 1))
                wait = min(60 * MINUTE, MINUTE * 2 ** (rounds - 1))
                self.enqueue(run, wait=(wait, wait))
        elif run.live:
            if run.remote and run.lease is not None and run.lease + GRACE <= self.now:
                self.end_attempt(run, STOP_MEANS[run.stop[0]] if run.stop else "lapsed")
            elif run.stop is None and timed_out:
                spent = run.spent + self.now - (run.claimed or 0)
                late = rules.deadline is not None and spent >= rules.deadline
                run.stop = ("timeout", "deadline" if late else "timeout")

    def _somebody_fits(self, run: Run) -> bool:
        offered = run.offered or 0
        return any(
            seen >= offered + (self.now - offered) // 2
            and (run.agent is not None or agent is None or self.has_room(frozenset({f"agent:{agent}"})))
            and (agent is None or run.agent is None or agent == run.agent)
            and (not types or run.type is None or run.type in types)
            for agent, types, seen in self.pullers.values()
        )

    def catch_up(self) -> None:
        gap = 0 if self.alive is None else self.now - self.alive
        self.alive = self.now
        for run in self.runs.values():
            if run.state in ACTIVE:
                for name in ("lease", "timeout_at", "offered", "claimed"):
                    at = getattr(run, name)
                    setattr(run, name, None if at is None else at + gap)

    def newest(self, number: int) -> Run:
        """The run that stands for a task now."""
        later = [run.number for run in self.runs.values() if run.retry_of == number]
        return self.newest(max(later)) if later else self.runs[number]

    def needs_of_a_retry(self, run: Run) -> list[Run]:
        """The newest run of each need that has not completed."""
        return [need for need in map(self.newest, run.needs) if need.state != "completed"]

    def again(self, run: Run, number: int, run_id: str) -> Run:
        """The new run of an ended one; it needs the newest run of each need that is not met."""
        return Run(
            number=number,
            id=run_id,
            retry_of=run.number,
            needs={need.number: False for need in self.needs_of_a_retry(run) if not need.ended},
            **{
                name: getattr(run, name)
                for name in (
                    "project",
                    "tracker",
                    "role",
                    "type",
                    "wish",
                    "tags",
                    "batch",
                    "unique",
                    "own_priority",
                    "timeout",
                )
            },
        )


__all__ = ["ACTIVE", "AGENTS", "ENDED", "HELD", "STOP_MEANS", "Attempt", "Route", "Rules", "Run", "World", "replace"]
