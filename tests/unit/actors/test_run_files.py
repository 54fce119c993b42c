"""What an agent leaves behind is read with care: it may be anything."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from interlock.actors.words import RESULT_LIMIT, load_result, read_tail


@pytest.mark.parametrize(
    ("content", "tail"),
    [
        (b"", ""),
        (b"one\ntwo\n", "two"),
        (b"one\n\n   \n\x1b[0m\n", "one"),
        (b"\x1b[31mred\x07\n", "red"),
        (b"half a line", "half a line"),
        ("größer\n".encode(), "größer"),
        (b"\xff\xfe broken\n", "�� broken"),
        (b"x" * 10_000_000, "x" * 200),
        (b"y" * 9_999 + b"\n\n\n", "y" * 200),
        (b"progress 1%\rprogress 2%\r", "progress 2%"),
    ],
)
def test_the_tail_is_the_last_line_that_says_something(tmp_path: Path, content: bytes, tail: str) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(content)
    assert read_tail(log) == tail


def test_a_tail_that_begins_within_a_character_is_still_text(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes("ä".encode() * 5000 + b"z")
    assert read_tail(log).strip("�") == "ä" * len(read_tail(log).strip("�"))


def test_no_log_has_no_tail(tmp_path: Path) -> None:
    assert read_tail(tmp_path / "output.log") == ""
    assert read_tail(tmp_path) == ""


@pytest.mark.parametrize("content", [b"", b"  \n"])
def test_an_empty_result_says_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    assert load_result(path) == (None, None)


def test_no_result_says_nothing(tmp_path: Path) -> None:
    assert load_result(tmp_path / "result.json") == (None, None)


def test_a_result_is_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"outcome": "completed", "result": {"a": [1]}, "chatter": True}))
    result, fault = load_result(path)
    assert fault is None
    assert result is not None
    assert result.result == {"a": [1]}


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"outcome": "stalled"}', b'{"outcome": "blocked"}', b"\xff", b"[" * 100_000]
)
def test_a_bad_result_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    result, fault = load_result(path)
    assert result is None
    assert fault
    assert "\n" not in fault


def test_a_huge_result_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with path.open("wb") as file:
        file.truncate(RESULT_LIMIT * 100)
        file.write(b"x")
    assert load_result(path)[1] == "the result file is over 16 MiB"


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "loop"])
def test_what_is_no_file_keeps_nobody_waiting(tmp_path: Path, kind: str) -> None:
    """An agent can put a pipe in the place of its result or its log; opening that would wait for ever."""
    path = tmp_path / "result.json"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case _:
            path.symlink_to(path)
    result, fault = load_result(path)
    assert result is None
    assert fault is not None
    assert fault.startswith("the result file cannot be read: ")
    assert read_tail(path) == ""
