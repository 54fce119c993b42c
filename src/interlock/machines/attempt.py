"""The machine of an attempt: one execution under one claim.

A local attempt goes through ``preparing`` (folder), ``prompting`` (the prompt is put together) and ``launching`` (the
process is started) to ``working``. A remote one goes from ``preparing`` to ``working`` by its first heartbeat. ``asking``
is a permission question in mid-turn: the slot stays. ``finishing`` is the time between the agent's end and the
commit that records it, when its tree is confirmed to be gone. An attempt can end from anywhere before its end.
"""

from __future__ import annotations

from statemachine import StateMachine
from statemachine.states import States

from interlock.domain.states import ATTEMPT_ENDS, AttemptState


class AttemptMachine(StateMachine):
    """The life of one attempt."""

    s = States.from_enum(AttemptState, initial=AttemptState.PREPARING, final=ATTEMPT_ENDS)

    prompt = s.PREPARING.to(s.PROMPTING)
    launch = s.PROMPTING.to(s.LAUNCHING)
    work = s.PREPARING.to(s.WORKING) | s.PROMPTING.to(s.WORKING) | s.LAUNCHING.to(s.WORKING)
    ask = s.WORKING.to(s.ASKING)
    resume = s.ASKING.to(s.WORKING)
    finish = (
        s.PREPARING.to(s.FINISHING)
        | s.PROMPTING.to(s.FINISHING)
        | s.LAUNCHING.to(s.FINISHING)
        | s.WORKING.to(s.FINISHING)
        | s.ASKING.to(s.FINISHING)
    )
    succeed = s.SUCCEEDED.from_(s.PREPARING, s.PROMPTING, s.LAUNCHING, s.WORKING, s.ASKING, s.FINISHING)
    fail = s.FAILED.from_(s.PREPARING, s.PROMPTING, s.LAUNCHING, s.WORKING, s.ASKING, s.FINISHING)
    time_out = s.TIMED_OUT.from_(s.PREPARING, s.PROMPTING, s.LAUNCHING, s.WORKING, s.ASKING, s.FINISHING)
    stall = s.STALLED.from_(s.PREPARING, s.PROMPTING, s.LAUNCHING, s.WORKING, s.ASKING, s.FINISHING)
    cancel = s.CANCELLED.from_(s.PREPARING, s.PROMPTING, s.LAUNCHING, s.WORKING, s.ASKING, s.FINISHING)
    interrupt = s.INTERRUPTED.from_(s.PREPARING, s.PROMPTING, s.LAUNCHING, s.WORKING, s.ASKING, s.FINISHING)
    defer = s.DEFERRED.from_(s.PREPARING, s.PROMPTING, s.LAUNCHING, s.WORKING, s.ASKING, s.FINISHING)
    block = s.BLOCKED.from_(s.PREPARING, s.PROMPTING, s.LAUNCHING, s.WORKING, s.ASKING, s.FINISHING)
    lapse = s.LAPSED.from_(s.PREPARING, s.PROMPTING, s.LAUNCHING, s.WORKING, s.ASKING, s.FINISHING)
    lose = s.LOST.from_(s.PREPARING, s.PROMPTING, s.LAUNCHING, s.WORKING, s.ASKING, s.FINISHING)
