"""Records of JSON, JSONL and CSV files, read in pieces, each with its line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.domain.errors import InterlockError, InvalidInput, NotFound, TooLarge
from interlock.sources import records
from interlock.sources.faults import Faults
from interlock.sources.records import RecordFile


def read(data: str | bytes, *, format: str | None = None) -> list[tuple[int, int, Any]]:  # noqa: A002 - as it is called there
    stdin = io.BufferedReader(io.BytesIO(data.encode() if isinstance(data, str) else data))  # type: ignore[arg-type]
    faults = Faults("f")
    found = [
        (record.number, record.line, record.fields)
        for record in RecordFile("-", stdin=stdin).records(faults, format=format)
    ]
    faults.check()
    return found


def refused(data: str | bytes, **named: Any) -> str:
    with pytest.raises(InterlockError) as caught:
        read(data, **named)
    return str(caught.value.message)


@pytest.mark.parametrize(
    "text",
    [
        '[{"a": 1}, {"a": 2}]',
        '{"a": 1}\n{"a": 2}\n',
        '{"a": 1}{"a": 2}',
        '{"runs": [{"a": 1}, {"a": 2}], "version": 1}',
        '{"version": 1, "pending": [{"a": 1}], "queue": {"a": 2}}',
        '{"data": {"workflow_runs": [{"a": 1}, {"a": 2}]}}',
        '[{"a": 1}]\n[{"a": 2}]',
    ],
)
def test_json_in_every_form(text: str) -> None:
    assert [fields for _, _, fields in read(text)] == [{"a": 1}, {"a": 2}]


def test_one_object_is_a_record_and_an_empty_one_is_none() -> None:
    assert read('{"id": 1, "pending": true}') == [(1, 1, {"id": 1, "pending": True})]
    for nothing in ("", " \n", "[]", "{}", '{"runs": []}', '{"runs": {}}'):
        assert read(nothing) == []


def test_lines_are_those_of_the_records() -> None:
    text = '{\n "runs": [\n  {"a":\n 1},\n\n  {"a": 2}\n ]}\n{"a": 3}'
    assert [(number, line) for number, line, _ in read(text)] == [(1, 3), (2, 6), (3, 8)]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('[{"a": 1},\n {"a": tru}]', "f:2: expecting value"),
        ('[{"a": 1},\n {"a": 1, "a": 2}]', 'f:2: the key "a" is there twice'),
        ('{"x": 1,\n "x": 2}', 'f:2: the key "x" is there twice'),
        ('[{"a": NaN}]', "f:1: NaN is no JSON number"),
        ('[{"a": 1}\n{"a": 2}]', 'f:2: , or ] is expected, not "{"'),
        ('[{"a": 1},\n', "f:2: expecting value"),
        ('{"runs": [{"a": 1}', "f:1: , or ] is expected, the file ends"),
        ('{"a" 1}', 'f:1: : is expected, not "1"'),
        ("7", "f:1: an object or a list of objects is expected"),
        ("[" * 100_000, "f:1: is nested too deep"),
    ],
)
def test_what_is_no_json_is_told_with_its_line(text: str, where: str) -> None:
    assert refused(text, format="json").startswith(where)


def test_what_is_longer_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PIECE", 7)
    monkeypatch.setattr(records, "MAX_RECORD", 60)
    wanted = [{"a": "ä" * length, "n": 123456789} for length in range(20)]
    assert [fields for _, _, fields in read(json.dumps(wanted, ensure_ascii=False))] == wanted
    with pytest.raises(TooLarge, match=r"f:1: a record has more than"):
        read(json.dumps([{"a": "x" * 200}]))


@given(
    st.lists(
        st.dictionaries(
            st.text(max_size=5).filter(lambda key: key not in records.LISTS),
            st.one_of(st.integers(), st.text(), st.none(), st.lists(st.booleans(), max_size=3)),
            min_size=1,
        ),
        max_size=5,
    ),
    st.integers(1, 40),
    st.sampled_from([None, 1]),
)
def test_json_reads_as_it_was_written(wanted: list[dict[str, Any]], piece: int, indent: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PIECE", piece)
        assert [fields for _, _, fields in read(json.dumps(wanted, indent=indent), format="json")] == wanted
        lines = "\n".join(map(json.dumps, wanted))
        assert [fields for _, _, fields in read(lines, format="jsonl")] == wanted


def test_csv() -> None:
    text = 'id,title,input\n1,"two\nlines","{""a"": 1}"\n\n2,\\N,\n'
    assert read(text) == [
        (1, 2, {"id": "1", "title": "two\nlines", "input": '{"a": 1}'}),
        (2, 5, {"id": "2", "title": None, "input": None}),
    ]
    assert read("\ufeffid;title\r\n1;a,b\r\n") == [(1, 2, {"id": "1", "title": "a,b"})]
    assert read("id\ttitle\n1\tx\n") == [(1, 2, {"id": "1", "title": "x"})]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("id,title\n1\n", "f:2: record 1: has 1 cells, the first line 2"),
        ("id,id\n", 'f:1: column "id" is there twice'),
        ("id,\n", "f:1: column 2 has no name"),
        ('id,title\n1,"x\n', "f:2: is no CSV: unexpected end of data"),
        (b"id,title\n1,\xff\n", "f:1: byte 0xff near here is not UTF-8"),
    ],
)
def test_what_is_no_csv_is_told_with_its_line(text: str | bytes, where: str) -> None:
    assert refused(text, format="csv").startswith(where)


def test_what_is_no_text() -> None:
    assert "byte 0xff near here is not UTF-8" in refused(b'[{"a": 1},\n{"a": "\xff"}]', format="json")


def test_files(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        RecordFile(str(tmp_path / "none"))
    with pytest.raises(InvalidInput):
        RecordFile(str(tmp_path))
    for name, text in (
        ("a.csv", "id\n1\n"),
        ("a.json", '{"id": "1"}'),
        ("a.out", '\n [{"id": "1"}]'),
        ("b.out", "id\n1\n"),
    ):
        path = tmp_path / name
        path.write_text(text)
        file = RecordFile(str(path))
        assert [record.fields for record in file.records(Faults("f"))] == [{"id": "1"}]
        file.close()
