"""What shows when the tasks of a backlog are looked at together: every fault at its field, and none that is none."""

from __future__ import annotations

import pytest

from interlock.domain.errors import InvalidInput
from interlock.sources.file import Backlog, BacklogFormat, parse_backlog


def read(text: str, format: str) -> Backlog:  # noqa: A002
    return parse_backlog(text.encode(), source="b", format=BacklogFormat(format), now_ms=0)


def error(text: str, format: str = "yaml") -> InvalidInput:  # noqa: A002
    with pytest.raises(InvalidInput) as caught:
        read(text, format)
    return caught.value


def faults(text: str, format: str = "yaml") -> list[str]:  # noqa: A002
    return [f"b:{each['line']}: {each['path']}: {each['problem']}" for each in error(text, format).details["faults"]]


NO_ID = '"nosuch" is no id in this backlog'
ITSELF = '"x" needs itself'
CIRCLE = "the needs run in a circle: x -> y -> x"
KEY = '"k" is the key of two tasks, on lines'
TWICE = '"x" is there twice, on lines'


@pytest.mark.parametrize(
    ("format", "text", "wanted"),
    [
        ("yaml", "- title: x\n  needs: nosuch\n", f"b:2: tasks[0].needs: {NO_ID}"),
        ("yaml", "tasks:\n- title: x\n  needs: [nosuch]\n", f"b:3: tasks[0].needs[0]: {NO_ID}"),
        ("yaml", "- a\n- title: x\n  needs:\n  - '#1'\n  - nosuch\n", f"b:5: tasks[1].needs[1]: {NO_ID}"),
        ("yaml", "- title: x\n  id: x\n  needs: x\n", f"b:3: tasks[0].needs: {ITSELF}"),
        ("yaml", "- title: x\n  id: x\n  needs:\n  - '#1'\n  - x\n", f"b:5: tasks[0].needs[1]: {ITSELF}"),
        (
            "yaml",
            "- title: x\n  id: x\n  needs:\n  - y\n- title: y\n  id: y\n  needs: x\n",
            f"b:3: tasks[0].needs: {CIRCLE}",
        ),
        ("yaml", "- title: x\n  unique: k\n- title: y\n  unique: k\n", f"b:4: tasks[1].unique: {KEY} 2 and 4"),
        ("yaml", "- title: x\n  id: x\n- title: y\n  id: x\n", f"b:4: tasks[1].id: {TWICE} 2 and 4"),
        ("yaml", "defaults:\n  needs: nosuch\ntasks: [a, b, c]\n", f"b:2: defaults.needs: {NO_ID}"),
        (
            "yaml",
            "defaults:\n  needs: [x]\ntasks:\n- a\n- title: x\n  id: x\n  needs: ~\n",
            f"b:2: defaults.needs[0]: {ITSELF}",
        ),
        ("json", '[{"title": "x",\n"needs": "nosuch"}]', f"b:2: tasks[0].needs: {NO_ID}"),
        ("json", '{"tasks": [{"title": "x",\n"needs": [\n"nosuch"]}]}', f"b:3: tasks[0].needs[0]: {NO_ID}"),
        ("json", '[{"title": "x", "id": "x",\n"needs": "x"}]', f"b:2: tasks[0].needs: {ITSELF}"),
        (
            "json",
            '[{"title": "x", "id": "x",\n"needs": ["y"]},\n{"title": "y", "id": "y",\n"needs": ["x"]}]',
            f"b:2: tasks[0].needs: {CIRCLE}",
        ),
        ("json", '[{"title": "x",\n"unique": "k"},\n{"title": "y",\n"unique": "k"}]', f"b:4: tasks[1].unique: {KEY} 2"),
        ("jsonl", '"a"\n{"title": "x", "needs": "nosuch"}', f"b:2: needs: {NO_ID}"),
        ("jsonl", '"a"\n{"title": "x", "id": "x", "needs": "x"}', f"b:2: needs: {ITSELF}"),
        (
            "jsonl",
            '"a"\n{"title": "x", "id": "x", "needs": "y"}\n{"title": "y", "id": "y", "needs": "x"}',
            f"b:2: needs: {CIRCLE}",
        ),
        ("jsonl", '{"title": "x", "unique": "k"}\n\n{"title": "y", "unique": "k"}', f"b:3: unique: {KEY} 1 and 3"),
        ("markdown", "# a\n- [ ] x needs: #1, nosuch\n", f"b:2: needs: {NO_ID}"),
        ("markdown", "# a\n- [ ] x id: x needs: x\n", f"b:2: needs: {ITSELF}"),
        ("markdown", "# a\n- [ ] x id: x needs: y\n  text\n- [ ] y id: y needs: x\n", f"b:2: needs: {CIRCLE}"),
    ],
)
def test_a_fault_stands_at_its_field(format: str, text: str, wanted: str) -> None:  # noqa: A002
    (fault,) = faults(text, format)
    assert fault.startswith(wanted)


def test_an_entry_of_an_aliased_list_stands_where_the_alias_is() -> None:
    told = faults("- title: x\n  needs: &n [nosuch]\n- title: y\n  needs: *n\n")
    assert told == [f"b:2: tasks[0].needs[0]: {NO_ID}", f"b:4: tasks[1].needs: {NO_ID}"]


BAD = "timeout: 90"


@pytest.mark.parametrize(
    ("format", "text", "wanted"),
    [
        ("yaml", f"- {{title: x, {BAD}}}\n- {{title: y, needs: nosuch}}\n", f"b:2: tasks[1].needs: {NO_ID}"),
        ("yaml", f"- {{title: a, {BAD}}}\n- {{title: x, id: x, needs: x}}\n", f"b:2: tasks[1].needs: {ITSELF}"),
        ("yaml", "- {titel: a}\n- {title: x, id: x, needs: x}\n", f"b:2: tasks[1].needs: {ITSELF}"),
        (
            "yaml",
            f"- {{title: a, {BAD}}}\n- {{title: x, id: x, needs: y}}\n- {{title: y, id: y, needs: x}}\n",
            f"b:2: tasks[1].needs: {CIRCLE}",
        ),
        (
            "yaml",
            f"- {{title: a, {BAD}}}\n- {{title: x, unique: k}}\n- {{title: y, unique: k}}\n",
            f"b:3: tasks[2].unique: {KEY} 2 and 3",
        ),
        ("jsonl", '{"title": "a", "priority": "1"}\n{"title": "x", "needs": "nosuch"}', f"b:2: needs: {NO_ID}"),
        ("jsonl", '{"title": \n{"title": "x", "id": "x", "needs": "x"}', f"b:2: needs: {ITSELF}"),
        ("markdown", "- [ ] a !007\n- [ ] x needs: nosuch\n", f"b:2: needs: {NO_ID}"),
        ("markdown", "- [] a\n- [ ] x id: x needs: x\n", f"b:2: needs: {ITSELF}"),
    ],
)
def test_the_tasks_that_did_read_are_checked_beside_one_that_did_not(
    format: str,  # noqa: A002
    text: str,
    wanted: str,
) -> None:
    first, second = faults(text, format)
    assert first.startswith("b:1: ")
    assert second.startswith(wanted)


@pytest.mark.parametrize(
    ("format", "text"),
    [
        # the id of a task that did not read
        ("yaml", f"- {{title: x, id: x, {BAD}}}\n- {{title: y, needs: x}}\n"),
        ("yaml", "- {title: x, id: ' x'}\n- {title: y, needs: x}\n"),
        ("yaml", "- {title: x, id: w, id: x}\n- {title: y, needs: x}\n"),
        ("markdown", "- [ ] x id: x !007\n- [ ] y needs: x\n"),
        ("markdown", "- [x] x id: x !007\n- [ ] y needs: x\n"),
        ("jsonl", '{"id": "x"}\n{"title": "y", "needs": "x"}'),
        # an id that cannot be told
        ("yaml", "- {title: x, ids: x}\n- {title: y, needs: x}\n"),
        ("yaml", "- {title: x, id: [x]}\n- {title: y, needs: x}\n"),
        ("yaml", "-\n- {title: y, needs: x}\n"),
        ("yaml", "- [x]\n- {title: y, needs: x}\n"),
        ("yaml", "tasks: [{title: y, needs: x}]\ntask: [{title: x, id: x}]\n"),
        ("yaml", "tasks: [{title: y, needs: x}]\ntasks: [{title: x, id: x}]\n"),
        ("jsonl", '{"title": "x", "id": "x"\n{"title": "y", "needs": "x"}'),
        ("markdown", "- [] x id: x\n- [ ] y needs: x\n"),
        ("markdown", "- [ ] x id:\n- [ ] y needs: x\n"),
        ("markdown", "- [ ] x id: w id: x\n- [ ] y needs: x\n"),
        ("markdown", "- [ ] y needs: x\n```\n- [ ] x id: x\n"),
        # which of two is meant is not known yet
        ("yaml", "- {title: x, id: x}\n- {title: y, id: x, needs: x}\n"),
        ("yaml", "- {title: x, id: x}\n- {title: y, id: y, needs: x}\n- {title: z, id: x, needs: y}\n"),
        ("yaml", f"- {{title: x, id: x, {BAD}}}\n- {{title: y, id: x, needs: x}}\n"),
        # a circle through a task that did not read
        ("yaml", f"- {{title: x, id: x, needs: y, {BAD}}}\n- {{title: y, id: y, needs: x}}\n"),
    ],
)
def test_a_fault_of_one_task_makes_no_other(format: str, text: str) -> None:  # noqa: A002
    assert len(faults(text, format)) == 1


def test_one_key_in_the_file_is_fine() -> None:
    assert len(read("- {title: x, unique: k}\n- {title: y, unique: l}\n- z\n", "yaml").tasks) == 3


def test_a_need_on_a_ticked_box_is_met() -> None:
    (placed,) = read("- [x] a id: one\n- [ ] b id: two needs: one\n", "markdown").tasks
    assert placed.task.needs == ()


@pytest.mark.parametrize("near", ["", "- {title: a, id: nosuhc}\n"])
def test_the_hint_speaks_of_tasks_that_left_the_file(near: str) -> None:
    hint = str(error(f"{near}- {{title: x, needs: nosuch}}\n").hint)
    assert "no longer in this file write its run id or #NUMBER" in hint
    assert ("did you mean nosuhc?" in hint) == bool(near)
