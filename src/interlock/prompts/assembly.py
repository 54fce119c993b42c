"""The prompt of an attempt: the task, what happened in earlier attempts, the answer to a question, the role's instructions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from interlock.domain.run import Attempt, Run
from interlock.domain.states import AttemptState

# Everything that a terminal or a parser may act on; tab and newline stay.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_TOLD = frozenset({AttemptState.FAILED, AttemptState.TIMED_OUT, AttemptState.STALLED, AttemptState.LOST})


def build_prompt(run: Run, attempts: Sequence[Attempt], *, role_text: str | None = None) -> str:
    """Markdown for one attempt at ``run``; ``attempts`` are the earlier ones."""
    stages = [_task_core(run), _retry_context(run, attempts), _answer(run), _role(role_text)]
    return "\n\n".join(stage for stage in stages if stage) + "\n"


def _task_core(run: Run) -> str:
    task, context = run.task, run.task.context
    parts = [f"# {clean(task.title)}"]
    if context.description:
        parts.append(clean(context.description))
    if task.content.strip():
        parts.append(clean(task.content))
    if context.criteria:
        parts.append("## Done when\n\n" + _bullets(context.criteria))
    if context.files:
        parts.append("## Files\n\n" + _bullets(context.files))
    if context.related:
        parts.append("## Related\n\n" + _bullets(context.related))
    if context.labels:
        parts.append("Labels: " + ", ".join(map(clean, context.labels)))
    if context.source_url:
        parts.append(f"Source: {clean(context.source_url)}")
    return "\n\n".join(parts)


def _retry_context(run: Run, attempts: Sequence[Attempt]) -> str:
    failed = [attempt for attempt in attempts if attempt.state in _TOLD]
    if not failed:
        return ""
    last = failed[-1]
    return (
        f"## Earlier attempts\n\nThis is try {run.failures + run.losts + 1}. The last one ended {last.state}:\n\n"
        f"{clean(last.message or '')}"
    )


def _answer(run: Run) -> str:
    if run.answer is None or run.question is None:
        return ""
    return f"## Your question was answered\n\nYou asked: {clean(run.question)}\n\nThe answer: {clean(run.answer)}"


def _role(text: str | None) -> str:
    return "" if text is None or not text.strip() else f"## Your role\n\n{clean(text)}"


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {clean(line)}" for line in lines)


def clean(text: str) -> str:
    """``text`` without control characters (a carriage return before a newline goes as well)."""
    return _CONTROL.sub("", text).strip()
