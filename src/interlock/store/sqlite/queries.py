"""Loads queries.sql: ``SQL["name"]`` is the statement under ``-- name: name``."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import msgspec

from interlock.domain.run import AgentHealth, Attempt, Event, Instance, Route, Run

_VALUES: dict[str, type[msgspec.Struct]] = {
    "run": Run,
    "attempt": Attempt,
    "event": Event,
    "route": Route,
    "instance": Instance,
    "health": AgentHealth,
}


def columns(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Column names of a value: the names of its fields."""
    return kind.__struct_fields__


def _load() -> dict[str, str]:
    text = files("interlock.store.sqlite").joinpath("queries.sql").read_text("utf-8")
    names: dict[str, Any] = {}
    for noun, kind in _VALUES.items():
        names[noun] = ", ".join(columns(kind))
        names[f"{noun}_values"] = ", ".join("?" * len(columns(kind)))
    found: dict[str, str] = {}
    for name, body in re.findall(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", text, re.MULTILINE | re.DOTALL):
        if name in found:
            raise ValueError(f"queries.sql has two queries named {name}")
        statement = re.sub(r"^--.*\n", "", body, flags=re.MULTILINE).strip().rstrip(";")
        found[name] = re.sub(r"\{(\w+)\}", lambda match: names[match[1]], statement)
    return found


SQL: dict[str, str] = _load()
