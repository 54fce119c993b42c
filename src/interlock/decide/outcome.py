"""What the end of an attempt means. The first that applies: a stop intent, the agent's own word, its exit status, lost."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from interlock.domain.run import Stop, Usage
from interlock.domain.states import Reason, StopKind

EXIT_DEFERRED = 75
"""Exit status by which a command asks for a later time (EX_TEMPFAIL of sysexits.h)."""
MESSAGE_LIMIT = 4000
"""Messages are cut to this many characters."""


class OutcomeKind(StrEnum):
    """How an attempt ended, before budgets are looked at."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    STALLED = "stalled"
    CANCELLED = "cancelled"
    CLOSED = "closed"
    INTERRUPTED = "interrupted"
    DEFERRED = "deferred"
    BLOCKED = "blocked"
    LOST = "lost"
    LAPSED = "lapsed"
    RETURNED = "returned"
    CANNOT_START = "cannot_start"


class ResultFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What an agent may write into INTERLOCK_RESULT_FILE (JSON). Unknown keys are ignored: agents are chatty."""

    outcome: OutcomeKind | None = None
    message: str | None = None
    result: Any = None
    permanent: bool = False
    usage: Usage | None = None
    defer_seconds: float | None = None
    question: str | None = None


AGENT_MAY_SAY = frozenset({OutcomeKind.COMPLETED, OutcomeKind.FAILED, OutcomeKind.DEFERRED, OutcomeKind.BLOCKED})


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an attempt, decided. ``delay_ms``: a deferring agent's own wish."""

    kind: OutcomeKind
    reason: Reason
    message: str
    permanent: bool = False
    result: Any = None
    exit_status: int | None = None
    delay_ms: int | None = None
    question: str | None = None
    usage: Usage | None = None


STOPPED = {
    StopKind.CANCEL: (OutcomeKind.CANCELLED, Reason.OPERATOR),
    StopKind.TIMEOUT: (OutcomeKind.TIMED_OUT, Reason.TIMEOUT),
    StopKind.STALL: (OutcomeKind.STALLED, Reason.STALLED),
    StopKind.INTERRUPT: (OutcomeKind.INTERRUPTED, Reason.INTERRUPTED),
    StopKind.CLOSE: (OutcomeKind.CLOSED, Reason.EXTERNAL_COMPLETION),
}


def read_result(data: bytes) -> ResultFile:
    """Parse a result file. Raises ``ValueError`` with a sentence that says what is wrong with it."""
    try:
        parsed = msgspec.json.decode(data, type=ResultFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the result file is not as it should be: {error}") from error
    if parsed.outcome is not None and parsed.outcome not in AGENT_MAY_SAY:
        allowed = ", ".join(sorted(AGENT_MAY_SAY))
        raise ValueError(f"the result file says outcome '{parsed.outcome}'; an agent may say: {allowed}")
    if parsed.outcome is OutcomeKind.BLOCKED and not (parsed.question or parsed.message or "").strip():
        raise ValueError("the result file says 'blocked' without a question")
    if parsed.defer_seconds is not None and not 0 <= parsed.defer_seconds <= 366 * 86400:
        raise ValueError("deferSeconds in the result file must lie between 0 and a year")
    return parsed


def exit_sentence(status: int) -> str:
    """An exit status in words."""
    if status > 128:
        return f"ended by signal {status - 128}"
    if status == 127:
        return "exited with status 127 (command not found?)"
    if status == 126:
        return "exited with status 126 (not executable?)"
    return f"exited with status {status}"


def decide(
    *,
    stop: Stop | None,
    exit_status: int | None,
    result: ResultFile | None,
    result_fault: str | None,
    tail: str,
) -> Outcome:
    """The outcome of a local attempt whose whole tree is gone.

    ``exit_status`` None: gone without one. ``result_fault``: why a result file that is there could not be read.
    ``tail``: last line of the output, to make a failure's message say something.
    """
    usage = result.usage if result is not None else None
    value = result.result if result is not None else None
    if stop is not None:
        kind, reason = STOPPED[stop.kind]
        if stop.kind is StopKind.TIMEOUT and stop.reason == Reason.DEADLINE:
            reason = Reason.DEADLINE
        return Outcome(
            kind=kind, reason=reason, message=stop.message, exit_status=exit_status, usage=usage, result=value
        )
    if result_fault is not None:
        return Outcome(
            kind=OutcomeKind.FAILED,
            reason=Reason.BAD_RESULT_FILE,
            message=result_fault,
            exit_status=exit_status,
        )
    if result is not None and result.outcome is not None:
        return _own_word(result, exit_status)
    if exit_status is None:
        return Outcome(
            kind=OutcomeKind.LOST,
            reason=Reason.PROCESS_LOST,
            message="the process is gone and left neither exit status nor result",
            usage=usage,
        )
    said = (result.message or "").strip() if result is not None else ""
    tail = tail.strip()
    if exit_status == 0:
        return Outcome(
            kind=OutcomeKind.COMPLETED,
            reason=Reason.DONE,
            message=cut(said or tail or "done"),
            exit_status=0,
            result=value,
            usage=usage,
        )
    if exit_status == EXIT_DEFERRED:
        delay = None if result is None or result.defer_seconds is None else int(result.defer_seconds * 1000)
        return Outcome(
            kind=OutcomeKind.DEFERRED,
            reason=Reason.DEFERRED,
            message=cut(said or tail or "asked for a later time (exit status 75)"),
            exit_status=exit_status,
            delay_ms=delay,
            usage=usage,
        )
    sentence = exit_sentence(exit_status)
    words = said or tail
    return Outcome(
        kind=OutcomeKind.FAILED,
        reason=Reason.EXIT_STATUS,
        message=cut(f"{sentence}: {words}" if words else sentence),
        permanent=result is not None and result.permanent,
        exit_status=exit_status,
        result=value,
        usage=usage,
    )


def _own_word(result: ResultFile, exit_status: int | None) -> Outcome:
    kind = result.outcome
    said = (result.message or "").strip()
    if kind is OutcomeKind.COMPLETED:
        reason, fallback = Reason.DONE, "done"
    elif kind is OutcomeKind.DEFERRED:
        reason, fallback = Reason.DEFERRED, "asked for a later time"
    elif kind is OutcomeKind.BLOCKED:
        reason, fallback = Reason.HELP_NEEDED, (result.question or "needs help")
    else:
        reason, fallback = Reason.AGENT_FAILED, "the agent reported a failure without saying more"
        if result.permanent:
            reason = Reason.PERMANENT_FAILURE
    assert kind is not None
    return Outcome(
        kind=kind,
        reason=reason,
        message=cut(said or fallback),
        permanent=result.permanent,
        result=result.result,
        exit_status=exit_status,
        delay_ms=None if result.defer_seconds is None else int(result.defer_seconds * 1000),
        question=cut(result.question or said) if kind is OutcomeKind.BLOCKED else None,
        usage=result.usage,
    )


def cut(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """``text`` without surrounding space, its middle left out when longer than ``limit``."""
    text = text.strip()
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]} [...] {text[-(limit - head) :]}"
