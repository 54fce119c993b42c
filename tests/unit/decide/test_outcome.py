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


ENDS = """
completed failed timed_out stalled cancelled closed interrupted deferred blocked lost lapsed returned cannot_start
"""
USED = Usage(input_tokens=3, cost_usd=0.5)


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
    assert decided(stop=stopped(StopKind.CANCEL, "deadline")).reason is Reason.OPERATOR


@pytest.mark.parametrize("status", [None, 0, 1, 75])
@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (
            OWN_WORDS[0],
            Outcome(kind=OutcomeKind.COMPLETED, reason=Reason.DONE, message="all done", result={"n": 1}),
        ),
        (
            ResultFile(outcome=OutcomeKind.FAILED, message=" no "),
            Outcome(kind=OutcomeKind.FAILED, reason=Reason.AGENT_FAILED, message="no"),
        ),
        (
            OWN_WORDS[1],
            Outcome(kind=OutcomeKind.FAILED, reason=Reason.PERMANENT_FAILURE, message="no", permanent=True),
        ),
        (
            ResultFile(outcome=OutcomeKind.DEFERRED, message="later", defer_seconds=2.0015, usage=USED),
            Outcome(kind=OutcomeKind.DEFERRED, reason=Reason.DEFERRED, message="later", delay_ms=2001, usage=USED),
        ),
        (
            OWN_WORDS[3],
            Outcome(kind=OutcomeKind.BLOCKED, reason=Reason.HELP_NEEDED, message="which one?", question="which one?"),
        ),
        (
            ResultFile(outcome=OutcomeKind.BLOCKED, message="help", question=" which one? "),
            Outcome(kind=OutcomeKind.BLOCKED, reason=Reason.HELP_NEEDED, message="help", question="which one?"),
        ),
    ],
)
def test_the_agents_own_word_comes_before_its_exit_status(
    result: ResultFile, outcome: Outcome, status: int | None
) -> None:
    found = decided(result=result, exit_status=status, tail="bye")
    assert found == msgspec.structs.replace(outcome, exit_status=status)
    assert type(found.delay_ms) is type(outcome.delay_ms)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (OutcomeKind.COMPLETED, "done"),
        (OutcomeKind.DEFERRED, "asked for a later time"),
        (OutcomeKind.FAILED, "the agent reported a failure without saying more"),
        (OutcomeKind.BLOCKED, "needs help"),
    ],
)
@pytest.mark.parametrize("said", [None, "", " \n"])
def test_a_word_without_a_message_is_put_into_one(kind: OutcomeKind, said: str | None, message: str) -> None:
    assert decided(result=ResultFile(outcome=kind, message=said)).message == message


@pytest.mark.parametrize("status", [None, 0, 1, 75])
def test_a_result_file_that_cannot_be_read_fails_the_attempt(status: int | None) -> None:
    found = decided(result_fault="not JSON", exit_status=status)
    assert found == Outcome(
        kind=OutcomeKind.FAILED, reason=Reason.BAD_RESULT_FILE, message="not JSON", exit_status=status
    )  # fmt: skip


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
    assert found == Outcome(kind=kind, reason=reason, message=message, exit_status=status)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (0, "done"),
        (75, "asked for a later time (exit status 75)"),
        (1, "exited with status 1"),
    ],
)
def test_blank_output_says_nothing(status: int, message: str) -> None:
    assert decided(exit_status=status, tail=" \n").message == message
    assert decided(exit_status=status, tail=" \n", result=ResultFile(message=" ")).message == message
    assert decided(exit_status=status, tail=" \n", result=ResultFile()).message == message


@pytest.mark.parametrize("status", [0, 1, 75])
def test_long_messages_are_cut(status: int) -> None:
    long = "x" * 10_000
    assert len(decided(exit_status=status, tail=long).message) < MESSAGE_LIMIT + 10


@pytest.mark.parametrize("kind", sorted(AGENT_MAY_SAY))
def test_long_words_of_an_agent_are_cut(kind: OutcomeKind) -> None:
    found = decided(result=ResultFile(outcome=kind, message="x" * 10_000, question="y" * 10_000))
    assert len(found.message) < MESSAGE_LIMIT + 10
    assert len(found.question or "") < MESSAGE_LIMIT + 10


@pytest.mark.parametrize("stop", [None, stopped(StopKind.CANCEL)])
@pytest.mark.parametrize("status", [None, 0, 1, 75])
@pytest.mark.parametrize("said", [None, OutcomeKind.COMPLETED])
def test_what_it_used_is_kept(stop: Stop | None, status: int | None, said: OutcomeKind | None) -> None:
    assert decided(stop=stop, exit_status=status, result=ResultFile(outcome=said, usage=USED)).usage == USED


def test_a_result_without_an_outcome_adds_to_the_exit_status() -> None:
    result = ResultFile(message="nearly", result=[1], usage=Usage(input_tokens=3), permanent=True)
    found = decided(result=result, exit_status=2)
    assert (found.kind, found.permanent, found.result, found.usage) == (
        OutcomeKind.FAILED, True, [1], Usage(input_tokens=3),
    )  # fmt: skip
    assert found.message == "exited with status 2: nearly"
    assert not decided(result=ResultFile(message="nearly"), exit_status=2).permanent
    completed = decided(result=result, exit_status=0)
    assert (completed.message, completed.result) == ("nearly", [1])


def test_a_deferral_by_exit_status_may_say_for_how_long() -> None:
    found = decided(result=ResultFile(defer_seconds=1.5005, message="busy"), exit_status=75)
    assert (found.message, found.delay_ms, type(found.delay_ms)) == ("busy", 1500, int)
    assert decided(result=ResultFile(), exit_status=75).delay_ms is None


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


def test_the_words_for_an_end_stay() -> None:
    """They are stored with the attempt, and agents write some of them into their result file."""
    assert [kind.value for kind in OutcomeKind] == ENDS.split()
    assert all(kind.value == kind.name.lower() for kind in OutcomeKind)


def test_an_outcome_says_only_what_is_known() -> None:
    lost = decided()
    assert msgspec.structs.asdict(lost) == {
        "kind": OutcomeKind.LOST,
        "reason": Reason.PROCESS_LOST,
        "message": "the process is gone and left neither exit status nor result",
        "permanent": False,
        "result": None,
        "exit_status": None,
        "delay_ms": None,
        "question": None,
        "usage": None,
    }


# the result file


def test_nothing_has_to_be_in_it() -> None:
    assert msgspec.structs.asdict(read_result(b"{}")) == {
        "outcome": None,
        "message": None,
        "result": None,
        "permanent": False,
        "usage": None,
        "defer_seconds": None,
        "question": None,
    }


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "not as it should be"),
        (b"[]", "not as it should be"),
        (b'{"outcome": "completed"', "not as it should be"),
        (b"\xff\xfe", "not as it should be"),
        (b'{"result": ' + b"[" * 100_000, "not as it should be"),
        (b'{"message": "\xff"}', "not as it should be"),
        (b'{"permanent": "yes"}', "permanent"),
        (b'{"outcome": "great"}', "great"),
        (b'{"outcome": "timed_out"}', "'timed_out'; an agent may say: blocked, completed, deferred, failed"),
        (b'{"outcome": "blocked"}', "without a question"),
        (b'{"outcome": "blocked", "message": " "}', "without a question"),
        (b'{"outcome": "deferred", "deferSeconds": -1}', "deferSeconds"),
        (b'{"outcome": "deferred", "deferSeconds": 31622401}', "deferSeconds"),
    ],
)
def test_what_is_wrong_with_it_is_said(data: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read_result(data)


def test_unknown_keys_are_no_fault() -> None:
    read = read_result(b'{"outcome": "deferred", "deferSeconds": 30, "mood": "fine", "usage": {"costUsd": 1}}')
    assert (read.outcome, read.defer_seconds) == (OutcomeKind.DEFERRED, 30)


@pytest.mark.parametrize("seconds", [0, 0.5, 366 * 24 * 60 * 60])
def test_a_deferral_of_up_to_a_year(seconds: float) -> None:
    assert read_result(b'{"deferSeconds": %s}' % str(seconds).encode()).defer_seconds == seconds


@pytest.mark.parametrize("words", [b'"question": "which?"', b'"message": "which?"'])
def test_a_question_may_stand_in_the_message(words: bytes) -> None:
    assert read_result(b'{"outcome": "blocked", %s}' % words).outcome is OutcomeKind.BLOCKED


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


def test_what_just_fits_is_not_cut() -> None:
    assert cut("abcd", 4) == "abcd"
    assert cut("abcde", 4) == "ab [...] de"
    assert cut("x" * 4000) == "x" * 4000
    assert cut("x" * 4001) == "x" * 2000 + " [...] " + "x" * 2000


def test_signals_are_told_from_statuses() -> None:
    assert exit_sentence(128) == "exited with status 128"
    assert exit_sentence(129) == "ended by signal 1"
    assert exit_sentence(126) == "exited with status 126 (not executable?)"
    assert exit_sentence(125) == "exited with status 125"
