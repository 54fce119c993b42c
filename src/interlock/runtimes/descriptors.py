"""Room for many agents at once. Each costs the keeper one descriptor (its lock), and a few while it starts; one that was
taken over from an earlier dispatcher, or whose keeper is gone, costs this process one (its pidfd).
"""

from __future__ import annotations

import resource


def raise_fd_limit() -> int | None:
    """Raise this process's soft limit of open files to its hard limit.

    Returns the soft limit as it was, for :class:`interlock.runtimes.command.CommandRuntime` to give back to its agents
    (a program that uses select() breaks under a high one); None when it was high enough already, or cannot be raised.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (hard, resource.RLIM_INFINITY):
        return None
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return None
    return soft
