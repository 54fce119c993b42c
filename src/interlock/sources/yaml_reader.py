"""YAML text -> :class:`Raw` tree, from the parser's events.

Events rather than composed nodes: depth, aliases and tags are bounded before anything is built, nothing
recurses, and no value passes through YAML 1.1 resolution (where ``no`` is false and ``007`` is 7).
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from interlock.domain.errors import InterlockError
from interlock.sources.faults import Faults, shown
from interlock.sources.raw import MAX_DEPTH, MAX_NODES, Form, Raw, too_many_nodes
from interlock.sources.text import MAX_FILE_BYTES, place

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# the first three break a line for YAML but for no editor: lines would be miscounted, texts silently cut
_NOT_YAML = re.compile("[\x85\u2028\u2029\ufeff\ufffe\uffff]")
_FORMS = {True: Form.PLAIN, False: Form.QUOTED}


class _Tree:
    """Builds the tree of one document."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.root: Raw | None = None
        self.open: list[tuple[Raw, list[Raw]]] = []  # container, and the key that waits for its value
        self.anchors: dict[str, Raw] = {}
        self.aliased = 0
        self.nodes = 0

    def place(self, raw: Raw) -> None:
        """Puts a node into the container that is open."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise too_many_nodes(self.faults)
        if not self.open:
            self.root = raw
            return
        container, waiting = self.open[-1]
        if container.form is Form.SEQUENCE:
            container.items.append(raw)
        elif waiting:
            container.entries.append((waiting.pop(), raw))
        else:
            waiting.append(raw)

    def event(self, event: Any) -> None:
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        if isinstance(event, yaml.AliasEvent):
            self.alias(str(event.anchor), line, column)
        elif isinstance(event, yaml.ScalarEvent):
            self.no_tag(event, line, column)
            # a plain scalar has no style; every other has its quote or its block mark
            raw = Raw(_FORMS[not event.style], line, column, event.value)
            self.keep(event.anchor, raw)
            self.place(raw)
            self.weigh(raw)
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            self.no_tag(event, line, column)
            if len(self.open) >= MAX_DEPTH:
                raise self.faults.fatal(
                    line, column, f"column {column}: nested more than {MAX_DEPTH} deep", "flatten it"
                )
            form = Form.MAPPING if isinstance(event, yaml.MappingStartEvent) else Form.SEQUENCE
            raw = Raw(form, line, column)
            self.keep(event.anchor, raw)
            self.place(raw)
            self.open.append((raw, []))
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            raw, _ = self.open.pop()
            self.weigh(raw)
        elif isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            raise self.faults.fatal(
                line, column, "a second document starts here", "one file holds one document: remove the ---"
            )

    def keep(self, anchor: str | None, raw: Raw) -> None:
        if anchor:
            self.anchors[anchor] = raw

    def weigh(self, raw: Raw) -> None:
        if self.open:
            self.open[-1][0].weight += raw.weight

    def alias(self, anchor: str, line: int, column: int) -> None:
        target = self.anchors.get(anchor)
        if target is None:
            raise self.faults.fatal(
                line,
                column,
                f"column {column}: *{anchor} names no anchor above it",
                'quote a text that starts with "*"',
            )
        if any(container is target for container, _ in self.open):
            raise self.faults.fatal(line, column, f"column {column}: *{anchor} contains itself", "write it out")
        self.aliased += target.weight
        if self.aliased > MAX_FILE_BYTES:
            raise self.faults.fatal(line, column, "aliases blow the file up too far", "write fewer aliases")
        self.place(target)
        self.weigh(target)

    def no_tag(self, event: Any, line: int, column: int) -> None:
        if event.tag is not None:
            tag = shown(str(event.tag).replace("tag:yaml.org,2002:", "!!"))
            raise self.faults.fatal(
                line,
                column,
                f"column {column}: tags such as {tag} are not taken",
                "remove it; quote what is to be text",
            )


def read_yaml(text: str, faults: Faults) -> Raw | None:
    """The only document of the text; None when there is none.

    Raises the faults' error for what no reader could go on behind: syntax, tags, depth, a second document;
    TooLarge for millions of values.
    """
    odd = _NOT_YAML.search(text)
    if odd:
        line, column = place(text, odd.start())
        raise faults.fatal(
            line,
            column,
            f"column {column}: character U+{ord(odd[0]):04X} cannot stand in YAML as it is",
            f'remove it, or write it as "\\u{ord(odd[0]):04x}" in double quotes',
        )
    tree = _Tree(faults)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            tree.event(event)
    except yaml.MarkedYAMLError as cause:
        raise _syntax(text, cause, faults) from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as cause:
        # PyYAML lets ValueError out for escapes such as "\U00110000"
        raise faults.fatal(1, 1, f"not YAML: {shown(str(cause), 200)}", "check the file with another tool") from None
    return tree.root


def _syntax(text: str, cause: yaml.MarkedYAMLError, faults: Faults) -> InterlockError:
    """The parser's complaint as one sentence, and the usual slip behind it."""
    mark = cause.problem_mark or cause.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    problem = cause.problem or "not YAML"
    if cause.context and cause.context_mark and cause.context_mark.line + 1 != line:
        problem += f" {cause.context} that starts on line {cause.context_mark.line + 1}"
    lines = text.split("\n")
    rest = lines[line - 1][column - 1 :] if line <= len(lines) else ""
    hint = "check indentation, quotes and brackets here and on the line above"
    if rest.startswith("\t"):
        hint = "indent with spaces, not with a tab"
    elif "mapping values are not allowed" in problem:
        hint = 'a text with ": " in it needs quotes'
    elif "cannot start any token" in problem:
        hint = f"quote a text that starts with {rest[:1]}"
    elif "escape" in problem:
        hint = "use single quotes, or double the backslash"
    elif "end of stream" in problem:
        hint = "a quote or bracket is not closed"
    return faults.fatal(line, column, f"column {column}: {problem}", hint)
