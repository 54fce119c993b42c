"""The real command line in a process that a test can tell what the system would.

CRASH_NO_CGROUPS=1: hold trees by the other means. CRASH_CLOCK=FILE: the wall clock is off by as many milliseconds as the
file says, if it is there; it can be set while the process runs, as an operator sets the system's. Otherwise it is ``interlock``
with the same arguments.
"""

from __future__ import annotations

import os
from functools import partial

import interlock.app
from interlock.runtimes import CommandRuntime
from interlock.store.clock import SystemClock


def set_wall_clock_by(file: str) -> None:
    """From now on, in this process, wall time is what the system says plus what ``file`` says."""
    of_the_system = SystemClock._wall_ns

    def wall_ns() -> int:
        try:
            with open(file) as offset:
                return of_the_system() + int(offset.read()) * 1_000_000
        except FileNotFoundError:
            return of_the_system()

    SystemClock._wall_ns = staticmethod(wall_ns)  # type: ignore[method-assign]


def main() -> None:
    """The command line."""
    if os.environ.get("CRASH_CLOCK"):
        set_wall_clock_by(os.environ["CRASH_CLOCK"])
    if os.environ.get("CRASH_NO_CGROUPS"):
        interlock.app.CommandRuntime = partial(CommandRuntime, cgroups=False)  # type: ignore[misc,assignment]
    interlock.app.main()


if __name__ == "__main__":
    main()
