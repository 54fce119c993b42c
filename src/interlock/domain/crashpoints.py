"""Named points at which tests let this process die. No-ops in production."""

from __future__ import annotations

import os
import signal

_passes: dict[str, int] = {}


def crashpoint(name: str) -> None:
    """Kill this process here if INTERLOCK_CRASH_AT (``name`` or ``name:N``, comma-separated) asks for the N-th pass."""
    wanted = os.environ.get("INTERLOCK_CRASH_AT")
    if not wanted:
        return
    _passes[name] = _passes.get(name, 0) + 1
    for entry in wanted.split(","):
        point, _, count = entry.partition(":")
        if point == name and _passes[name] >= int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)
