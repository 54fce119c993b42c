"""The settings that decisions look at, as values. :mod:`interlock.config` reads them from interlock.yaml.

Durations are whole milliseconds and say so in their name. Defaults are those of DESIGN section 5.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

SECOND = 1000
MINUTE = 60 * SECOND
LONGEST_LEASE_MS = 24 * 60 * MINUTE
"""What an agent may ask for."""


class Mode(StrEnum):
    """Who takes the first step: the dispatcher starts an agent (push), or agents come for offers (pull)."""

    PUSH = "push"
    PULL = "pull"


class OnTimeout(StrEnum):
    """What an attempt that passes its timeout does to its run."""

    END = "end"
    RETRY = "retry"


class OnNeedFailed(StrEnum):
    """What a run does when one of its needs ends without success."""

    FAIL = "fail"
    SKIP = "skip"
    RUN = "run"


class OnNeverClaimed(StrEnum):
    """What an offer that nobody took, three times over, does to its run."""

    WITHDRAW = "withdraw"
    FAIL = "fail"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs may be active at once; the most restrictive applicable one wins."""

    total: int = 10
    per_project: dict[str, int] = {}
    per_tracker: dict[str, int] = {}
    per_role: dict[str, int] = {}
    per_tag: dict[str, int] = {}
    per_agent: dict[str, int] = {}


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How failures are tried again: ``max_retries`` retries after the first try, exponential backoff, equal jitter."""

    max_retries: int = 3
    base_delay_ms: int = 10 * SECOND
    max_delay_ms: int = 5 * MINUTE


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """What may happen to a run before it is given up, beside failures."""

    max_losts: int = 5
    max_defers: int = 20
    max_offers: int = 3
    default_defer_ms: int = 60 * SECOND


class Leases(msgspec.Struct, frozen=True, kw_only=True):
    """How long a claim lives without a heartbeat. A lapse is expiry plus grace."""

    local_ms: int = 5 * MINUTE
    remote_ms: int = 10 * MINUTE
    grace_ms: int = 5 * SECOND
    claim_timeout_ms: int = 5 * MINUTE


class RuntimeKind(StrEnum):
    """Which adapter runs an agent."""

    COMMAND = "command"
    FUNCTION = "function"


class Agent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named way to get work done. ``command``: a shell string, or an argv list."""

    name: str
    command: str | tuple[str, ...] = ()
    runtime: RuntimeKind = RuntimeKind.COMMAND
    env: dict[str, str] = {}
    cwd: str | None = None
    max_concurrent: int | None = None
    timeout_ms: int | None = None
    stall_ms: int | None = None
    grace_ms: int | None = None


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """What a role implies: which agent does its work, and a file appended to its prompts."""

    name: str
    agent: str | None = None
    prompt: str | None = None


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP interface of a daemon. ``listen``: HOST:PORT; a port of 0 is any free one. ``hosts``: further names it goes by.

    ``require_token``: on loopback as well; the socket file is for whoever may read the data folder in any case.
    """

    enabled: bool = True
    listen: str = "127.0.0.1:7420"
    hosts: tuple[str, ...] = ()
    require_token: bool = False


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All that the service, the decisions and the actors are configured by."""

    enabled: bool = True
    mode: Mode = Mode.PUSH
    limits: Limits = Limits()
    retry: Retry = Retry()
    budgets: Budgets = Budgets()
    leases: Leases = Leases()
    agents: dict[str, Agent] = {}
    roles: dict[str, Role] = {}
    templates: dict[str, dict[str, Any]] = {}
    server: Server = Server()
    default_agent: str | None = None
    default_role: str | None = None
    timeout_ms: int = 60 * MINUTE
    stall_ms: int | None = None
    deadline_ms: int | None = None
    on_timeout: OnTimeout = OnTimeout.END
    on_need_failed: OnNeedFailed = OnNeedFailed.FAIL
    on_never_claimed: OnNeverClaimed = OnNeverClaimed.WITHDRAW
    min_free_memory_bytes: int = 0
    stop_grace_ms: int = 10 * SECOND
    poll_ms: int = 15 * SECOND
