"""Who comes for offers: an agent from outside, and what it takes."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from interlock.domain.run import Run


class Puller(msgspec.Struct, frozen=True, kw_only=True):
    """An agent from outside that asks for offers.

    ``holder``: its session, the name that its claims are under. ``agent``: which agent it is; None: any offer that is open to
    all. ``types``: workflow types that it takes (``*`` stands for anything), all when empty. ``role``: the role that it takes,
    all when None. A run that says nothing of type or role is for everybody.
    """

    holder: str
    agent: str | None = None
    types: tuple[str, ...] = ()
    role: str | None = None

    def takes(self, run: Run) -> bool:
        """Whether an offer of ``run`` is one for it."""
        task = run.task
        return (
            (self.agent is None or run.agent is None or run.agent == self.agent)
            and (self.role is None or task.role is None or task.role == self.role)
            and (not self.types or task.type is None or any(fnmatchcase(task.type, pattern) for pattern in self.types))
        )
