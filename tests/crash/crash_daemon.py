"""The real command line in a process that can be told to stand still.

CRASH_STOP_AT=POINT: SIGSTOP instead of a kill, the first time that this crash point is passed. CRASH_NO_CGROUPS=1: hold
trees by the other means. Otherwise it is ``interlock`` with the same arguments.
"""

from __future__ import annotations

import os
import signal
from functools import partial

import interlock.actors.run
import interlock.app
import interlock.runtimes.command
from interlock.domain.crashpoints import crashpoint
from interlock.runtimes import CommandRuntime

passed: set[str] = set()


def stand_still(name: str) -> None:
    """The crash point, and a halt where one was asked for."""
    crashpoint(name)
    if name == os.environ.get("CRASH_STOP_AT") and name not in passed:
        passed.add(name)
        os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    if os.environ.get("CRASH_STOP_AT"):
        interlock.actors.run.crashpoint = stand_still
        interlock.runtimes.command.crashpoint = stand_still
    if os.environ.get("CRASH_NO_CGROUPS"):
        interlock.app.CommandRuntime = partial(CommandRuntime, cgroups=False)  # type: ignore[misc,assignment]
    interlock.app.main()
