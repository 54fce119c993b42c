"""Runs, attempts, events, routes, instances: the values that are persisted and shown."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from interlock.domain.states import ACTIVE, HELD_BY_AGENT, TERMINAL, AttemptState, RunState, StopKind
from interlock.domain.task import Task


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """A persisted intent to stop the live agent of a run; set once per claim.

    ``then`` is a cancel or close that was asked for later, behind an intent after which the run would go on.
    """

    kind: StopKind
    reason: str
    message: str
    by: str
    at_ms: int
    then: Stop | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One task on its way from ``queued`` to a terminal state.

    All ``*_ms`` fields are Unix milliseconds. ``ready`` and ``due_ms`` are derived from the others
    (:mod:`interlock.decide.readiness`) and stored, because the queue and the reaper's heap are indexes on them.
    ``priority`` is the task's (or the operator's) plus the route's. ``spent_ms`` is what a deadline has counted so far: the
    time under claims, and as an offer once there was a claim; ``claimed_ms`` is since when it counts (of a live claim: when
    that was made). ``misfires``: starts in a row that came to nothing. ``not_before_why`` is None where the time was
    asked for, else the reason of a backoff.
    """

    number: int
    id: str
    state: RunState
    task: Task
    content_hash: str
    batch: str | None = None
    task_key: str | None = None
    unique_key: str | None = None
    retry_of: int | None = None
    base_priority: int = 0
    priority: int = 0
    score: float = 1.0
    lane: int = 0
    ready: bool = False
    held: bool = False
    needs_left: int = 0
    not_before_ms: int | None = None
    not_before_why: str | None = None
    due_ms: int | None = None
    # the offer and the claim
    pull: bool = False
    agent: str | None = None
    fence: int = 0
    holder: str | None = None
    remote: bool = False
    lease_expires_ms: int | None = None
    owner: str | None = None
    owner_epoch: int = 0
    offered_ms: int | None = None
    claimed_ms: int | None = None
    first_claimed_ms: int | None = None
    timeout_at_ms: int | None = None
    spent_ms: int = 0
    stop: Stop | None = None
    # budgets
    dispatch_count: int = 0
    failures: int = 0
    losts: int = 0
    defers: int = 0
    offers: int = 0
    releases: int = 0
    misfires: int = 0
    # the story so far
    question: str | None = None
    answer: str | None = None
    reason: str | None = None
    message: str | None = None
    result: Any = None
    created_ms: int = 0
    updated_ms: int = 0
    ended_ms: int | None = None

    @property
    def terminal(self) -> bool:
        """Whether nothing can happen to it any more."""
        return self.state in TERMINAL

    @property
    def active(self) -> bool:
        """Whether it holds slots."""
        return self.state in ACTIVE

    @property
    def held_by_agent(self) -> bool:
        """Whether a claim on it is live."""
        return self.state in HELD_BY_AGENT

    @property
    def role(self) -> str | None:
        """The task's role."""
        return self.task.role


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The right to move a run. Every write by its holder carries number, holder and fence."""

    run: int
    run_id: str
    holder: str
    fence: int
    lease_expires_ms: int


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an attempt used so far, as absolutes (a repeated report changes nothing)."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A process that can be told from a later one with the same pid."""

    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of a run under one claim; ``fence`` is its number.

    ``ending_event`` is the kind of outcome that ended it: the same ending call again is answered with the run as it is.
    """

    run: int
    fence: int
    state: AttemptState
    holder: str
    agent: str | None = None
    owner: str | None = None
    remote: bool = False
    request_id: str | None = None
    claimed_ms: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    reason: str | None = None
    message: str | None = None
    exit_status: int | None = None
    process: ProcessIdentity | None = None
    usage: Usage | None = None
    result: Any = None
    ending_event: str | None = None
    folder: str | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the append-only log. ``seq`` is global and only grows. ``event`` is a RunEvent or a Note."""

    seq: int
    run: int
    event: str
    from_state: str | None
    to_state: str | None
    at_ms: int
    by: str
    fence: int | None = None
    reason: str | None = None
    message: str | None = None
    data: dict[str, Any] | None = None


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``workflow_agent_routing`` (first seed): workflow type -> agent. ``priority`` is added to the task's."""

    workflow_type: str
    agent_id: str
    priority: int = 0
    max_concurrent: int | None = 1
    timeout_minutes: int | None = 60
    stall_minutes: int | None = None
    created_at: int = 0


class Brake(StrEnum):
    """What holds back the dispatching of one process as a whole."""

    MEMORY = "memory"
    STORE = "store"

    def note(self, words: str) -> str:
        """The note of an instance that is held back by this."""
        return f"{self}: {words}"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A dispatcher process. ``id`` is stable for host and data folder (and ordinal); its lock file is held while it lives.

    ``total``: how many runs it lets be active at once, all together (``interlock run --concurrency`` is its own).
    ``note``: what holds its dispatching back, as :meth:`Brake.note` writes it; None: nothing does.
    """

    id: str
    host: str
    pid: int
    boot_id: str
    ordinal: int
    state: str
    scope: str | None = None
    wanted: str | None = None
    total: int | None = None
    started_ms: int = 0
    version: str = ""
    note: str | None = None

    @property
    def brake(self) -> Brake | None:
        """What holds its dispatching back."""
        if self.note is None:
            return None
        kind = self.note.partition(":")[0]
        return Brake(kind) if kind in tuple(Brake) else Brake.STORE


class AgentHealth(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that could not be started: why, and when it is tried again."""

    agent: str
    reason: str
    since_ms: int
    retry_ms: int
    tries: int


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """The queued runs that share the values of every limited dimension, and the one of them that goes first."""

    id: int
    key: str
    head_number: int
    head_priority: int
    head_score: float
