"""The machine of a pool worker: an agent that is started without a run and claims work for itself.

``starting`` until it first asks for work; then it goes round ``idle -> claiming -> busy``. A worker that ends or crashes goes
to ``backing_off`` and is started again from there; ``stopping`` is on the way out: idle too long, drain, or the pool is smaller
now.
"""

from __future__ import annotations

from statemachine import StateMachine
from statemachine.states import States

from interlock.domain.states import WorkerState


class WorkerMachine(StateMachine):
    """The life of a pool worker."""

    s = States.from_enum(WorkerState, initial=WorkerState.STARTING, final=[WorkerState.STOPPED])

    ready = s.STARTING.to(s.IDLE)
    ask = s.IDLE.to(s.CLAIMING)
    nothing = s.CLAIMING.to(s.IDLE)
    take = s.CLAIMING.to(s.BUSY)
    done = s.BUSY.to(s.IDLE)
    crash = s.BACKING_OFF.from_(s.STARTING, s.IDLE, s.CLAIMING, s.BUSY)
    respawn = s.BACKING_OFF.to(s.STARTING)
    stop = s.STOPPING.from_(s.STARTING, s.IDLE, s.CLAIMING, s.BUSY)
    gone = s.STOPPED.from_(s.STOPPING, s.BACKING_OFF)
