"""A dispatcher may be paused, drained or stopped at any time; a drain is not taken back."""

from __future__ import annotations

from interlock.domain.states import DispatcherState
from interlock.machines.table import DISPATCHER

D = DispatcherState


def test_the_moves() -> None:
    assert DISPATCHER.moves == {
        (D.STARTING, "activate"): D.ACTIVE,
        (D.STARTING, "pause"): D.PAUSED,
        (D.STARTING, "drain"): D.DRAINING,
        (D.STARTING, "stop"): D.STOPPED,
        (D.ACTIVE, "pause"): D.PAUSED,
        (D.ACTIVE, "drain"): D.DRAINING,
        (D.ACTIVE, "stop"): D.STOPPED,
        (D.PAUSED, "resume"): D.ACTIVE,
        (D.PAUSED, "drain"): D.DRAINING,
        (D.PAUSED, "stop"): D.STOPPED,
        (D.DRAINING, "stop"): D.STOPPED,
    }


def test_where_it_starts_and_ends() -> None:
    assert DISPATCHER.initial is D.STARTING
    assert DISPATCHER.final == {D.STOPPED}
