"""What is written is read back the same; what is no backlog is refused as one of our errors, never a traceback."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from interlock.config import parse_config
from interlock.domain.errors import InterlockError
from interlock.domain.task import PRIORITY_LIMIT, Task, TaskContext
from interlock.sources.durations import LONGEST_MS
from interlock.sources.file import BacklogFormat, parse_backlog
from interlock.sources.task_schema import parse_moment, task_fields, write_moment

NOT_TEXT = {"exclude_categories": ("Cc", "Cs")}
NOT_LINE = {"exclude_categories": ("Cc", "Cs", "Zl", "Zp")}
text = st.text(st.one_of(st.characters(**NOT_TEXT), st.sampled_from("\n\t\r")), max_size=60)  # type: ignore[arg-type]
line = st.text(st.characters(**NOT_LINE), min_size=1, max_size=40).filter(lambda s: bool(s.strip()))  # type: ignore[arg-type]
tricky = st.sampled_from(
    [
        "no",
        "007",
        "1.10",
        "null",
        "~",
        "2026-01-01",
        "1e5",
        "- a",
        "#x",
        "a: b",
        "<<",
        "=",
        "true",
        "0o7",
        "1_000",
        "\ufeffx",
    ]
)
name = st.one_of(line.map(str.strip).filter(bool), tricky)
title = st.one_of(line, tricky)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), text, tricky
)
key = st.one_of(st.text(st.characters(**NOT_LINE), max_size=20), tricky)  # type: ignore[arg-type]
free = st.dictionaries(
    key,
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(key, inner, max_size=3)),
    max_size=3,
)


def some(values: st.SearchStrategy[str], *, unique: bool = False) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(values, max_size=3, unique=unique).map(tuple)


contexts = st.builds(
    TaskContext,
    description=st.none() | text,
    files=some(line),
    related=some(line),
    criteria=some(text.filter(lambda s: bool(s.strip()))),
    labels=some(line),
    source_url=st.none() | line,
    extra=free,
)
whole = st.builds(
    Task,
    title=title,
    content=text,
    context=contexts,
    priority=st.integers(-PRIORITY_LIMIT, PRIORITY_LIMIT),
    tags=some(name, unique=True),
    project=st.none() | name,
    tracker=st.none() | name,
    role=st.none() | name,
    type=st.none() | name,
    agent=st.none() | name,
    needs=some(st.sampled_from(["#1", "#22", "r0123456789ab"]), unique=True),
    timeout_ms=st.none() | st.integers(1, LONGEST_MS),
    stall_ms=st.none() | st.integers(1, LONGEST_MS),
    not_before_ms=st.none() | st.integers(0, 253_402_300_799_999),
    unique=st.none() | name,
    metadata=free,
)
backlogs = st.lists(
    st.tuples(whole, st.none() | name),
    min_size=1,
    max_size=3,
    unique_by=(lambda pair: pair[1] or object(), lambda pair: pair[0].unique or object()),
)


def with_ids(pairs: list[tuple[Task, str | None]]) -> list[Task]:
    return [Task(**{f: getattr(t, f) for f in t.__struct_fields__ if f != "id"}, id=i) for t, i in pairs]


WRITERS: dict[str, Any] = {
    "yaml": yaml.safe_dump,
    "yaml unicode": lambda items: yaml.safe_dump(items, sort_keys=False, default_flow_style=True),
    "json": json.dumps,
    "json indented": lambda items: json.dumps(items, indent="\t", ensure_ascii=False),
    "jsonl": lambda items: "\n".join(map(json.dumps, items)),
}


@pytest.mark.parametrize("writer", WRITERS)
@settings(deadline=None)  # a loaded machine is no fault
@given(pairs=backlogs)
def test_a_task_reads_back_as_it_was(writer: str, pairs: list[tuple[Task, str | None]]) -> None:
    tasks = with_ids(pairs)
    written = WRITERS[writer]([task_fields(task) for task in tasks])
    found = parse_backlog(written.encode(), source="b", format=BacklogFormat(writer.split(maxsplit=1)[0]), now_ms=0)
    assert [placed.task for placed in found.tasks] == tasks
    assert [p.task.content_hash() for p in found.tasks] == [task.content_hash() for task in tasks]


@settings(deadline=None)  # a loaded machine is no fault
@given(ms=st.integers(0, 253_402_300_799_999))
def test_a_moment_reads_back(ms: int) -> None:
    assert parse_moment(write_moment(ms), now_ms=0) == ms


yaml_like = st.lists(
    st.sampled_from(
        [
            "- ",
            "title: ",
            "a",
            "\n",
            "  ",
            "&x ",
            "*x",
            "[",
            "]",
            "{",
            "}",
            ",",
            ":",
            "'",
            '"',
            "|\n",
            ">",
            "!t ",
            "<<: ",
            "id: ",
            "needs: ",
            "- [ ] ",
            "```\n",
            "#t",
            "!3",
            "tasks:\n",
            "defaults:\n",
            "? ",
            "\t",
            "\\",
            "\ufeff",
            "%",
            "---\n",
            "dispatch:\n",
            "agents:\n",
            "roles: ",
            "timeout: ",
            "5m",
            "null",
            "metadata: ",
            "1.5",
            "007",
            "<!--",
            "\u2028",
        ]
    ),
    max_size=40,
).map(lambda parts: "".join(parts).encode())
anything = st.one_of(
    st.binary(max_size=200), st.text(max_size=200).map(lambda s: s.encode("utf-8", "surrogatepass")), yaml_like
)


@pytest.mark.parametrize("kind", [*BacklogFormat, None])
@settings(deadline=None)  # a loaded machine is no fault
@given(data=anything)
@example(data=b"\xef\xbb\xbf\xff")
@example(data=b'- "\\U00110000"')
@example(data=b"[" * 2000)
def test_whatever_is_no_backlog_is_one_of_our_errors(kind: BacklogFormat | None, data: bytes) -> None:
    with contextlib.suppress(InterlockError):
        found = parse_backlog(data, source="b", format=kind, now_ms=0)
        assert found.tasks


@settings(deadline=None)  # a loaded machine is no fault
@given(data=anything)
def test_whatever_is_no_configuration_is_one_of_our_errors(data: bytes) -> None:
    with contextlib.suppress(InterlockError):
        parse_config(data)
