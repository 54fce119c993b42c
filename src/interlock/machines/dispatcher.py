"""The machine of a dispatcher process.

``starting`` ends when what an earlier process left behind is adopted. ``paused`` watches its runs and starts none: an
operator asked for it, or the store cannot take a write. ``draining`` does the same on the way to ``stopped``.
"""

from __future__ import annotations

from statemachine import StateMachine
from statemachine.states import States

from interlock.domain.states import DispatcherState


class DispatcherMachine(StateMachine):
    """The life of a dispatcher."""

    s = States.from_enum(DispatcherState, initial=DispatcherState.STARTING, final=[DispatcherState.STOPPED])

    activate = s.STARTING.to(s.ACTIVE)
    pause = s.ACTIVE.to(s.PAUSED) | s.STARTING.to(s.PAUSED)
    resume = s.PAUSED.to(s.ACTIVE)
    drain = s.ACTIVE.to(s.DRAINING) | s.PAUSED.to(s.DRAINING) | s.STARTING.to(s.DRAINING)
    stop = s.STOPPED.from_(s.STARTING, s.ACTIVE, s.PAUSED, s.DRAINING)
