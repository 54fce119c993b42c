from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.cli.text import count, plain, short, span, width


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain words", "plain words"),
        ("two\nlines", "two lines"),
        ("two \r\n  lines\n", "two lines"),
        ("tab\there", "tab here"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x00\x07\x7f", "\\x00\\x07\\x7f"),
        ("\x9b2J", "\\x9b2J"),
        ("a\u202eb\u2066", "a\\u202eb\\u2066"),
        ("\u200bhidden\ufeff", "\\u200bhidden\\ufeff"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("👩\u200d🚀 日本語 שלום é", "👩\u200d🚀 日本語 שלום é"),
        ("[red]x[/red]", "[red]x[/red]"),
        ("", ""),
    ],
)
def test_plain(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_plain_keeps_lines_when_asked() -> None:
    assert plain("a\nb\r\nc\td\x1b", lines=True) == "a\nb\nc   d\\x1b"


@given(st.text())
def test_plain_is_one_printable_line(text: str) -> None:
    shown = plain(text)
    assert not any(char in shown for char in "\n\r\x1b\x9b\u2028\u202e\x00")
    assert plain(shown) == shown.replace("\xad", "\\xad")


@given(st.text(), st.integers(min_value=1, max_value=40))
def test_short_fits(text: str, columns: int) -> None:
    cut = short(text, columns)
    assert width(cut) <= columns
    assert cut == plain(text) or cut.endswith("…")


def test_wide_characters_take_two_columns() -> None:
    assert width("日本") == 4
    assert width("e\u0301") == 1
    assert short("日本語の題名", 7) == "日本語…"


def test_spans_and_counts() -> None:
    assert span(45) == "45ms"
    assert span(90_500.7) == "1m30s"
    assert (count(1, "run"), count(2, "run"), count(2, "child", "children")) == ("1 run", "2 runs", "2 children")
