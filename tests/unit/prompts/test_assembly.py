"""What an agent is told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from interlock.domain.run import Attempt, Run
from interlock.domain.states import AttemptState, RunState
from interlock.domain.task import Task, TaskContext
from interlock.prompts import build_prompt
from interlock.prompts.assembly import clean


def _run(task: Task, **fields: object) -> Run:
    return Run(number=1, id="r1", state=RunState.CLAIMED, task=task, content_hash="x", **fields)  # type: ignore[arg-type]


def test_everything_of_the_task_is_there_in_order() -> None:
    context = TaskContext(
        description="why",
        files=("a.py", "b.py"),
        related=("#3",),
        criteria=("tests pass",),
        labels=("bug",),
        source_url="https://example.invalid/1",
    )
    prompt = build_prompt(_run(Task(title="Fix it", content="how", context=context)), [])
    places = [
        prompt.index(word)
        for word in (
            "# Fix it",
            "why",
            "how",
            "## Done when\n\n- tests pass",
            "- a.py",
            "- #3",
            "Labels: bug",
            "Source:",
        )
    ]
    assert places == sorted(places)
    assert prompt.endswith("\n")


def test_a_bare_title_makes_a_prompt() -> None:
    assert build_prompt(_run(Task(title="Do it")), []) == "# Do it\n"


def test_a_retry_is_told_how_the_last_try_ended_and_a_waiting_one_is_not() -> None:
    failed = Attempt(run=1, fence=1, state=AttemptState.FAILED, holder="h", message="exited with status 3: boom")
    deferred = Attempt(run=1, fence=2, state=AttemptState.DEFERRED, holder="h", message="later")
    prompt = build_prompt(_run(Task(title="x"), failures=1), [failed, deferred])
    assert "This is try 2" in prompt
    assert "boom" in prompt
    assert "Earlier attempts" not in build_prompt(_run(Task(title="x"), defers=1), [deferred])


def test_question_and_answer_come_along() -> None:
    prompt = build_prompt(_run(Task(title="x"), question="Which region?", answer="eu"), [])
    assert "You asked: Which region?" in prompt
    assert "The answer: eu" in prompt


def test_a_role_says_its_part_last() -> None:
    prompt = build_prompt(_run(Task(title="x", content="body")), [], role_text="Be brief.")
    assert prompt.index("Be brief.") > prompt.index("body")


@given(st.text())
def test_nothing_that_a_terminal_acts_on_gets_through(text: str) -> None:
    left = clean(text)
    assert not any((ord(char) < 32 and char not in "\t\n") or 127 <= ord(char) < 160 for char in left)
