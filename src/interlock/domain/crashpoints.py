"""Named points at which tests let this process die, or stand still. No-ops in production."""

from __future__ import annotations

import os
import signal
import threading

_KILL = os.environ.get("INTERLOCK_CRASH_AT", "")
_STOP = os.environ.get("INTERLOCK_STOP_AT", "")
_passes: dict[str, int] = {}


def crashpoint(name: str) -> None:
    """Kill or stop this process here, if the environment that it was started with asks for that.

    INTERLOCK_CRASH_AT: ``name``, ``name:N`` (from its N-th pass on) or ``name:N+US`` (so many microseconds later, while
    the process goes on: into the middle of what follows), comma-separated. INTERLOCK_STOP_AT, of the same form: SIGSTOP
    instead of SIGKILL, at exactly that pass.
    """
    if not _KILL and not _STOP:
        return
    passes = _passes[name] = _passes.get(name, 0) + 1
    for wanted, number in ((_KILL, signal.SIGKILL), (_STOP, signal.SIGSTOP)):
        for entry in wanted.split(","):
            point, _, rest = entry.partition(":")
            count, _, delay_us = rest.partition("+")
            asked = int(count or 1)
            if point == name and (passes == asked or (passes > asked and number is signal.SIGKILL)):
                _signal(number, int(delay_us or 0))


def _signal(number: signal.Signals, delay_us: int) -> None:
    if not delay_us:
        os.kill(os.getpid(), number)
        return

    later = threading.Timer(delay_us / 1_000_000, os.kill, (os.getpid(), number))
    later.daemon = True
    later.start()
