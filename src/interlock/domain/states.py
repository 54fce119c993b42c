"""The names of states, events and reasons. The machines in :mod:`interlock.machines` join them."""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    """Where a run is. The last four are terminal."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    CLAIMED = "claimed"
    RUNNING = "running"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


TERMINAL = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.TIMED_OUT, RunState.CANCELLED})
ACTIVE = frozenset({RunState.DISPATCHED, RunState.CLAIMED, RunState.RUNNING})
HELD_BY_AGENT = frozenset({RunState.CLAIMED, RunState.RUNNING})


class RunEvent(StrEnum):
    """What can happen to a run (DESIGN section 2). ``submit`` makes it; every other moves it."""

    SUBMIT = "submit"
    DISPATCH = "dispatch"
    REDISPATCH = "redispatch"
    WITHDRAW = "withdraw"
    CLAIM = "claim"
    ADOPT = "adopt"
    START = "start"
    RENEW = "renew"
    COMPLETE = "complete"
    CLOSE = "close"
    RETRY = "retry"
    RELEASE = "release"
    DEFER = "defer"
    BLOCK = "block"
    ANSWER = "answer"
    FAIL = "fail"
    REJECT = "reject"
    TIME_OUT = "time_out"
    CANCEL = "cancel"


class Note(StrEnum):
    """Entries of a run's event log that move nothing: kept beside the moves, in the same sequence."""

    STOP = "stop"
    HOLD = "hold"
    UNHOLD = "unhold"
    PRIORITY = "priority"
    NOTE = "note"


class AttemptState(StrEnum):
    """Where one execution is."""

    PREPARING = "preparing"
    PROMPTING = "prompting"
    LAUNCHING = "launching"
    WORKING = "working"
    ASKING = "asking"
    FINISHING = "finishing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    STALLED = "stalled"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    DEFERRED = "deferred"
    BLOCKED = "blocked"
    LAPSED = "lapsed"
    LOST = "lost"


ATTEMPT_ENDS = frozenset(
    {
        AttemptState.SUCCEEDED,
        AttemptState.FAILED,
        AttemptState.TIMED_OUT,
        AttemptState.STALLED,
        AttemptState.CANCELLED,
        AttemptState.INTERRUPTED,
        AttemptState.DEFERRED,
        AttemptState.BLOCKED,
        AttemptState.LAPSED,
        AttemptState.LOST,
    }
)


class WorkerState(StrEnum):
    """Where a pool worker is."""

    STARTING = "starting"
    IDLE = "idle"
    CLAIMING = "claiming"
    BUSY = "busy"
    BACKING_OFF = "backing_off"
    STOPPING = "stopping"
    STOPPED = "stopped"


class DispatcherState(StrEnum):
    """Where a dispatcher process is."""

    STARTING = "starting"
    ACTIVE = "active"
    PAUSED = "paused"
    DRAINING = "draining"
    STOPPED = "stopped"


class StopKind(StrEnum):
    """Why a live agent is to be stopped. Persisted before the first signal, set once per claim."""

    CANCEL = "cancel"
    TIMEOUT = "timeout"
    STALL = "stall"
    INTERRUPT = "interrupt"
    CLOSE = "close"


class Reason(StrEnum):
    """The typed reason of every terminal state and every ended attempt."""

    DONE = "done"
    EXTERNAL_COMPLETION = "external_completion"
    EXTERNAL_FAILURE = "external_failure"
    EXIT_STATUS = "exit_status"
    AGENT_FAILED = "agent_failed"
    PERMANENT_FAILURE = "permanent_failure"
    RETRIES_EXHAUSTED = "retries_exhausted"
    BAD_RESULT_FILE = "bad_result_file"
    TIMEOUT = "timeout"
    DEADLINE = "deadline"
    STALLED = "stalled"
    OPERATOR = "operator"
    NEED_FAILED = "need_failed"
    NEED_SKIPPED = "need_skipped"
    OFFERS_EXHAUSTED = "offers_exhausted"
    LOST_TOO_OFTEN = "lost_too_often"
    DEFERRED_TOO_OFTEN = "deferred_too_often"
    LEASE_LAPSED = "lease_lapsed"
    PROCESS_LOST = "process_lost"
    GIVEN_BACK = "given_back"
    AGENT_UNAVAILABLE = "agent_unavailable"
    NOT_PREPARED = "not_prepared"
    NOT_STARTED = "not_started"
    NO_FITTING_AGENT = "no_fitting_agent"
    PAUSED = "paused"
    DRAINING = "draining"
    INTERRUPTED = "interrupted"
    DEFERRED = "deferred"
    HELP_NEEDED = "help_needed"
    ANSWERED = "answered"
