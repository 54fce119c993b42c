"""Rows of another dispatcher's workflow_runs, as tasks."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from interlock.domain.errors import InvalidInput
from interlock.domain.task import Task, TaskContext
from interlock.sources.faults import Faults
from interlock.sources.records import Record, RecordFile
from interlock.sources.workflow_runs import STATUSES, OldRun, OldState, Reader

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures/migration"


def read(*rows: Any, status_needed: bool = False, written: bool = False) -> list[OldRun]:
    faults = Faults("f")
    reader = Reader(faults, status_needed=status_needed)
    found = [reader.read(Record(at, at + 10, row, written)) for at, row in enumerate(rows, start=1)]
    faults.check()
    return [old for old in found if old is not None]


def refused(*rows: Any, **named: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        read(*rows, **named)
    return caught.value.message


def test_every_field() -> None:
    (old,) = read(
        {
            "id": 7,
            "workflow_type": "review",
            "title": "Review",
            "description": "Look.",
            "input": {"pull": 1},
            "priority": 3,
            "tags": ["a", "b", "a"],
            "status": "claimed",
            "agent_id": "claude",
            "created_at": "2026-06-30T22:14:02Z",
            "timeout_minutes": 30,
            "session": "s",
        }
    )
    assert (old.key, old.state, old.status, old.created_ms) == ("id:7", OldState.IN_FLIGHT, "claimed", 1782857642000)
    assert old.task == Task(
        id="7",
        title="Review",
        content='Look.\n\n## Input\n\n```json\n{\n  "pull": 1\n}\n```',
        context=TaskContext(extra={"input": {"pull": 1}}),
        priority=3,
        tags=("a", "b"),
        type="review",
        agent="claude",
        timeout_ms=1_800_000,
        metadata={"imported": {"session": "s", "status": "claimed", "created_at": "2026-06-30T22:14:02Z"}},
    )


@pytest.mark.parametrize("name", ["id", "run_id", "runId", "workflow_run_id", "workflowRunId"])
def test_names_of_the_id(name: str) -> None:
    assert read({name: "x", "title": "t"})[0].key == "id:x"


def test_other_names() -> None:
    (old,) = read({"type": "report", "name": "N", "payload": {"a": 1}, "params": "as text", "context": '{"b": 2}'})
    assert (old.task.type, old.task.title) == ("report", "N")
    assert old.task.context.extra == {"payload": {"a": 1}, "params": "as text", "context": {"b": 2}}
    assert old.task.content.endswith('as text\n\n## Context\n\n```json\n{\n  "b": 2\n}\n```')
    assert old.state is OldState.WAITING


@pytest.mark.parametrize(
    ("row", "title", "content"),
    [
        ({"description": "First line\nand more"}, "First line", "First line\nand more"),
        ({"title": "a\nb"}, "a", "a\nb"),
        ({"title": "x" * 600}, "x" * 499 + "…", "x" * 600),
        ({"type": "report", "id": 9}, "report 9", ""),
        ({"title": " a\tb "}, "a b", "a\tb"),
    ],
)
def test_a_title_is_found_and_nothing_is_lost(row: dict[str, Any], title: str, content: str) -> None:
    (old,) = read(row)
    assert (old.task.title, old.task.content) == (title, content)


@pytest.mark.parametrize("word", [*STATUSES, "QUEUED", "in-progress", "Timed Out"])
def test_statuses(word: str) -> None:
    (old,) = read({"title": "t", "status": word})
    assert old.state is STATUSES[word.lower().replace("-", "_").replace(" ", "_")]


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("{a,b}", ("a", "b")),
        ('{"a b",c}', ("a b", "c")),
        ("{}", ()),
        ('["a"]', ("a",)),
        ("a, b", ("a", "b")),
        (["a"], ("a",)),
    ],
)
def test_tags(tags: Any, found: tuple[str, ...]) -> None:
    assert read({"title": "t", "tags": tags})[0].task.tags == found


@pytest.mark.parametrize(
    ("at", "ms"),
    [
        ("2026-06-30 22:14:02.5+00", 1782857642500),
        ("2026-06-30T22:14:02", 1782857642000),
        (1782857642, 1782857642000),
        (1782857642000, 1782857642000),
        ("1782857642", 1782857642000),
    ],
)
def test_times(at: Any, ms: int) -> None:
    assert read({"title": "t", "created_at": at})[0].created_ms == ms


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ([], "f:11: record 1: an object is expected"),
        ({"tags": ["a"]}, "f:11: record 1: has neither title, name, description, type nor id"),
        ({"title": "t", "status": "quued"}, 'f:11: record 1.status: "quued" is no status that is known'),
        ({"title": "t", "priority": "high"}, 'f:11: record 1.priority: a whole number is expected, found "high"'),
        ({"title": "t", "priority": 10**9}, "f:11: record 1.priority: 1000000000 is out of range"),
        ({"title": "t", "timeoutMinutes": 0}, "f:11: record 1.timeoutMinutes: 0 is out of range"),
        ({"title": "t", "tags": [["a"]]}, "f:11: record 1.tags[0]: text is expected, found a list"),
        ({"title": "t", "tags": {"a": 1}}, "f:11: record 1.tags: a list is expected"),
        ({"title": "t\x1b[2J"}, "f:11: record 1.title: has the control character U+001B"),
        ({"title": "\ud800"}, "f:11: record 1.title: has half a surrogate pair"),
        ({"title": "t", "created_at": "soon"}, "f:11: record 1.created_at: is no time"),
        ({"title": "t", "agent_id": ["a"]}, "f:11: record 1.agent_id: text is expected"),
        ({"title": "t", "input": "x" * 300_000}, "f:11: record 1.input: has 300002 bytes as JSON"),
        ({"title": "t", "input": {"a": "\ud800"}}, "f:11: record 1.input: cannot be kept"),
        ({"title": "t", "more": "\ud800"}, "f:11: record 1.imported: cannot be kept"),
        ({"title": "t", "id": "a" * 201}, "f:11: record 1.id: has 201 characters, at most 200 fit"),
    ],
)
def test_faults_name_record_and_field(row: Any, what: str) -> None:
    assert refused(row).startswith(what)


def test_an_id_is_there_once() -> None:
    assert refused({"id": 1}, {"id": "1"}) == 'f:12: record 2.id: "1" is there twice, first in record 1'


def test_without_an_id_the_text_tells() -> None:
    first, second, third = read({"title": "a"}, {"title": "a"}, {"title": "b"})
    assert second.key == f"{first.key}#2"
    assert third.key != first.key


def test_a_status_may_be_needed() -> None:
    assert refused({"title": "t"}, status_needed=True).startswith("f:11: record 1.status: is missing")


def test_a_dump_reads_the_same_as_csv_and_as_json() -> None:
    def tasks(name: str) -> list[tuple[Any, ...]]:
        faults = Faults(name)
        reader = Reader(faults, status_needed=True)
        with closing(RecordFile(str(FIXTURES / name))) as file:
            found = [reader.read(record) for record in file.records(faults)]
        faults.check()
        return [
            (old.key, old.state, old.created_ms, old.task.title, old.task.content, old.task.context, old.task.tags)
            for old in found
            if old is not None
        ]

    assert tasks("workflow_runs.csv") == tasks("workflow_runs.jsonl")
    assert len(tasks("workflow_runs.csv")) == 9


def test_the_pickup_file() -> None:
    faults = Faults("pickup")
    reader = Reader(faults, status_needed=False)
    with closing(RecordFile(str(FIXTURES / "pickup.json"))) as file:
        found = [reader.read(record) for record in file.records(faults)]
    assert [(old.key, str(old.state)) for old in found if old is not None] == [
        ("id:4127", "waiting"),
        ("id:wr_4128", "in flight"),
        ("id:wr_4129", "waiting"),
    ]
    assert json.loads(json.dumps(found[0].task.metadata))["imported"]["template"] == "review-v2"  # type: ignore[union-attr]
