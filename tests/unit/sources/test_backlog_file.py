"""Reading a backlog: what each format takes, and that every fault names file, line and field."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest
import yaml

from interlock.domain.errors import InterlockError, InvalidInput, NotFound, TooLarge
from interlock.domain.task import Task
from interlock.sources import file as file_module
from interlock.sources import json_reader, yaml_reader
from interlock.sources import text as text_module
from interlock.sources.file import Backlog, BacklogFormat, parse_backlog, read_backlog, task_keys

FIXTURES = Path(__file__).parents[3] / "fixtures" / "backlogs"
NOW = 1_750_000_000_000


def read(text: str | bytes, format: str = "yaml") -> Backlog:  # noqa: A002
    data = text.encode() if isinstance(text, str) else text
    return parse_backlog(data, source="b", format=BacklogFormat(format), now_ms=NOW)


def tasks(text: str | bytes, format: str = "yaml") -> list[Task]:  # noqa: A002
    return [placed.task for placed in read(text, format).tasks]


def faults(text: str | bytes, format: str = "yaml") -> list[str]:  # noqa: A002
    with pytest.raises(InvalidInput) as caught:
        read(text, format)
    assert caught.value.hint
    return caught.value.message.split("\n")


class TestYaml:
    def test_text_is_taken_as_it_was_written(self) -> None:
        (task,) = tasks("- id: 007\n  title: no\n  project: 1.10\n  role: 2026-01-01\n  tags: [on, 0x1F, 1:30]\n")
        assert (task.id, task.title, task.project, task.role) == ("007", "no", "1.10", "2026-01-01")
        assert task.tags == ("on", "0x1F", "1:30")

    def test_free_values_are_cautious(self) -> None:
        (task,) = tasks(
            "- title: t\n  metadata: {v: 1.10, n: 007, on: yes, i: -5, f: 1.5, t: true, T: True, e: 1e5, z: ~, "
            "w: null, d: 2026-01-01, q: '5', l: [1, a], inf: .inf, big: 1.5e+999}\n"
        )
        assert task.metadata == {
            "v": "1.10",
            "n": "007",
            "on": "yes",
            "i": -5,
            "f": 1.5,
            "t": True,
            "T": "True",
            "e": "1e5",
            "z": None,
            "w": None,
            "d": "2026-01-01",
            "q": "5",
            "l": [1, "a"],
            "inf": ".inf",
            "big": "1.5e+999",
        }

    def test_null_and_nothing_are_absent(self) -> None:
        assert tasks("- title: t\n  id:\n  role: ~\n  tags: null\n  metadata:\n") == [Task(title="t")]

    def test_one_value_stands_for_a_list_and_doubled_tags_count_once(self) -> None:
        (task,) = tasks("- {title: t, tags: gpu, context: {files: a.py, criteria: works}}\n")
        assert (task.tags, task.context.files, task.context.criteria) == (("gpu",), ("a.py",), ("works",))
        assert tasks("- {title: t, tags: [a, b, a]}")[0].tags == ("a", "b")

    def test_a_text_is_a_task_with_this_title(self) -> None:
        assert tasks("- Do this\n- title: |\n    And that\n") == [Task(title="Do this"), Task(title="And that")]

    def test_defaults_are_what_every_task_starts_from(self) -> None:
        one, two = tasks(
            "defaults: {tags: a, role: r, metadata: {x: 1, y: 1}, context: {files: f}}\n"
            "tasks:\n- one\n- {title: two, tags: [], metadata: {y: 2}, context: {description: d}}\n"
        )
        assert (one.tags, one.role, one.metadata, one.context.files) == (("a",), "r", {"x": 1, "y": 1}, ("f",))
        assert (two.tags, two.role, two.metadata) == ((), "r", {"x": 1, "y": 2})
        assert (two.context.files, two.context.description) == (("f",), "d")

    def test_aliases_are_fine(self) -> None:
        one, two = tasks("- {title: one, context: &c {files: [a]}}\n- {title: two, context: *c}\n")
        assert one.context == two.context

    def test_bom_and_crlf_are_fine(self) -> None:
        assert [(p.task.title, p.line) for p in read(b"\xef\xbb\xbf- a\r\n- b\r\n").tasks] == [("a", 1), ("b", 2)]

    def test_lines_are_those_of_the_file(self) -> None:
        assert [p.line for p in read("# c\ntasks:\n\n- title: a\n  content: |\n    x\n    y\n- b\n").tasks] == [4, 8]

    def test_times(self) -> None:
        (task,) = tasks("- {title: t, timeout: 1h30m, stall: 500ms, not_before: 2026-01-01T10:00+02:00}")
        assert (task.timeout_ms, task.stall_ms, task.not_before_ms) == (5_400_000, 500, 1_767_254_400_000)
        assert tasks("- {title: t, not_before: in 10m}")[0].not_before_ms == NOW + 600_000


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("- title: a\n  timeout: 90\n", 'b:2: tasks[0].timeout: "90": 90 has no unit'),
        ("- title: a\n  timeout: 0s\n", "b:2: tasks[0].timeout: "),
        ("- title: a\n  priority: 03\n", "b:2: tasks[0].priority: a whole number is expected"),
        ("- title: a\n  priority: '3'\n", "b:2: tasks[0].priority: a whole number is expected"),
        ("- title: a\n  priority: 1000001\n", "b:2: tasks[0].priority: 1000001 is out of range"),
        (f"- title: a\n  priority: {'9' * 5000}\n", "b:2: tasks[0].priority: 999"),
        ("- title: a\n  not_before: 2026-01-01\n", 'b:2: tasks[0].not_before: "2026-01-01" is a date without'),
        ("- title: a\n  not_before: 2026-01-01T10:00\n", "b:2: tasks[0].not_before: "),
        ("- title: a\n  not_before: 2026-13-01T10:00Z\n", "b:2: tasks[0].not_before: "),
        ("- title: a\n  not_before: in soon\n", "b:2: tasks[0].not_before: "),
        ("- title: a\n  context:\n    files:\n      - {}\n", "b:4: tasks[0].context.files[0]: text is expected"),
        ("- title: a\n  context:\n    fils: x\n", "b:3: tasks[0].context.fils: is no known key"),
        ("- title: a\n  metadata: 5\n", "b:2: tasks[0].metadata: a mapping is expected"),
        ("- title: a\n  metadata: {x: {y: 1, y: 2}}\n", "b:2: tasks[0].metadata.x.y: is there twice"),
        ("- title: a\n  title: b\n", "b:2: tasks[0].title: is there twice, on lines 1 and 2"),
        ("- id: a\n", "b:1: tasks[0]: has no title"),
        ("- title: ''\n", "b:1: tasks[0].title: is empty"),
        ("- title: [a]\n", "b:1: tasks[0].title: text is expected, found a list"),
        (f"- {'a' * 501}\n", "b:1: tasks[0]: has 501 characters, at most 500 fit"),
        ('- title: "a\\nb"\n', "b:1: tasks[0].title: must be one line"),
        ('- title: "a\\e[1m"\n', "b:1: tasks[0].title: has the control character U+001B"),
        ('- title: a\n  content: "x\\0"\n', "b:2: tasks[0].content: has the control character U+0000"),
        (f"- title: a\n  tags: [{','.join(f't{n}' for n in range(65))}]\n", "b:2: tasks[0].tags: has 65 entries"),
        (f"- title: a\n  tags: [{'x' * 101}]\n", "b:2: tasks[0].tags[0]: has 101 characters"),
        ("- title: a\n  tags: [a, '']\n", "b:2: tasks[0].tags[1]: is empty"),
        (f"- title: a\n  id: {'x' * 201}\n", "b:2: tasks[0].id: has 201 characters"),
        ("- title: a\n  id: ' x'\n", "b:2: tasks[0].id: "),
        (f"- title: a\n  content: {'ä' * 600_000}\n", "b:2: tasks[0].content: has 1200000 bytes"),
        (f"- title: a\n  metadata: {{x: {'y' * 262_144}}}\n", "b:2: tasks[0].metadata: has 262152 bytes as JSON"),
        (f"- title: a\n  metadata: {{x: {'[' * 70}{']' * 70}}}\n", "b:2: column 78: nested more than 64 deep"),
        ("- <<: {a: 1}\n  title: a\n", "b:1: tasks[0]: merge keys (<<) are not taken"),
        ("- title: a\n  ? [x]\n  : y\n", "b:2: tasks[0]: a key must be text"),
        ("- title: a\n  ~: y\n", "b:2: tasks[0]: a key must be text"),
        ("- title: !!python/object:os.system x\n", "b:1: column 10: tags such as"),
        ("- title: !!str x\n", "b:1: column 10: tags such as"),
        ("- title: *x\n", "b:1: column 10: *x names no anchor"),
        ("- &a [*a]\n", "b:1: column 7: *a contains itself"),
        ("- a\n---\n- b\n", "b:2: a second document starts here"),
        ("- title: a: b\n", "b:1: column 11: mapping values are not allowed"),
        ("- title: a\n\tid: b\n", "b:2: column 1: "),
        ("- @a\n", "b:1: column 3: found character"),
        ("- 'a\n", "b:2: column 1: found unexpected end of stream while scanning a quoted scalar"),
        ("- a\n- b\u2028c\n", "b:2: column 4: character U+2028"),
        ("- a\n- b\x00\n", "b:2: column 4: control character U+0000"),
        ("- a\r\n- b\x1b\r\n", "b:2: column 4: control character U+001B"),
        (b"- a\n- \xe9\n", "b:2: column 3: byte 0xe9 is not UTF-8"),
        (b"\xff\xfe-\0", "b:1: is UTF-16 text"),
        ("", "b:1: there is no task in it"),
        ("tasks: []\n", "b:1: there is no task in it"),
        ("tasks: 5\n", "b:1: tasks: a list of tasks is expected"),
        ("taks: []\n", "b:1: taks: is no known key"),
        ("title: a\n", "b:1: a list of tasks is expected, found one task"),
        ("hello\n", "b:1: a list of tasks is expected"),
        ("- a\n-\n", "b:2: tasks[1]: a task is expected, it is empty"),
        ("- [a]\n", "b:1: tasks[0]: a task is expected, found a list"),
        ("defaults: {id: a}\ntasks: [b]\n", "b:1: defaults: id cannot be a default"),
        ("- {title: a, id: x}\n- {title: b, id: x}\n", 'b:2: tasks[1].id: "x" is there twice, on lines 1 and 2'),
        ("- {title: a, id: x, needs: x}\n", 'b:1: tasks[0].needs: "x" needs itself'),
        ("- {title: a, id: setup}\n- {title: b, needs: setpu}\n", 'b:2: tasks[1].needs: "setpu" is no id'),
    ],
)
def test_a_fault_in_yaml_has_its_place(text: str | bytes, wanted: str) -> None:
    (fault,) = faults(text)
    assert fault.startswith(wanted)


def test_the_nearest_name_is_told() -> None:
    for text, near in [
        ("- title: a\n  conten: b\n", "did you mean content?"),
        ("- title: a\n  context: {sourceurl: b}\n", "did you mean sourceUrl?"),
        ("- {title: a, id: setup}\n- {title: b, needs: setpu}\n", "did you mean setup?"),
    ]:
        with pytest.raises(InvalidInput) as caught:
            read(text)
        assert str(caught.value.hint).startswith(near)


def test_all_faults_are_told_in_the_order_of_the_file() -> None:
    told = faults("".join(f"- title: a\n  x{n}: b\n" for n in range(30)))
    assert [line.split(" ")[0] for line in told[:20]] == [f"b:{2 * n + 2}:" for n in range(20)]
    assert told[20:] == ["and 10 more"]


def test_faults_are_data_too() -> None:
    with pytest.raises(InvalidInput) as caught:
        read("- title: a\n  timeout: 90\n")
    (fault,) = caught.value.details["faults"]
    assert (fault["file"], fault["line"], fault["column"], fault["path"]) == ("b", 2, 12, "tasks[0].timeout")


def test_cycles_are_named() -> None:
    told = faults(
        "- {title: a, id: a, needs: c}\n- {title: b, id: b, needs: a}\n- {title: c, id: c, needs: [b]}\n"
        "- {title: d, id: d, needs: [e]}\n- {title: e, id: e, needs: [d, a]}\n"
    )
    assert told[0].startswith("b:1: tasks[0].needs: the needs run in a circle: a -> c -> b -> a")
    assert told[1].startswith("b:4: tasks[3].needs: the needs run in a circle: d -> e -> d")
    assert len(told) == 2


def test_a_long_chain_of_needs_is_no_cycle() -> None:
    chain = [{"id": f"t{n}", "title": "t", **({"needs": [f"t{n + 1}"]} if n < 4999 else {})} for n in range(5000)]
    assert len(tasks(json.dumps(chain), "json")) == 5000


def test_a_need_may_be_a_run() -> None:
    assert tasks("- {title: a, needs: ['#42', r0123456789ab]}")[0].needs == ("#42", "r0123456789ab")


def test_an_alias_bomb_is_refused() -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "aliases blow the file up" in faults("\n".join(lines))[0]


class TestJson:
    def test_tabs_pairs_and_large_numbers(self) -> None:
        one, two = tasks(
            '\t[\n\t{"title":"\\ud83d\\ude00", "metadata":{"n":123456789012345678901,"f":1e5}},\n"b"]', "json"
        )
        assert (one.title, one.metadata) == ("\N{GRINNING FACE}", {"n": 123456789012345678901, "f": 1e5})
        assert two.title == "b"

    def test_lines(self) -> None:
        assert [p.line for p in read('[\n{\n"title":"a"},\n\n"b"]', "json").tasks] == [2, 5]

    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ('[{"title": "a"},]', 'b:1: column 17: a value is expected, not "]"'),
            ('[{"title": "a",\n}]', "b:2: column 1: a key in double quotes is expected"),
            ('[{"title": "a"\n"id": "b"}]', "b:2: column 1: a comma or } is expected"),
            ('["a"\n"b"]', "b:2: column 1: a comma or ] is expected"),
            ('[{"title" "a"}]', "b:1: column 11: a colon is expected"),
            ("[\n'a']", "b:2: column 1: a value is expected"),
            ('[{"title": "a"', "b:1: column 15: the text ends where"),
            ('["a\nb"]', "b:1: column 4: invalid control character"),
            ('["a', "b:1: column 2: unterminated string"),
            ('["a"] ["b"]', "b:1: column 7: "),
            ('[{"title": "a", "priority": 03}]', 'b:1: column 29: "03" is no JSON number'),
            ('[{"title": "a", "priority": 1.0}]', "b:1: tasks[0].priority: a whole number is expected"),
            ('[{"title": True}]', "b:1: column 12: a value is expected"),
            ('[{"title": true}]', "b:1: tasks[0].title: text is expected"),
            ('[{"title": "a", "metadata": {"x": NaN}}]', "b:1: column 35: "),
            ('[{"title": "a", "metadata": {"x": 1e999}}]', "b:1: tasks[0].metadata.x: 1e999 is too large"),
            ('[{"title": "a\\ud800"}]', "b:1: tasks[0].title: has half a surrogate pair"),
            ('[{"title": "a",\n"title": "b"}]', "b:2: tasks[0].title: is there twice, on lines 1 and 2"),
            ("[" * 100, "b:1: column 65: nested more than 64 deep"),
            ('[{"title": "a"}, null]', "b:1: tasks[1]: a task is expected, it is empty"),
            ("", "b:1: there is no task in it"),
        ],
    )
    def test_a_fault_has_its_place(self, text: str, wanted: str) -> None:
        (fault,) = faults(text, "json")
        assert fault.startswith(wanted)

    def test_lines_in_a_json_file_are_hinted_at(self) -> None:
        with pytest.raises(InvalidInput, match="jsonl"):
            read('{"tasks": []}\n{"title": "b"}\n', "json")


class TestJsonl:
    def test_blank_lines_are_skipped(self) -> None:
        assert [(p.task.title, p.line) for p in read('{"title": "a"}\n\n"b"\n', "jsonl").tasks] == [("a", 1), ("b", 3)]

    def test_faults_of_all_lines_are_told(self) -> None:
        told = faults('{"title": "a", "x": 1}\n{"title": \n\n{"id": "c"}\n{"title": "d", "title": "e"}', "jsonl")
        places = ["b:1: x: is no known key", "b:2: column 11: ", "b:4: has no title", "b:5: title: is there twice"]
        assert len(told) == 4
        for line, wanted in zip(told, places, strict=True):
            assert line.startswith(wanted)


@pytest.mark.parametrize("name", ["services.yaml", "triage.json", "export.jsonl", "sprint.md"])
def test_the_examples_read_also_from_standard_input(name: str) -> None:
    from_file = read_backlog(str(FIXTURES / name), now_ms=NOW)
    data = io.BytesIO((FIXTURES / name).read_bytes())
    from_stdin = read_backlog("-", stdin=data, now_ms=NOW)
    assert len(from_file.tasks) >= 3
    assert (from_stdin.format, from_stdin.tasks) == (from_file.format, from_file.tasks)
    assert from_stdin.source == "<stdin>"


def test_a_format_wins_over_the_extension(tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_text("- [ ] a\n")
    assert read_backlog(str(path), format="md", now_ms=NOW).format == "markdown"
    with pytest.raises(InvalidInput, match="did you mean yaml"):
        read_backlog(str(path), format="yamll", now_ms=NOW)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"title": "a"}\n{"title": "b"}\n', "jsonl"),
        ('{"title": "a"}', "json"),
        ('"a"\n"b"\n', "jsonl"),
        ('[\n"a"]', "json"),
        ("[a, b]", "yaml"),
        ("- title: a\n  content: |\n    - [ ] b\n", "yaml"),
        ("Text: first\n\n- [ ] b\n", "markdown"),
    ],
)
def test_the_format_of_a_text_without_name(text: str, wanted: str, tmp_path: Path) -> None:
    try:
        found = read_backlog("-", stdin=io.BytesIO(text.encode()), now_ms=NOW).format
    except InvalidInput:
        found = BacklogFormat.JSON  # one object is JSON, and no list of tasks
    assert found == wanted


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound, match="no such file"):
        read_backlog(str(tmp_path / "none.yaml"), now_ms=NOW)
    with pytest.raises(InvalidInput, match="is a folder"):
        read_backlog(str(tmp_path), now_ms=NOW)
    with pytest.raises(InvalidInput):
        read_backlog("a\0b", now_ms=NOW)
    monkeypatch.setattr(text_module, "MAX_FILE_BYTES", 10)
    (tmp_path / "b.yaml").write_text("- a\n" * 10)
    with pytest.raises(TooLarge, match="split it"):
        read_backlog(str(tmp_path / "b.yaml"), now_ms=NOW)
    if os.geteuid() != 0:
        (tmp_path / "b.yaml").chmod(0)
        with pytest.raises(InvalidInput, match="permission"):
            read_backlog(str(tmp_path / "b.yaml"), now_ms=NOW)


class Unread:
    """In place of sys.stdin: none of it is read by a test that shares the process."""

    closed = True


@pytest.mark.parametrize("stdin", [None, Unread()])
def test_a_closed_standard_input_is_told(stdin: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(InvalidInput) as caught:
        read_backlog("-", now_ms=NOW)
    assert caught.value.message == "standard input is closed"
    assert "name a file" in str(caught.value.hint)


def test_a_pipe_that_does_not_block_is_read_to_its_end() -> None:
    out, into = os.pipe()
    os.set_blocking(out, False)
    halves = [threading.Timer(wait, os.write, (into, half)) for wait, half in ((0.05, b"- a\n"), (0.15, b"- b\n"))]
    closing = threading.Timer(0.25, os.close, (into,))
    with open(out, "rb") as stdin:
        for each in (*halves, closing):
            each.start()
        assert [p.task.title for p in read_backlog("-", stdin=stdin, now_ms=NOW).tasks] == ["a", "b"]
    closing.join()


def test_a_missing_file_in_a_removed_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(NotFound) as caught:
        read_backlog("b.yaml", now_ms=NOW)
    assert caught.value.message == "b.yaml: no such file"
    assert "was removed" in str(caught.value.hint)


def test_a_file_name_cannot_move_the_cursor() -> None:
    with pytest.raises(InterlockError) as caught:
        parse_backlog(b"", source="a\x1b[2J", now_ms=NOW)
    assert caught.value.message.startswith("a\\x1b[2J:1: ")


def test_task_keys() -> None:
    one, two, same = Task(title="a", id="x"), Task(title="b"), Task(title="b", priority=3)
    hashed = f"hash:{two.content_hash()}"
    assert task_keys([one, two, same, two]) == ["id:x", hashed, f"{hashed}#2", f"{hashed}#3"]


@pytest.mark.parametrize("format", ["yaml", "json"])
def test_more_values_than_memory_should_hold_are_refused(format: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: A002
    for module in (yaml_reader, json_reader):
        monkeypatch.setattr(module, "MAX_NODES", 9)
    assert len(tasks('["a", "b", "c"]', format)) == 3
    with pytest.raises(TooLarge, match="more than") as caught:
        tasks('[["a", "b", "c"], ["a", "b", "c"], ["d"]]', format)
    assert "several files" in (caught.value.hint or "")


@pytest.mark.parametrize("format", ["yaml", "markdown"])
def test_more_tasks_than_one_batch_takes_are_refused(format: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: A002
    monkeypatch.setattr(file_module, "MAX_TASKS", 3)
    text = "- [ ] {}\n" if format == "markdown" else "- task {}\n"
    assert len(tasks("".join(text.format(number) for number in range(3)), format)) == 3
    with pytest.raises(TooLarge, match="4 tasks, at most 3 fit"):
        tasks("".join(text.format(number) for number in range(4)), format)


@pytest.mark.parametrize("loader", ["in C", "in Python"])
def test_an_escape_that_is_no_character_is_a_fault_of_the_file(loader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if loader == "in Python":
        monkeypatch.setattr(yaml_reader, "_LOADER", yaml.SafeLoader)
    (fault,) = faults('- "\\U00110000"\n')
    assert "invalid Unicode character" in fault or "not YAML" in fault


def test_a_number_too_long_for_a_number_is_to_be_quoted() -> None:
    digits = "9" * 5000
    (fault,) = faults(f'[{{"title": "t", "metadata": {{"n": {digits}}}}}]', "json")
    assert "digits" in fault


@pytest.mark.parametrize(
    ("moment", "problem"),
    [("1969-12-31T23:59Z", "lies before 1970"), ("[2026-07-01T09:00Z]", "text is expected"), ("' '", "is empty")],
)
def test_moments_that_are_none(moment: str, problem: str) -> None:
    (fault,) = faults(f"- title: t\n  not_before: {moment}\n")
    assert problem in fault
