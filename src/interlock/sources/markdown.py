"""A Markdown checklist as a backlog.

What is a task
    A list item with a box: ``- [ ] title`` (also ``*``, ``+``, ``1.``, ``1)``). ``- [x]`` is done: listed,
    not run. Lines below that are indented deeper than the item's mark are its content, without their common
    indentation; boxes among them belong to the content. An indented box that stands under no task (under a
    plain bullet, say) is a task of its own: dropping it silently would be worse.

What is no task
    Headings, prose, plain bullets, quotes, fenced code and ``<!-- comments -->`` outside of a task's content.

In the title line
    ``#tag`` (starts with a letter, so ``#123`` stays an issue number in the title), ``!3`` or ``!-1``
    (priority), ``id: name``, ``needs: id, id``. They are taken out of the title. Nothing else is:
    ``timeout: 5m`` stays text. Inside `` `code` `` and behind a backslash (``\\#``, ``\\!``) nothing is
    taken.

What is a fault rather than prose
    Near misses that were surely meant as tasks: ``- []``, ``-[ ]``, ``- [ ]title``, ``- [-] title``; a box
    without title; a fence in the content that is not closed before the indentation ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import msgspec

from interlock.sources.faults import Faults, shown
from interlock.sources.raw import Form, Raw

TAB = 4
MAX_TITLE_LINE = 10_000
_ITEM = re.compile(r"([ \t]*)((?:[-*+]|[0-9]{1,9}[.)])[ \t]+\[([ xX])\])(?:[ \t]+(.*))?$")
_NEAR_ITEM = re.compile(
    r"[ \t]*(?:[-*+]|[0-9]{1,9}[.)])(?:[ \t]*\[\]|\[[ xX]\]|[ \t]+\[[ xX]\](?![(\[:])|[ \t]+\[[^\w\s]\][ \t])"
)
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_CODE = re.compile(r"(`+)(?:(?!`).)+?\1(?!`)")
_START = r"(?<!\S)"
_NEEDS = re.compile(_START + r"needs:[ \t]*([^\s,]+(?:[ \t]*,[ \t]*[^\s,]+)*)?")
_ID = re.compile(_START + r"id:[ \t]*(\S+)?")
_PRIORITY = re.compile(_START + r"!(-?[0-9]+)(?!\S)")
_TAG = re.compile(_START + r"#([^\W\d_][\w/-]*(?:\.\w+)*),?(?=[\s.;:!?)]|$)")
_ESCAPED = re.compile(r"\\([#!])")
_BOX_HINT = "write `- [ ] title` or `- [x] title`"


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """One item with a box: its fields in the form of the schema, its line, whether it is done."""

    raw: Raw
    line: int
    done: bool
    titled: bool = True


def _indent(line: str) -> int:
    head = line[: len(line) - len(line.lstrip(" \t"))]
    return len(head.expandtabs(TAB))


def _without(line: str, columns: int) -> str:
    """The line without so many columns of its indentation; a tab beyond them stays a tab."""
    width = 0
    for at, each in enumerate(line):
        if width >= columns or each not in " \t":
            return " " * (width - columns) + line[at:]
        width += TAB - width % TAB if each == "\t" else 1
    return " " * (width - columns)


def _closes(fence: str, line: str) -> bool:
    bare = line.strip()
    return len(bare) >= len(fence) and bare == bare[:1] * len(bare) and bare[:1] == fence[0]


def read_markdown(text: str, faults: Faults) -> list[Box]:
    """The boxes of a checklist, in order. Near misses and unclosed fences are noted as faults."""
    lines = text.split("\n")
    boxes = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if item := _ITEM.match(line):
            end, content = _content(lines, at + 1, _indent(line), faults)
            boxes.append(_box(item, at + 1, content, faults))
            at = end
            continue
        if _NEAR_ITEM.match(line):
            faults.add(at + 1, 1, "", f"{shown(line.strip())} is nearly a task", _BOX_HINT)
        elif fence := _FENCE.match(line):
            at = _behind(lines, at, "a code fence", faults, partial(_closes, fence[1]))
        elif line.lstrip().startswith("<!--") and "-->" not in line:
            at = _behind(lines, at, "a comment", faults, lambda each: "-->" in each)
        at += 1
    return boxes


def _behind(lines: list[str], start: int, what: str, faults: Faults, ends: Callable[[str], bool]) -> int:
    """The line that ends what starts here. Without one every task below would vanish: a fault."""
    for at in range(start + 1, len(lines)):
        if ends(lines[at]):
            return at
    faults.add(start + 1, 1, "", f"{what} starts here and is never closed", "close it")
    return len(lines)


def _content(lines: list[str], start: int, indent: int, faults: Faults) -> tuple[int, str]:
    """Index behind the lines that belong to the item, and its content."""
    fence, fence_line = "", 0
    at = start
    while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) > indent):
        found = _FENCE.match(lines[at])
        if fence:
            fence = "" if _closes(fence, lines[at]) else fence
        elif found:
            fence, fence_line = found[1], at + 1
        at += 1
    if fence:
        faults.add(
            fence_line,
            1,
            "content",
            "a code fence starts here and is not closed within the task",
            "close it, and indent its lines like the fence",
        )
    block = lines[start:at]
    common = min((_indent(line) for line in block if line.strip()), default=0)
    return at, "\n".join(_without(line, common) if line.strip() else "" for line in block).strip("\n")


def _box(item: re.Match[str], line: int, content: str, faults: Faults) -> Box:
    """Fields of an item: the words that the title line carries are taken out of it."""
    written = (item[4] or "").rstrip()
    column = item.start(4) + 1 if item[4] else item.end(2) + 1
    raw = Raw(Form.MAPPING, line, column)
    if len(written) > MAX_TITLE_LINE:
        problem = f"has {len(written)} characters, at most {MAX_TITLE_LINE} fit on the line"
        faults.add(line, column, "title", problem, "put the rest on indented lines below: they are the content")
        return Box(raw=raw, line=line, done=item[3] != " ", titled=False)
    open_text = _CODE.sub(lambda code: "\0" * len(code[0]), written)
    cuts: list[tuple[int, int]] = []

    def take(pattern: re.Pattern[str]) -> list[Raw]:
        nonlocal open_text
        found = []
        for match in pattern.finditer(open_text):
            value = written[match.start(1) : match.end(1)] if match[1] else ""
            form = Form.PLAIN if pattern is _PRIORITY else Form.QUOTED
            found.append(Raw(form, line, column + max(match.start(1), match.start()), value))
            cuts.append(match.span())
        open_text = pattern.sub(lambda match: " " * len(match[0]), open_text)
        return found

    for key, pattern in (("needs", _NEEDS), ("id", _ID), ("priority", _PRIORITY)):
        values = take(pattern)
        if len(values) > 1:
            faults.add(line, values[1].column, key, "is there twice on this line", "keep one of them")
        for value in values[:1]:
            if not value.text:
                hint = f"name one, or write `{key}:` in backticks if it is part of the title"
                faults.add(line, value.column, key, "names nothing", hint)
                continue
            _put(raw, key, _listed(value) if key == "needs" else value)
    tags = Raw(Form.SEQUENCE, line, column)
    tags.items = take(_TAG)
    if tags.items:
        _put(raw, "tags", tags)
    title = " ".join(piece for piece in _left(written, cuts) if piece)
    if not title:
        faults.add(line, column, "title", "is empty", "write what is to be done behind the box")
    else:
        _put(raw, "title", Raw(Form.QUOTED, line, column, _ESCAPED.sub(r"\1", title)))
    if content:
        _put(raw, "content", Raw(Form.QUOTED, line + 1, 1, content))
    return Box(raw=raw, line=line, done=item[3] != " ", titled=bool(title))


def _listed(value: Raw) -> Raw:
    listed = Raw(Form.SEQUENCE, value.line, value.column)
    listed.items = [Raw(Form.QUOTED, value.line, value.column, part.strip()) for part in value.text.split(",")]
    return listed


def _put(raw: Raw, key: str, value: Raw) -> None:
    raw.entries.append((Raw(Form.QUOTED, value.line, value.column, key), value))


def _left(written: str, cuts: list[tuple[int, int]]) -> list[str]:
    """What stands between the cuts."""
    pieces, start = [], 0
    for begin, end in sorted(cuts):
        pieces.append(written[start:begin].strip())
        start = end
    pieces.append(written[start:].strip())
    return pieces
