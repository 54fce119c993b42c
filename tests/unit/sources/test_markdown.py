from __future__ import annotations

import pytest

from interlock.domain.errors import InvalidInput
from interlock.domain.task import Task
from interlock.sources.file import Backlog, BacklogFormat, DoneTask, parse_backlog


def read(text: str) -> Backlog:
    return parse_backlog(text.encode(), source="b", format=BacklogFormat.MARKDOWN, now_ms=0)


def tasks(text: str) -> list[Task]:
    return [placed.task for placed in read(text).tasks]


def faults(text: str) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        read(text)
    return caught.value.message.split("\n")


def test_boxes_are_tasks_and_all_else_is_not() -> None:
    found = read(
        "# [ ] head\n\n- [ ] a\n* [ ] b\n+ [ ] c\n1. [ ] d\n2) [ ] e\n- plain\n> - [ ] quoted\ntext - [ ] no\n"
    )
    assert [(p.task.title, p.line) for p in found.tasks] == [("a", 3), ("b", 4), ("c", 5), ("d", 6), ("e", 7)]


def test_ticked_boxes_are_listed_with_what_hangs_on_them() -> None:
    found = read("- [x] a id: one\n  - [ ] below\n- [X] b\n- [ ] c needs: one, two\n- [ ] d id: two\n")
    assert found.skipped_done == [DoneTask(title="a", line=1, id="one"), DoneTask(title="b", line=3)]
    assert [placed.task.needs for placed in found.tasks] == [("two",), ()]


def test_the_title_line() -> None:
    (task,) = tasks("- [ ] Fix  it,  #gpu, #team/a.b now !-3 id: x needs: #4, r0123456789ab see #123 c# !important\n")
    assert task == Task(
        title="Fix  it, now see #123 c# !important",
        id="x",
        tags=("gpu", "team/a.b"),
        priority=-3,
        needs=("#4", "r0123456789ab"),
    )


def test_code_and_escapes_keep_their_words() -> None:
    (task,) = tasks("- [ ] Fix `x #include id: y` and \\#this \\!3 timeout: 5m\n")
    assert task == Task(title="Fix `x #include id: y` and #this !3 timeout: 5m")


def test_content_is_what_is_indented() -> None:
    (one, two) = tasks(
        "- [ ] a\n\n  para\n    deeper\n\n  - [ ] sub\n\n  ```make\n  all:\n  \tcc\n\n  - [ ] no\n  ```\n\n"
        "text\n- [ ] b\n\tx\n\t\ty\n"
    )
    assert one.content == "para\n  deeper\n\n- [ ] sub\n\n```make\nall:\n\tcc\n\n- [ ] no\n```"
    assert two.content == "x\n\ty"


def test_a_box_below_a_plain_bullet_is_a_task() -> None:
    assert [task.title for task in tasks("- Backend\n  - [ ] a\n    more\n  - [ ] b\n")] == ["a", "b"]


def test_fences_and_comments_hide_boxes() -> None:
    text = "```\n- [ ] no\n```\n~~~~\n- [ ] no\n~~~\n~~~~\n<!--\n- [ ] no\n-->\n<!-- x -->\n- [ ] yes\n"
    assert [task.title for task in tasks(text)] == ["yes"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("- [] a\n", "b:1: "),
        ("x\n-[ ] a\n", "b:2: "),
        ("- [ ]a\n", "b:1: "),
        ("- [-] a\n", "b:1: "),
        ("- [ ]\n", "b:1: title: is empty"),
        ("- [ ] #tag !3\n", "b:1: title: is empty"),
        ("- [x]\n", "b:1: title: is empty"),
        ("- [ ] a needs:\n", "b:1: needs: names nothing"),
        ("- [ ] a id: x id: y\n", "b:1: id: is there twice"),
        ("- [ ] a !007\n", "b:1: priority: a whole number"),
        ("- [ ] a !9999999\n", "b:1: priority: 9999999 is out of range"),
        ("- [ ] a id: x\n- [ ] b id: x\n", 'b:2: id: "x" is there twice, on lines 1 and 2'),
        ("- [x] a id: x\n- [ ] b id: x\n", 'b:2: id: "x" is there twice, on lines 1 and 2'),
        ("- [ ] a id: x needs: y\n", 'b:1: needs: "y" is no id'),
        ("- [ ] a\n  ```\n  x\n- [ ] b\n", "b:2: content: a code fence starts here"),
        ("- [ ] a\n```\n- [ ] b\n", "b:2: a code fence starts here"),
        ("- [ ] a\n<!--\n- [ ] b\n", "b:2: a comment starts here"),
        ("- [ ] " + "`" * 200_000 + "\n", "b:1: title: has 200000 characters"),
        ("- [ ] " + "a" * 501 + "\n", "b:1: title: has 501 characters"),
        ("- a\n- b\n", "b:1: there is no task in it"),
        ("- [x] a\n", "b:1: no task is open"),
        ("- [ ] a\n- [ ] b\x07\n", "b:2: column 8: control character U+0007"),
    ],
)
def test_a_fault_has_its_place(text: str, wanted: str) -> None:
    (fault,) = faults(text)
    assert fault.startswith(wanted)


def test_links_and_notes_are_no_near_misses() -> None:
    assert [t.title for t in tasks("- [link](x)\n- [1] note\n- [a][b]\n- [x](y)\n- [ ] t\n")] == ["t"]
