"""An attempt goes forward step by step, waits in between for a permission, and can end from anywhere before its end."""

from __future__ import annotations

from interlock.domain.states import ATTEMPT_ENDS, AttemptState
from interlock.machines.table import ATTEMPT

A = AttemptState
FORWARD = {
    (A.PREPARING, "prompt"): A.PROMPTING,
    (A.PROMPTING, "launch"): A.LAUNCHING,
    (A.LAUNCHING, "work"): A.WORKING,
}
BY_A_FIRST_HEARTBEAT = {(A.PREPARING, "work"): A.WORKING, (A.PROMPTING, "work"): A.WORKING}
PERMISSION = {(A.WORKING, "ask"): A.ASKING, (A.ASKING, "resume"): A.WORKING}
ENDS = {
    "succeed": A.SUCCEEDED,
    "fail": A.FAILED,
    "time_out": A.TIMED_OUT,
    "stall": A.STALLED,
    "cancel": A.CANCELLED,
    "interrupt": A.INTERRUPTED,
    "defer": A.DEFERRED,
    "block": A.BLOCKED,
    "lapse": A.LAPSED,
    "lose": A.LOST,
}
BEFORE_ITS_END = [state for state in A if state not in ATTEMPT_ENDS]


def test_the_moves() -> None:
    finish = {(state, "finish"): A.FINISHING for state in BEFORE_ITS_END if state is not A.FINISHING}
    ends = {(state, event): end for state in BEFORE_ITS_END for event, end in ENDS.items()}
    assert set(ENDS.values()) == ATTEMPT_ENDS
    assert FORWARD | BY_A_FIRST_HEARTBEAT | PERMISSION | finish | ends == ATTEMPT.moves


def test_where_it_starts_and_ends() -> None:
    assert ATTEMPT.initial is A.PREPARING
    assert ATTEMPT.final == ATTEMPT_ENDS
