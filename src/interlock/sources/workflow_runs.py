"""Rows of a ``workflow_runs`` table, as a gateway dispatcher of another make keeps them or leaves them in its pickup file.

Its form is written down nowhere, so it is read by what fields are called: the names below, also in camelCase. Whatever else there
is stays with the task, in its metadata under ``imported``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from interlock.domain.settings import MINUTE
from interlock.domain.task import PRIORITY_LIMIT, Task, TaskContext
from interlock.sources.faults import Faults, nearest, shown
from interlock.sources.placed import Node
from interlock.sources.raw import Form, Raw
from interlock.sources.records import Record
from interlock.sources.task_schema import MAX_CONTENT_BYTES, MAX_ID, MAX_METADATA_BYTES, MAX_NAME, MAX_TAGS, MAX_TITLE

IDS = ("id", "run_id", "workflow_run_id")
TYPES = ("workflow_type", "type")
TITLES = ("title", "name")
TEXTS = ("description",)
INPUTS = ("input", "payload", "params", "context")
IMPORTED = "imported"
LONGEST_MINUTES = 10 * 366 * 1440
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
LATEST_MS = 253_402_300_800_000
"""The end of the year 9999."""
_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?")
_ARRAY = re.compile(r"\{[^{}:]*\}")


class OldState(StrEnum):
    """What a status means for whoever takes the run over."""

    WAITING = "waiting"
    IN_FLIGHT = "in flight"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing happens to it any more."""
        return self not in (OldState.WAITING, OldState.IN_FLIGHT)


STATUSES = {
    **dict.fromkeys(("queued", "pending", "waiting"), OldState.WAITING),
    **dict.fromkeys(("dispatched", "claimed", "running", "in_progress", "started"), OldState.IN_FLIGHT),
    **dict.fromkeys(("completed", "done", "succeeded", "success"), OldState.COMPLETED),
    **dict.fromkeys(("failed", "error"), OldState.FAILED),
    **dict.fromkeys(("timed_out", "timeout"), OldState.TIMED_OUT),
    **dict.fromkeys(("cancelled", "canceled"), OldState.CANCELLED),
}
"""The words for a status, and what they mean."""


class OldRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the other dispatcher: the task, by what it is known again, and how it stood there.

    ``status`` is the word that stood there, empty for none; ``created_ms``: Unix milliseconds.
    """

    record: int
    line: int
    key: str
    task: Task
    state: OldState
    status: str
    created_ms: int | None = None


class Reader:
    """Reads the records of one file in their order. ``status_needed``: a record without one is at fault, not waiting."""

    def __init__(self, faults: Faults, *, status_needed: bool) -> None:
        self.faults = faults
        self._status_needed = status_needed
        self._ids: dict[str, int] = {}
        self._hashes: Counter[str] = Counter()

    def read(self, record: Record) -> OldRun | None:
        """The run of a record. None after a fault, which is noted."""
        before = self.faults.count
        row = _Row(record, self.faults)
        if not row.mapping:
            return None
        old_id = row.name(IDS, MAX_ID)
        title, content = row.texts(old_id)
        task = Task(
            id=old_id,
            title=title,
            content=content,
            context=TaskContext(extra=row.inputs),
            type=row.name(TYPES, MAX_NAME),
            agent=row.name(("agent_id",), MAX_NAME),
            priority=row.integer("priority", -PRIORITY_LIMIT, PRIORITY_LIMIT) or 0,
            tags=row.tags(),
            timeout_ms=row.minutes("timeout_minutes"),
        )
        status, state = row.status(needed=self._status_needed)
        created_ms = row.moment("created_at")
        task = msgspec.structs.replace(task, metadata={IMPORTED: row.imported()})
        if self.faults.count != before:
            return None
        key = self._key(row, task)
        if self.faults.count != before:
            return None
        return OldRun(
            record=record.number,
            line=record.line,
            key=key,
            task=task,
            state=state,
            status=status,
            created_ms=created_ms,
        )

    def _key(self, row: _Row, task: Task) -> str:
        """By its id; without one by its text, equal ones numbered in the order of the file."""
        if task.id is None:
            key = f"hash:{task.content_hash()}"
            self._hashes[key] += 1
            return key if self._hashes[key] == 1 else f"{key}#{self._hashes[key]}"
        first = self._ids.setdefault(task.id, row.record.number)
        if first != row.record.number:
            row.fault(
                row.named(IDS), f"{shown(task.id)} is there twice, first in record {first}", "every run has its own id"
            )
        return f"id:{task.id}"


class _Row:
    """A record, asked for what is known; what was not asked for is left over."""

    def __init__(self, record: Record, faults: Faults) -> None:
        self.record = record
        self.mapping = isinstance(record.fields, Mapping)
        self._faults = faults
        self._names: dict[str, str] = {}
        self._used: set[str] = set()
        if not self.mapping:
            self.fault("", "an object is expected", "write {...} with the fields of a run")
            return
        self._above = Node(_NOTHING, faults, None, self._place)
        for name, value in record.fields.items():
            if value is not None:
                self._names.setdefault(_snake(name), name)

    def fault(self, field: str, problem: str, hint: str | None = None) -> None:
        self._faults.add(self.record.line, 1, f"{self._place}{f'.{field}' if field else ''}", problem, hint)

    def named(self, names: tuple[str, ...]) -> str:
        """The first of the names that the record has, as it is written there; empty for none."""
        for name in names:
            if name in self._names:
                return self._names[name]
        return ""

    def _take(self, names: tuple[str, ...]) -> Node | None:
        written = self.named(names)
        if not written:
            return None
        self._used.add(written)
        return Node(self._raw(self.record.fields[written]), self._faults, self._above, written)

    @property
    def _place(self) -> str:
        return f"record {self.record.number}"

    def _raw(self, value: Any) -> Raw:
        line = self.record.line
        if isinstance(value, str):
            return Raw(Form.QUOTED, line, 1, value)
        if isinstance(value, bool):
            return Raw(Form.WORD, line, 1, str(value).lower())
        if isinstance(value, list):
            raw = Raw(Form.SEQUENCE, line, 1)
            raw.items.extend(map(self._raw, value))
            return raw
        if isinstance(value, dict):
            return Raw(Form.MAPPING, line, 1)
        return Raw(Form.NUMBER, line, 1, str(value))

    # what is known

    def name(self, names: tuple[str, ...], most: int) -> str | None:
        node = self._take(names)
        if node is None or (node.scalar and not node.raw.text.strip()):
            return None
        return node.name(most=most)

    def integer(self, name: str, low: int, high: int) -> int | None:
        node = self._take((name,))
        if node is None:
            return None
        if node.raw.form is Form.QUOTED:
            # A database driver may have made text of it, and CSV is nothing else.
            node.raw.form = Form.PLAIN
        return node.integer(low=low, high=high)

    def minutes(self, name: str) -> int | None:
        found = self.integer(name, 1, LONGEST_MINUTES)
        return None if found is None else found * MINUTE

    def tags(self) -> tuple[str, ...]:
        node = self._take(("tags",))
        if node is None:
            return ()
        if node.raw.form is Form.QUOTED:
            node.raw = self._raw(_listed(node.raw.text))
        return tuple(dict.fromkeys(node.several(lambda one: one.name(most=MAX_NAME), most=MAX_TAGS)))

    def texts(self, old_id: str | None) -> tuple[str, str]:
        """Title and content. A title that is too long, or of several lines, is whole in the content."""
        parts = []
        title_node, text_node = self._take(TITLES), self._take(TEXTS)
        whole = None if title_node is None else title_node.text(most=MAX_CONTENT_BYTES)
        text = None if text_node is None else text_node.text(most=MAX_CONTENT_BYTES, most_bytes=MAX_CONTENT_BYTES)
        wanted = (whole or "").strip() or (text or "").strip() or _of_type(self, old_id)
        title = next(iter(wanted.splitlines()), "").strip()
        if len(title) > MAX_TITLE:
            title = title[: MAX_TITLE - 1] + "…"
        title = title.replace("\t", " ")
        if not title:
            self.fault("", "has neither title, name, description, type nor id", "give it a title")
        if whole is not None and whole.strip() != title:
            parts.append(whole.strip())
        if text is not None and text.strip() and text.strip() != title:
            parts.append(text.strip())
        parts += [f"## {name.capitalize()}\n\n{_readable(value)}" for name, value in self.inputs.items()]
        content = "\n\n".join(parts)
        if len(content.encode("utf-8", "replace")) > MAX_CONTENT_BYTES:
            self.fault(
                "",
                f"its texts and inputs have over {MAX_CONTENT_BYTES} bytes together",
                "put them in a file and name that",
            )
        return title, content

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """What the run was given to work with."""
        found: dict[str, Any] = {}
        for name in INPUTS:
            written = self._names.get(name)
            if written is not None:
                self._used.add(written)
                value = _value(self.record.fields[written])
                if value not in ("", [], {}):
                    found[name] = value
                    self._bounded(written, value)
        return found

    def status(self, *, needed: bool) -> tuple[str, OldState]:
        node = self._take(("status", "state"))
        word = "" if node is None or not node.scalar else node.raw.text.strip()
        if not word:
            if needed:
                self.fault("status", "is missing", f"one of {', '.join(STATUSES)}")
            return "", OldState.WAITING
        found = STATUSES.get(word.lower().replace("-", "_").replace(" ", "_"))
        if found is None:
            near = nearest(word, STATUSES)
            hint = f"did you mean {near}?" if near else f"one of {', '.join(STATUSES)}"
            self.fault(self.named(("status", "state")), f"{shown(word)} is no status that is known", hint)
        return word, found or OldState.WAITING

    def moment(self, name: str) -> int | None:
        node = self._take((name,))
        if node is None or not node.raw.text.strip():
            return None
        at_ms = _moment_ms(node.raw.text.strip()) if node.scalar else None
        if at_ms is None:
            node.fault("is no time", "write 2026-07-01T09:00:00Z, or Unix seconds or milliseconds")
        return at_ms

    def imported(self) -> dict[str, Any]:
        """All that has no place of its own, and what is of interest of the old life."""
        rest = {
            name: _value(value) if self.record.written else value
            for name, value in self.record.fields.items()
            if value is not None and name not in self._used
        }
        for name in ("status", "state", "created_at"):
            if (written := self._names.get(name)) is not None:
                rest[written] = self.record.fields[written]
        self._bounded(IMPORTED, rest)
        return rest

    def _bounded(self, name: str, value: Any) -> None:
        try:
            size = len(msgspec.json.encode(value))
        except (UnicodeEncodeError, ValueError, OverflowError, RecursionError) as error:
            self.fault(name, f"cannot be kept: {error}", "remove it")
            return
        if size > MAX_METADATA_BYTES:
            self.fault(
                name, f"has {size} bytes as JSON, at most {MAX_METADATA_BYTES} fit", "put it in a file and name that"
            )


@lru_cache(1000)
def _snake(name: str) -> str:
    return _CAMEL.sub("_", name[:MAX_NAME]).lower()


_NOTHING = Raw(Form.WORD, 1, 1, "null")


def _of_type(row: _Row, old_id: str | None) -> str:
    kind = row.record.fields.get(row.named(TYPES))
    return " ".join(str(part) for part in (kind, old_id) if part)


def _value(value: Any) -> Any:
    """A value; JSON in a text is taken out of it, as a driver or CSV has put it there."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _readable(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    try:
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    except (UnicodeEncodeError, ValueError, OverflowError, RecursionError):
        # Said where it is kept.
        return ""
    return f"```json\n{text}\n```"


def _listed(text: str) -> Any:
    """The list in a text: as JSON, as PostgreSQL writes arrays, or with commas."""
    if not _ARRAY.fullmatch(text):
        value = _value(text)
        if not isinstance(value, str):
            return value
    inside = text[1:-1] if _ARRAY.fullmatch(text) else text
    return [part for each in inside.split(",") if (part := each.strip().strip('"').strip())]


def _moment_ms(text: str) -> int | None:
    """Unix milliseconds; without a zone it is UTC, as tables of servers are."""
    if _NUMBER.fullmatch(text):
        # 1e11 seconds are the year 5138, as many milliseconds 1973.
        at = float(text) if float(text) > 1e11 else float(text) * 1000
        return int(at) if at < LATEST_MS else None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    at_ms = int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
    return at_ms if at_ms >= 0 else None
