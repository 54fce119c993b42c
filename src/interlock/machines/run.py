"""The machine of a run. The one place where its moves are written.

Theory of operation
-------------------
A run waits in ``queued``. The system takes slots for it and offers it (``dispatched``); an agent claims the
offer (``claimed``), is confirmed to be working (``running``), and ends it. A claim is the right to move the run: it
carries a fence that grows with every claim, so that whoever comes late with an older one changes nothing.

Four rules explain the rest of the shape:

* Slots are held in ``dispatched``, ``claimed`` and ``running`` and nowhere else. :mod:`interlock.machines.rules` says for
  every event whether it takes, keeps or frees them; the service does just that, in the transaction of the move.
* A run leaves ``claimed`` and ``running`` only when its agent is known to be gone, or, for a remote agent, when
  its right has lapsed. Stopping is therefore an intent first and a move later.
* ``retry``, ``defer``, ``withdraw`` go back to ``queued`` and free the slots; ``release`` goes back to ``dispatched``
  and keeps them: the next agent takes over at once.
* Terminal is final. Trying again makes a new run.

``StateMachine`` rather than ``StateChart``: an illegal event raises and leaves the state as it was. Machines have no
guards and no side effects; what an event needs beyond its state is decided by the caller and checked in the
transaction. In the hot path the table compiled from this class decides (:mod:`interlock.machines.table`).
"""

from __future__ import annotations

from statemachine import StateMachine
from statemachine.states import States

from interlock.domain.states import TERMINAL, RunState


class RunMachine(StateMachine):
    """The life of a run."""

    s = States.from_enum(RunState, initial=RunState.QUEUED, final=TERMINAL)

    dispatch = s.QUEUED.to(s.DISPATCHED)
    redispatch = s.DISPATCHED.to.itself()
    withdraw = s.DISPATCHED.to(s.QUEUED) | s.CLAIMED.to(s.QUEUED) | s.RUNNING.to(s.QUEUED)
    claim = s.DISPATCHED.to(s.CLAIMED)
    adopt = s.CLAIMED.to.itself() | s.RUNNING.to.itself()
    start = s.CLAIMED.to(s.RUNNING)
    renew = s.CLAIMED.to.itself() | s.RUNNING.to.itself()
    complete = s.CLAIMED.to(s.COMPLETED) | s.RUNNING.to(s.COMPLETED)
    close = (
        s.QUEUED.to(s.COMPLETED)
        | s.DISPATCHED.to(s.COMPLETED)
        | s.CLAIMED.to(s.COMPLETED)
        | s.RUNNING.to(s.COMPLETED)
        | s.BLOCKED.to(s.COMPLETED)
    )
    retry = s.CLAIMED.to(s.QUEUED) | s.RUNNING.to(s.QUEUED)
    release = s.CLAIMED.to(s.DISPATCHED) | s.RUNNING.to(s.DISPATCHED)
    defer = s.CLAIMED.to(s.QUEUED) | s.RUNNING.to(s.QUEUED)
    block = s.CLAIMED.to(s.BLOCKED) | s.RUNNING.to(s.BLOCKED)
    answer = s.BLOCKED.to(s.QUEUED)
    fail = s.CLAIMED.to(s.FAILED) | s.RUNNING.to(s.FAILED)
    reject = s.QUEUED.to(s.FAILED) | s.DISPATCHED.to(s.FAILED) | s.BLOCKED.to(s.FAILED)
    time_out = s.DISPATCHED.to(s.TIMED_OUT) | s.CLAIMED.to(s.TIMED_OUT) | s.RUNNING.to(s.TIMED_OUT)
    cancel = (
        s.QUEUED.to(s.CANCELLED)
        | s.DISPATCHED.to(s.CANCELLED)
        | s.CLAIMED.to(s.CANCELLED)
        | s.RUNNING.to(s.CANCELLED)
        | s.BLOCKED.to(s.CANCELLED)
    )
