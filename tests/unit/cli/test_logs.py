from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.cli.commands.logs import to_last_lines
from interlock.cli.logs_filter import TerminalFilter


def shown(*pieces: bytes) -> str:
    made = TerminalFilter()
    return "".join(made.feed(piece) for piece in pieces) + made.feed(b"", last=True)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"words\n\ttab\n", "words\n\ttab\n"),
        (b"\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        (b"\x1b[2J\x1b]0;t\x07", "\\x1b[2J\\x1b]0;t\\x07"),
        (b"10%\r20%\r\n", "10%\n20%\n"),
        (b"\xc2\x9b2J", "\\x9b2J"),
        ("\u202e".encode(), "\\u202e"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\x1b", "\\x1b"),
        (b"end\r", "end\n"),
        ("日本語".encode(), "日本語"),
    ],
)
def test_only_colours_pass(data: bytes, text: str) -> None:
    assert shown(data) == text


@given(st.lists(st.sampled_from([b"\x1b", b"[", b"31", b"m", b"\r", b"\n", b"a", b"\xe6\x97", b"\xa5", b"2J"])))
def test_pieces_do_not_matter(pieces: list[bytes]) -> None:
    assert shown(*pieces) == shown(b"".join(pieces))


@given(st.lists(st.sampled_from([b"", b"a", b"bb"]), max_size=6), st.integers(0, 8), st.booleans())
def test_last_lines(lines: list[bytes], wanted: int, ended: bool) -> None:
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    whole = data.splitlines(keepends=True)
    file = io.BytesIO(data)
    to_last_lines(file, wanted)
    assert file.read() == b"".join(whole[len(whole) - wanted :] if wanted < len(whole) else whole)
