"""A task: what is to be done. A value without state."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

PRIORITY_LIMIT = 1_000_000
"""Priorities lie within -PRIORITY_LIMIT..PRIORITY_LIMIT; higher goes first."""


class TaskContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What an agent needs to know beside the title (second seed, section 4)."""

    description: str | None = None
    files: tuple[str, ...] = ()
    related: tuple[str, ...] = ()
    criteria: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    source_url: str | None = None
    extra: dict[str, Any] = {}


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing to do.

    Unknown keys of a stored one are passed over: another version may have written it. Faults in what people write are found
    where it comes in (:mod:`interlock.sources`).

    ``id`` is the author's own name for it, unique within a backlog; ``needs`` lists such ids (or run ids).
    ``priority``: higher first. ``timeout_ms``: wall-clock milliseconds for one attempt; ``stall_ms``: milliseconds
    without output and without CPU time; ``not_before_ms``: Unix milliseconds. ``unique``: at most one unfinished
    run carries the same key.
    """

    title: str
    id: str | None = None
    content: str = ""
    context: TaskContext = TaskContext()
    priority: int = 0
    tags: tuple[str, ...] = ()
    project: str | None = None
    tracker: str | None = None
    role: str | None = None
    type: str | None = None
    agent: str | None = None
    needs: tuple[str, ...] = ()
    timeout_ms: int | None = None
    stall_ms: int | None = None
    not_before_ms: int | None = None
    unique: str | None = None
    metadata: dict[str, Any] = {}

    def content_hash(self) -> str:
        """Hash of the text that an agent would be given (16 hex digits): what makes a task *the same task*."""
        text = msgspec.json.encode([self.title, self.content, self.context], order="deterministic")
        return hashlib.sha256(text).hexdigest()[:16]


class UnreadableTask(Task, frozen=True, kw_only=True, omit_defaults=True):
    """Stands in for a stored task that cannot be read, so that its run can be listed, held and cancelled like any other.

    It is never dispatched and never written back: what is stored stays as it is. ``fault`` says what is wrong with it.
    """

    fault: str = ""
