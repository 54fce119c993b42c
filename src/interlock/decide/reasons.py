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
    ORPHANED = "orphaned"
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
    """One reason, and what would change it."""

    kind: WaitKind
    message: str
    remedy: str = ""
    details: dict[str, Any] = {}
