"""A pool worker goes round between idle, claiming and busy; it comes back from a crash, and is stopped from anywhere."""

from __future__ import annotations

from interlock.domain.states import WorkerState
from interlock.machines.table import WORKER

W = WorkerState
AT_WORK = [W.STARTING, W.IDLE, W.CLAIMING, W.BUSY]
ROUND = {
    (W.STARTING, "ready"): W.IDLE,
    (W.IDLE, "ask"): W.CLAIMING,
    (W.CLAIMING, "nothing"): W.IDLE,
    (W.CLAIMING, "take"): W.BUSY,
    (W.BUSY, "done"): W.IDLE,
}


def test_the_moves() -> None:
    crash = {(state, "crash"): W.BACKING_OFF for state in AT_WORK} | {(W.BACKING_OFF, "respawn"): W.STARTING}
    stop = {(state, "stop"): W.STOPPING for state in AT_WORK}
    # What waits to be started again has no process: it need not be stopped first.
    gone = {(W.STOPPING, "gone"): W.STOPPED, (W.BACKING_OFF, "gone"): W.STOPPED}
    assert ROUND | crash | stop | gone == WORKER.moves


def test_where_it_starts_and_ends() -> None:
    assert WORKER.initial is W.STARTING
    assert WORKER.final == {W.STOPPED}
