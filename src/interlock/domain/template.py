"""Templates of tasks, as they are found."""

from __future__ import annotations

from typing import Any

import msgspec


class TaskTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A template that is there. ``parameters``: names that it asks for. ``configured``: by interlock.yaml, which goes first."""

    name: str
    task: dict[str, Any]
    parameters: list[str]
    configured: bool
