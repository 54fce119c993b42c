"""A backlog from a file or standard input: YAML, JSON, JSONL or a Markdown checklist.

Everything is checked before anything is returned, and all faults are told at once: a backlog is taken whole
or not at all.

- YAML and JSON: a list of tasks, or a mapping with ``tasks:`` and, if wanted, ``defaults:`` (fields that
  every task
  starts from). A task is a mapping, or a text that is its title.
- JSONL: one such task a line; blank lines are skipped.
- Markdown: :mod:`interlock.sources.markdown` says what counts.

The fields are in :mod:`interlock.sources.task_schema`.
"""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import PurePath
from typing import IO

import msgspec

from interlock.domain.errors import InvalidInput, TooLarge
from interlock.domain.task import Task
from interlock.sources.checks import Member, PlacedTask, Reading, check_together
from interlock.sources.faults import Faults, nearest, shown
from interlock.sources.json_reader import read_json
from interlock.sources.markdown import read_markdown
from interlock.sources.placed import Node
from interlock.sources.raw import Raw
from interlock.sources.task_schema import TASK_FIELDS, Fields, read_defaults, read_task
from interlock.sources.text import decode, read_bytes, source_name
from interlock.sources.yaml_reader import read_yaml

MAX_TASKS = 1_000_000


class BacklogFormat(StrEnum):
    """How a backlog is written."""

    YAML = "yaml"
    JSON = "json"
    JSONL = "jsonl"
    MARKDOWN = "markdown"


_EXTENSIONS = {
    ".yaml": BacklogFormat.YAML,
    ".yml": BacklogFormat.YAML,
    ".json": BacklogFormat.JSON,
    ".jsonl": BacklogFormat.JSONL,
    ".ndjson": BacklogFormat.JSONL,
    ".md": BacklogFormat.MARKDOWN,
    ".markdown": BacklogFormat.MARKDOWN,
}
_BOX_AT_MARGIN = re.compile(r"^(?:[-*+]|[0-9]{1,9}[.)])[ \t]+\[[ xX]\](?:[ \t]|$)", re.MULTILINE)
_JSON_START = re.compile(r'\s*(?:"|[\[{]\s*["\[{\]}0-9-])')
_HOW = {
    BacklogFormat.YAML: "write a list: `- title: what is to be done`",
    BacklogFormat.JSON: 'write a list: [{"title": "what is to be done"}]',
    BacklogFormat.JSONL: 'write one task a line: {"title": "what is to be done"}',
    BacklogFormat.MARKDOWN: "write `- [ ] what is to be done` for every task",
}


class DoneTask(msgspec.Struct, frozen=True, kw_only=True):
    """A ticked box of a checklist: not run, and a need on its id is met."""

    title: str
    line: int
    id: str | None = None


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """What a file asks for. ``source`` is the file's name as messages show it."""

    source: str
    format: BacklogFormat
    tasks: list[PlacedTask]
    skipped_done: list[DoneTask] = []


def read_backlog(
    path: str,
    *,
    stdin: IO[bytes] | None = None,
    format: str | None = None,  # noqa: A002 - the option's name
    now_ms: int,
) -> Backlog:
    """The tasks of a file; ``-`` is standard input.

    ``format`` (a BacklogFormat, or an extension's name such as ``md``) wins over the extension; without
    either the text is looked at. ``now_ms``: Unix milliseconds that ``not_before: in 10m`` counts from.

    Raises NotFound, TooLarge, or InvalidInput whose message has a line ``FILE:LINE: field: problem`` for
    each fault.
    """
    wanted = _format(format)
    data = read_bytes(path, stdin=stdin)
    return parse_backlog(
        data,
        source=source_name(path),
        format=wanted or _EXTENSIONS.get(PurePath(path).suffix.lower()),
        now_ms=now_ms,
    )


def parse_backlog(
    data: bytes,
    *,
    source: str,
    format: BacklogFormat | None = None,  # noqa: A002 - as above
    now_ms: int,
) -> Backlog:
    """As :func:`read_backlog`, from bytes."""
    collecting = gc.isenabled()
    # A large file makes millions of nodes that all live to the end and hold no cycles: collecting them doubles
    # the time and frees nothing.
    gc.disable()
    try:
        return _parse(data, source, format, now_ms)
    finally:
        if collecting:
            gc.enable()


def _parse(data: bytes, source: str, format: BacklogFormat | None, now_ms: int) -> Backlog:  # noqa: A002
    faults = Faults(source)
    text = decode(data, faults)
    kind = format or _sniff(text)
    if kind is BacklogFormat.MARKDOWN:
        reading = _from_markdown(text, faults, now_ms)
    elif kind is BacklogFormat.JSONL:
        reading = _from_lines(text, faults, now_ms)
    else:
        read = read_yaml if kind is BacklogFormat.YAML else read_json
        reading = _from_tree(read(text, faults), kind, faults, now_ms)
    check_together(reading, faults)
    if not reading.open and not faults.count:
        problem = "no task is open: all are ticked off" if reading.done else "there is no task in it"
        faults.add(1, 1, "", problem, _HOW[kind])
    faults.check()
    tasks = [PlacedTask(task=each.task, line=each.node.line, path=each.node.path) for each in reading.open]
    done = [DoneTask(title=each.task.title, line=each.node.line, id=each.task.id) for each in reading.done]
    done_ids = {each.id for each in done if each.id is not None}
    if done_ids:
        tasks = [_without_needs(placed, done_ids) for placed in tasks]
    return Backlog(source=faults.source, format=kind, tasks=tasks, skipped_done=done)


def task_keys(tasks: Sequence[Task]) -> list[str]:
    """What each task of a backlog is recognised by when the backlog is read again.

    ``id:<id>`` where it has one, else ``hash:<content hash>``; equal ones get ``#2``, ``#3`` in the order
    of the file.
    """
    seen: Counter[str] = Counter()
    keys = []
    for task in tasks:
        key = f"hash:{task.content_hash()}" if task.id is None else f"id:{task.id}"
        seen[key] += 1
        # an id is never numbered in a checked backlog, and "id:a#2" could not be told from the id "a#2"
        keys.append(key if task.id is not None or seen[key] == 1 else f"{key}#{seen[key]}")
    return keys


def _format(name: str | None) -> BacklogFormat | None:
    if name is None:
        return None
    extension = _EXTENSIONS.get(f".{name.lower().removeprefix('.')}")
    known = [each.value for each in BacklogFormat]
    if extension is None and name.lower() not in known:
        near = nearest(name, known)
        raise InvalidInput(
            f"{shown(name)} is no backlog format",
            hint=f"did you mean {near}?" if near else f"one of {', '.join(known)}",
        )
    return extension or BacklogFormat(name.lower())


def _sniff(text: str) -> BacklogFormat:
    """The format of a text without a name. A box at the margin is never good YAML, so it means Markdown."""
    if _JSON_START.match(text):
        lines = [line for line in text.split("\n") if line.strip()]
        try:
            # several lines of which the first is whole
            whole = len(lines) > 1 and read_json(lines[0], Faults("")) is not None
        except (InvalidInput, TooLarge):
            whole = False
        return BacklogFormat.JSONL if whole or text.lstrip().startswith('"') else BacklogFormat.JSON
    return BacklogFormat.MARKDOWN if _BOX_AT_MARGIN.search(text) else BacklogFormat.YAML


def _from_tree(raw: Raw | None, kind: BacklogFormat, faults: Faults, now_ms: int) -> Reading:
    reading = Reading()
    if raw is None or raw.absent:
        return reading
    root = Node(raw, faults)
    defaults: Fields = {}
    defaults_node = None
    if root.is_mapping:
        if any(key.text == "title" for key, _ in raw.entries) and not any(
            key.text == "tasks" for key, _ in raw.entries
        ):
            root.fault("a list of tasks is expected, found one task", _HOW[kind])
            return reading
        parts = root.mapping(("tasks", "defaults"))
        # under an unknown or a doubled key there may be tasks, too
        reading.unnamed = faults.count > 0
        if "defaults" in parts and not parts["defaults"].absent:
            defaults_node = parts["defaults"]
            defaults = read_defaults(defaults_node, now_ms=now_ms)
        if "tasks" not in parts or parts["tasks"].absent:
            return reading
        root = parts["tasks"]
    if not root.is_sequence:
        root.fault("a list of tasks is expected", f"{_HOW[kind]}; --format names another format")
        return reading
    _bounded(len(root.raw.items), faults)
    for at, item in enumerate(root.raw.items):
        node = Node(item, faults, None, f"tasks[{at}]")
        task = read_task(node, now_ms=now_ms, defaults=defaults)
        if task:
            reading.open.append(Member(task=task, node=node, defaults=defaults_node))
        else:
            reading.lost(node, TASK_FIELDS)
    return reading


def _from_lines(text: str, faults: Faults, now_ms: int) -> Reading:
    reading = Reading()
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            raw = read_json(line, faults, first_line=number)
        except InvalidInput:
            reading.unnamed = True
            continue  # noted among the faults; the other lines may have more
        if raw is None:
            continue
        node = Node(raw, faults)
        task = read_task(node, now_ms=now_ms)
        if task:
            reading.open.append(Member(task=task, node=node))
        else:
            reading.lost(node, TASK_FIELDS)
    _bounded(len(reading.open), faults)
    return reading


def _from_markdown(text: str, faults: Faults, now_ms: int) -> Reading:
    boxes = read_markdown(text, faults)
    # a near miss, a fence that is not closed, an id that is there twice: any of them may hide an id
    reading = Reading(unnamed=faults.count > 0)
    for box in boxes:
        node = Node(box.raw, faults)
        task = read_task(node, now_ms=now_ms) if box.titled else None
        if task is None:
            reading.lost(node, TASK_FIELDS)
        else:
            (reading.done if box.done else reading.open).append(Member(task=task, node=node))
    _bounded(len(reading.open), faults)
    return reading


def _bounded(count: int, faults: Faults) -> None:
    if count > MAX_TASKS:
        raise TooLarge(f"{faults.source}: {count} tasks, at most {MAX_TASKS} fit", hint="split it into several files")


def _without_needs(placed: PlacedTask, done: set[str]) -> PlacedTask:
    """Without the needs that a ticked box has met already."""
    needs = tuple(need for need in placed.task.needs if need not in done)
    return msgspec.structs.replace(placed, task=msgspec.structs.replace(placed.task, needs=needs))
