"""The fields of a task in a backlog: how each is written, its bounds, and the way back.

The words are those of DESIGN section 1 and of the second seed's ``TaskContext``. What a field means is the
business of :class:`interlock.domain.task.Task`; here it is only read and written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from interlock.domain.errors import InvalidInput
from interlock.domain.task import PRIORITY_LIMIT, Task, TaskContext
from interlock.sources.durations import exact_duration, parse_duration
from interlock.sources.placed import Node

MAX_TITLE = 500
MAX_CONTENT_BYTES = 1024 * 1024
MAX_TAGS = 64
MAX_NAME = 100
MAX_ID = 200
MAX_LIST = 1000
MAX_ENTRY = 4096
MAX_METADATA_BYTES = 256 * 1024

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?) ?(Z|[+-]\d\d:?\d\d)?", re.ASCII)

Fields = dict[str, Any]
"""Fields of a task by the names of ``Task``'s attributes; ``context`` again by those of ``TaskContext``."""


def parse_moment(text: str, *, now_ms: int) -> int:
    """Unix milliseconds of ``2026-07-01T09:00Z``, ``2026-07-01 09:00+02:00`` or ``in 10m``.

    Raises InvalidInput with a hint: no time zone, a date alone, another form. A time without zone is refused
    because it would start elsewhere when the backlog moves to another machine.
    """
    wanted = text.strip()
    if wanted.startswith("in "):
        return now_ms + parse_duration(wanted[3:])
    if _DATE.fullmatch(wanted):
        raise InvalidInput("is a date without a time", hint=f"write {wanted}T09:00Z or {wanted}T09:00+02:00")
    found = _MOMENT.fullmatch(wanted)
    if found is None:
        raise InvalidInput("is not a time", hint="write 2026-07-01T09:00Z, or from now: in 10m")
    if found[3] is None:
        raise InvalidInput("has no time zone", hint=f"add Z (UTC) or an offset: {wanted}Z")
    try:
        moment = datetime.fromisoformat(f"{found[1]}T{found[2]}{found[3]}")
        since = moment - _EPOCH
    except (ValueError, OverflowError):
        raise InvalidInput("is not in the calendar", hint="write 2026-07-01T09:00Z") from None
    if since < timedelta(0):
        raise InvalidInput("lies before 1970", hint="leave it out to start at once")
    return since // timedelta(milliseconds=1)


def _content(node: Node) -> str | None:
    return node.text(most=MAX_CONTENT_BYTES, most_bytes=MAX_CONTENT_BYTES)


def _entry(node: Node) -> str | None:
    return node.line_of_text(most=MAX_ENTRY)


def _entries(node: Node) -> tuple[str, ...]:
    return node.several(_entry, most=MAX_LIST)


def _once(values: tuple[str, ...]) -> tuple[str, ...]:
    """Without doubles: a tag that is written twice takes one slot."""
    return tuple(dict.fromkeys(values))


def _criteria(node: Node) -> tuple[str, ...]:
    return node.several(lambda one: one.text(most=MAX_ENTRY, empty=False), most=MAX_LIST)


def _name(node: Node) -> str | None:
    return node.name(most=MAX_NAME)


def _id(node: Node) -> str | None:
    return node.name(most=MAX_ID)


def _not_before(node: Node, now_ms: int) -> int | None:
    value = node.name(most=MAX_NAME)
    if value is None:
        return None
    try:
        return parse_moment(value, now_ms=now_ms)
    except InvalidInput as cause:
        node.fault(f'"{value}" {cause.message}', cause.hint)
        return None


_CONTEXT: dict[str, tuple[str, Callable[[Node], Any]]] = {
    "description": ("description", _content),
    "files": ("files", _entries),
    "related": ("related", _entries),
    "criteria": ("criteria", _criteria),
    "labels": ("labels", _entries),
    "sourceUrl": ("source_url", _entry),
    "extra": ("extra", lambda node: node.free_mapping(most_bytes=MAX_METADATA_BYTES)),
}

_TASK: dict[str, tuple[str, Callable[[Node], Any]]] = {
    "id": ("id", _id),
    "title": ("title", lambda node: node.line_of_text(most=MAX_TITLE)),
    "content": ("content", _content),
    "context": ("context", lambda node: _read(node, _CONTEXT)),
    "priority": ("priority", lambda node: node.integer(low=-PRIORITY_LIMIT, high=PRIORITY_LIMIT)),
    "tags": ("tags", lambda node: _once(node.several(_name, most=MAX_TAGS))),
    "project": ("project", _name),
    "tracker": ("tracker", _name),
    "role": ("role", _name),
    "type": ("type", _name),
    "agent": ("agent", _name),
    "needs": ("needs", lambda node: _once(node.several(_id, most=MAX_LIST))),
    "timeout": ("timeout_ms", lambda node: node.duration()),
    "stall": ("stall_ms", lambda node: node.duration()),
    "not_before": (
        "not_before_ms",
        lambda node: _not_before(node, 0),
    ),  # read_fields puts the present time in
    "unique": ("unique", _id),
    "metadata": ("metadata", lambda node: node.free_mapping(most_bytes=MAX_METADATA_BYTES)),
}

TASK_FIELDS: tuple[str, ...] = tuple(_TASK)
"""The names that a task in a backlog may use."""


def _read(node: Node, schema: dict[str, tuple[str, Callable[[Node], Any]]]) -> Fields:
    fields = {}
    for key, value in node.mapping(schema).items():
        name, read = schema[key]
        # null is the same as not there: exports write it for every empty field
        if not value.absent and (found := read(value)) is not None:
            fields[name] = found
    return fields


def read_fields(node: Node, *, now_ms: int) -> Fields:
    """The fields of a mapping; what is at fault is noted and left out."""
    return _read(node, {**_TASK, "not_before": ("not_before_ms", lambda value: _not_before(value, now_ms))})


def read_defaults(node: Node, *, now_ms: int) -> Fields:
    """``defaults:`` of a backlog: any field but those that only one task can have."""
    fields = read_fields(node, now_ms=now_ms)
    for own in ("id", "title", "unique"):
        if fields.pop(own, None) is not None:
            node.fault(f"{own} cannot be a default", "every task has its own: write it there")
    return fields


def read_task(node: Node, *, now_ms: int, defaults: Fields | None = None) -> Task | None:
    """The task of a mapping, or of a text that is its title. None after a fault.

    A field of the task replaces that of ``defaults``; ``context`` and ``metadata`` are joined key by key.
    """
    before = node.faults.count
    if node.is_mapping:
        own = read_fields(node, now_ms=now_ms)
        if "title" not in own and node.faults.count == before:
            node.fault("has no title", "add `title: what is to be done`")
    elif node.scalar and not node.absent:
        title = node.line_of_text(most=MAX_TITLE)
        own = {} if title is None else {"title": title}
    else:
        node.fault("a task is expected" + (", it is empty" if node.absent else ", found a list"), _ITEM_HINT)
        own = {}
    if node.faults.count != before:
        return None
    fields = {**(defaults or {}), **own}
    for joined in ("context", "metadata"):
        if joined in fields:
            fields[joined] = {**(defaults or {}).get(joined, {}), **own.get(joined, {})}
    if "context" in fields:
        fields["context"] = TaskContext(**fields["context"])
    return Task(**fields)


_ITEM_HINT = "write a title, or a mapping with `title:`"


def task_fields(task: Task) -> dict[str, Any]:
    """The way back: a plain dict that, written as YAML or JSON, :func:`read_task` reads to an equal task."""
    written: dict[str, Callable[[Any], Any]] = {
        "context": lambda context: _written(context, TaskContext(), _CONTEXT, {}),
        "timeout": exact_duration,
        "stall": exact_duration,
        "not_before": write_moment,
    }
    return _written(task, Task(title=""), _TASK, written)


def _written(
    value: Any, default: Any, schema: dict[str, tuple[str, Any]], written: dict[str, Callable[[Any], Any]]
) -> dict[str, Any]:
    result = {}
    for key, (name, _) in schema.items():
        found = getattr(value, name)
        if found != getattr(default, name):
            found = written[key](found) if key in written else found
            result[key] = list(found) if isinstance(found, tuple) else found
    return result


def write_moment(ms: int) -> str:
    """ISO 8601 in UTC of Unix milliseconds: ``2026-07-01T09:00:00.000Z``."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
