"""JSON text -> :class:`Raw` tree.

Not through the YAML parser: tabs, ``\\ud83d\\ude00`` pairs and long keys are good JSON and bad YAML. Not
through ``json.loads``: it knows no lines and takes the last of two doubled keys.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from itertools import accumulate

from interlock.sources.faults import Faults, shown
from interlock.sources.raw import MAX_DEPTH, MAX_NODES, Form, Raw, too_many_nodes

_SPACE = re.compile(r"[ \t\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_TOKEN = re.compile(r"[^\s,:\[\]{}\"]+")
_DECODER = json.JSONDecoder()
_WORDS = {"true", "false", "null"}
_HINTS = {
    "'": "use double quotes",
    "/": "JSON has no comments",
    "#": "JSON has no comments; a YAML file has",
    "}": "remove the comma before it",
    "]": "remove the comma before it",
}


class _Reader:
    """Recursive descent over one text; its depth is bounded."""

    def __init__(self, text: str, faults: Faults, first_line: int) -> None:
        self.text = text
        self.faults = faults
        self.first_line = first_line
        self.starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        self.nodes = 0

    def place(self, at: int) -> tuple[int, int]:
        line = bisect_right(self.starts, at) - 1
        return self.first_line + min(line, len(self.starts) - 2), at - self.starts[line] + 1

    def stop(self, at: int, problem: str, hint: str | None = None) -> Exception:
        line, column = self.place(at)
        return self.faults.fatal(line, column, f"column {column}: {problem}", hint)

    def expected(self, at: int, what: str) -> Exception:
        if at >= len(self.text):
            return self.stop(at, f"the text ends where {what} is expected", "a quote or bracket is not closed")
        found = _TOKEN.match(self.text, at)
        word = found[0] if found else self.text[at]
        hint = _HINTS.get(self.text[at])
        if word in {"True", "False", "None", "NaN", "Infinity", "-Infinity"}:
            hint = {"True": "write true", "False": "write false", "None": "write null"}.get(
                word, "JSON has no such number"
            )
        elif what.startswith("a comma"):
            hint = hint or "a comma or bracket is missing before it"
        return self.stop(at, f"{what} is expected, not {shown(word, 30)}", hint or "check quotes, commas and brackets")

    def space(self, at: int) -> int:
        if self.text[at : at + 1] > " ":
            return at
        found = _SPACE.match(self.text, at)
        return found.end() if found else at

    def value(self, at: int, depth: int) -> tuple[Raw, int]:
        """The value that starts at the index, and the index behind it."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise too_many_nodes(self.faults)
        text = self.text
        first = text[at : at + 1]
        if first == '"':
            return self.string(at)
        if first in {"{", "["}:
            if depth >= MAX_DEPTH:
                raise self.stop(at, f"nested more than {MAX_DEPTH} deep", "flatten it")
            return self.mapping(at, depth) if first == "{" else self.sequence(at, depth)
        number = _NUMBER.match(text, at)
        token = _TOKEN.match(text, at)
        if number and token and number.end() == token.end():
            return Raw(Form.NUMBER, *self.place(at), number[0]), number.end()
        if token and token[0] in _WORDS:
            return Raw(Form.WORD, *self.place(at), token[0]), token.end()
        if token and token[0].lstrip("+-")[:1].isdigit():
            raise self.stop(
                at,
                f"{shown(token[0], 30)} is no JSON number",
                "quote it, or write it without leading zero or sign",
            )
        raise self.expected(at, "a value")

    def string(self, at: int) -> tuple[Raw, int]:
        try:
            value, end = _DECODER.raw_decode(self.text, at)
        except json.JSONDecodeError as cause:
            hint = "write a line break as \\n" if "control character" in cause.msg else "a backslash is doubled: \\\\"
            if "Unterminated" in cause.msg:
                hint = "close it with a double quote"
            raise self.stop(cause.pos, cause.msg.lower().removesuffix(" at"), hint) from None
        return Raw(Form.QUOTED, *self.place(at), value), end

    def sequence(self, at: int, depth: int) -> tuple[Raw, int]:
        raw = Raw(Form.SEQUENCE, *self.place(at))
        at = self.space(at + 1)
        if self.text[at : at + 1] == "]":
            return raw, at + 1
        while True:
            item, at = self.value(at, depth + 1)
            raw.items.append(item)
            at = self.space(at)
            if self.text[at : at + 1] == "]":
                return raw, at + 1
            if self.text[at : at + 1] != ",":
                raise self.expected(at, "a comma or ]")
            at = self.space(at + 1)

    def mapping(self, at: int, depth: int) -> tuple[Raw, int]:
        raw = Raw(Form.MAPPING, *self.place(at))
        at = self.space(at + 1)
        if self.text[at : at + 1] == "}":
            return raw, at + 1
        while True:
            if self.text[at : at + 1] != '"':
                raise self.expected(at, "a key in double quotes")
            key, at = self.string(at)
            at = self.space(at)
            if self.text[at : at + 1] != ":":
                raise self.expected(at, "a colon")
            item, at = self.value(self.space(at + 1), depth + 1)
            raw.entries.append((key, item))
            at = self.space(at)
            if self.text[at : at + 1] == "}":
                return raw, at + 1
            if self.text[at : at + 1] != ",":
                raise self.expected(at, "a comma or }")
            at = self.space(at + 1)


def read_json(text: str, faults: Faults, *, first_line: int = 1) -> Raw | None:
    """The only value of the text; None when it is blank. Raises the faults' error at a syntax fault."""
    reader = _Reader(text, faults, first_line)
    at = reader.space(0)
    if at == len(text):
        return None
    raw, end = reader.value(at, 0)
    end = reader.space(end)
    if end != len(text):
        hint = "one value per line is JSONL: name the file .jsonl, or say --format jsonl" if text[end] in "{[" else None
        raise reader.stop(end, f"{shown(text[end : end + 20])} behind the end of the value", hint or "remove it")
    return raw
