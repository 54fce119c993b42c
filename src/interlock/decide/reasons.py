"""Why a run has not started or ended, as values. ``interlock why`` prints the very ones that decisions are made of."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class WaitKind(StrEnum):
    """What a run can wait for."""

    ENDED = "ended"
    WORKING = "working"
    STOPPING = "stopping"
    NOT_SUPERVISED = "not_supervised"
    HELD = "held"
    NOT_BEFORE = "not_before"
    BACKOFF = "backoff"
    NEED = "need"
    BLOCKED = "blocked"
    LIMIT = "limit"
    NO_ROUTE = "no_route"
    AGENT_UNAVAILABLE = "agent_unavailable"
    MEMORY = "memory"
    PAUSED = "paused"
    NO_DISPATCHER = "no_dispatcher"
    OUT_OF_SCOPE = "out_of_scope"
    DISABLED = "disabled"
    STORE = "store"
    OFFERED = "offered"
    BEHIND = "behind"
    NEXT = "next"


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One reason, and what would change it.

    ``by_itself``: it is expected to end without a person; ``until_ms``: Unix milliseconds when it does, where that is known.
    ``short``: the same in the words that a count goes before (``3 need other tasks first``), alike for all that wait for
    the like. Where ``until_ms`` is given, ``in 5s`` fits behind it.
    """

    kind: WaitKind
    message: str
    short: str
    remedy: str = ""
    by_itself: bool = False
    until_ms: int | None = None
    details: dict[str, Any] = {}
