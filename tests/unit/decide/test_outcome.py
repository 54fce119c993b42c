"""What the end of an attempt means: the first that applies decides."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.decide.outcome import (
    AGENT_MAY_SAY,
    MESSAGE_LIMIT,
    Outcome,
    OutcomeKind,
    ResultFile,
    cut,
    decide,
    exit_sentence,
    read_result,
)
from interlock.domain.run import Stop, Usage
from interlock.domain.states import Reason, StopKind

OWN_WORDS = [
    ResultFile(outcome=OutcomeKind.COMPLETED, message="all done", result={"n": 1}),
    ResultFile(outcome=OutcomeKind.FAILED, message="no", permanent=True),
    ResultFile(outcome=OutcomeKind.DEFERRED, defer_seconds=2.5),
    ResultFile(outcome=OutcomeKind.BLOCKED, question="which one?"),
]


def stopped(kind: StopKind, reason: str = "r") -> Stop:
    return Stop(kind=kind, reason=reason, message="because", by="me", at_ms=1)


def decided(**given_: object) -> Outcome:
    return decide(**{"stop": None, "exit_status": None, "result": None, "result_fault": None, "tail": "", **given_})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "outcome", "reason"),
    [
        (StopKind.CANCEL, OutcomeKind.CANCELLED, Reason.OPERATOR),
        (StopKind.TIMEOUT, OutcomeKind.TIMED_OUT, Reason.TIMEOUT),
        (StopKind.STALL, OutcomeKind.STALLED, Reason.STALLED),
        (StopKind.INTERRUPT, OutcomeKind.INTERRUPTED, Reason.INTERRUPTED),
        (StopKind.CLOSE, OutcomeKind.CLOSED, Reason.EXTERNAL_COMPLETION),
    ],
)
@pytest.mark.parametrize("result", [None, *OWN_WORDS])
@pytest.mark.parametrize("status", [None, 0, 1, 75, 143])
def test_a_stop_intent_comes_first(
    kind: StopKind, outcome: OutcomeKind, reason: Reason, result: ResultFile | None, status: int | None
) -> None:
    found = decided(stop=stopped(kind), exit_status=status, result=result, result_fault="broken", tail="bye")
    assert (found.kind, found.reason, found.message) == (outcome, reason, "because")
    assert found.exit_status == status
    assert found.result == (result.result if result else None)
    assert not found.permanent


def test_a_deadline_is_named_as_such() -> None:
    assert decided(stop=stopped(StopKind.TIMEOUT, "deadline")).reason is Reason.DEADLINE


@pytest.mark.parametrize("status", [None, 0, 1, 75])
@pytest.mark.parametrize("result", OWN_WORDS)
def test_the_agents_own_word_comes_before_its_exit_status(result: ResultFile, status: int | None) -> None:
    found = decided(result=result, exit_status=status, tail="bye")
    assert found.kind is result.outcome
    assert found.message
    assert found.exit_status == status


@pytest.mark.parametrize("status", [None, 0, 1, 75])
def test_a_result_file_that_cannot_be_read_fails_the_attempt(status: int | None) -> None:
    found = decided(result_fault="not JSON", exit_status=status)
    assert (found.kind, found.reason, found.message) == (OutcomeKind.FAILED, Reason.BAD_RESULT_FILE, "not JSON")


@pytest.mark.parametrize(
    ("status", "kind", "reason", "message"),
    [
        (0, OutcomeKind.COMPLETED, Reason.DONE, "bye"),
        (75, OutcomeKind.DEFERRED, Reason.DEFERRED, "bye"),
        (1, OutcomeKind.FAILED, Reason.EXIT_STATUS, "exited with status 1: bye"),
        (127, OutcomeKind.FAILED, Reason.EXIT_STATUS, "exited with status 127 (command not found?): bye"),
        (137, OutcomeKind.FAILED, Reason.EXIT_STATUS, "ended by signal 9: bye"),
        (None, OutcomeKind.LOST, Reason.PROCESS_LOST, "the process is gone and left neither exit status nor result"),
    ],
)
def test_then_the_exit_status(status: int | None, kind: OutcomeKind, reason: Reason, message: str) -> None:
    found = decided(exit_status=status, tail="bye")
    assert (found.kind, found.reason, found.message) == (kind, reason, message)


def test_a_result_without_an_outcome_adds_to_the_exit_status() -> None:
    result = ResultFile(message="nearly", result=[1], usage=Usage(input_tokens=3), permanent=True)
    found = decided(result=result, exit_status=2)
    assert (found.kind, found.permanent, found.result, found.usage) == (
        OutcomeKind.FAILED, True, [1], Usage(input_tokens=3),
    )  # fmt: skip
    assert found.message == "exited with status 2: nearly"
    assert decided(result=result, exit_status=0).message == "nearly"
    assert decided(result=ResultFile(defer_seconds=1.5), exit_status=75).delay_ms == 1500


def test_what_the_agent_asked_is_kept() -> None:
    assert decided(result=OWN_WORDS[3]).question == "which one?"
    assert decided(result=ResultFile(outcome=OutcomeKind.BLOCKED, message="help")).question == "help"
    assert decided(result=OWN_WORDS[0]).question is None


@given(
    st.sampled_from([None, 0, 1, 75, 126, 127, 255]),
    st.none() | st.sampled_from(OWN_WORDS) | st.builds(ResultFile, message=st.none() | st.text(max_size=9)),
    st.none() | st.sampled_from([stopped(kind) for kind in StopKind]),
    st.text(max_size=9),
)
def test_every_end_says_something(status: int | None, result: ResultFile | None, stop: Stop | None, tail: str) -> None:
    found = decided(exit_status=status, result=result, stop=stop, tail=tail)
    assert found.message.strip()
    assert len(found.message) < MESSAGE_LIMIT + 10


# the result file


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "not as it should be"),
        (b"[]", "not as it should be"),
        (b'{"outcome": "completed"', "not as it should be"),
        (b"\xff\xfe", "not as it should be"),
        (b"[" * 100_000, "not as it should be"),
        (b'{"permanent": "yes"}', "permanent"),
        (b'{"outcome": "great"}', "great"),
        (b'{"outcome": "timed_out"}', "an agent may say: blocked, completed, deferred, failed"),
        (b'{"outcome": "blocked", "message": " "}', "without a question"),
        (b'{"outcome": "deferred", "deferSeconds": -1}', "deferSeconds"),
        (b'{"outcome": "deferred", "deferSeconds": 1e99}', "deferSeconds"),
    ],
)
def test_what_is_wrong_with_it_is_said(data: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read_result(data)


def test_unknown_keys_are_no_fault() -> None:
    read = read_result(b'{"outcome": "deferred", "deferSeconds": 30, "mood": "fine", "usage": {"costUsd": 1}}')
    assert (read.outcome, read.defer_seconds) == (OutcomeKind.DEFERRED, 30)


@given(st.sampled_from(sorted(AGENT_MAY_SAY)), st.text(min_size=1).filter(str.strip), st.booleans())
def test_what_an_agent_writes_is_read(kind: OutcomeKind, message: str, permanent: bool) -> None:
    written = ResultFile(outcome=kind, message=message, permanent=permanent, result=[1, {"a": None}])
    assert read_result(msgspec.json.encode(written)) == written


@given(st.text(max_size=50), st.integers(2, 30))
def test_cutting_keeps_both_ends(text: str, limit: int) -> None:
    found = cut(text, limit)
    if len(text.strip()) <= limit:
        assert found == text.strip()
    else:
        assert found.startswith(text.strip()[: limit // 2])
        assert found.endswith(text.strip()[-(limit - limit // 2) :])
        assert len(found) <= limit + len(" [...] ")


def test_signals_are_told_from_statuses() -> None:
    assert exit_sentence(128) == "exited with status 128"
    assert exit_sentence(129) == "ended by signal 1"
