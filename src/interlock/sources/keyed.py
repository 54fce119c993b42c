"""Reading a file by a table of its keys: one row says where a key stands, what it holds and what it means.

The table is data, so that loading, the reference in the docs and the example file cannot say different
things.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from interlock.sources.durations import exact_duration, format_size
from interlock.sources.placed import ANY, Node

MAX_INT = 2**31 - 1
MOST_TASK_BYTES = 1024 * 1024
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Holds(StrEnum):
    """What stands behind a key, in the words of the reference."""

    BOOL = "true or false"
    INT = "whole number"
    DECIMAL = "number"
    MS = "milliseconds"
    DURATION = "duration (`90s`, `5m`)"
    SIZE = "size (`2GiB`)"
    TEXT = "text"
    NAME = "name"
    NAMES = "list of names"
    CHOICE = "one of"
    LIMITS = "name: whole number"
    COMMAND = "shell text, or list of arguments"
    ENV = "NAME: text"
    TASK = "task, its fields as in the API"
    ANYTHING = "anything"


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table.

    ``path`` is dotted, ``*`` (ANY) stands for any name. ``target``: the dotted attribute of the settings
    that the value becomes; None for a key that is known and not active, with ``why``. ``short``: a scalar
    in place of the mapping above means this key. ``default`` is for keys without target; others take it
    from the settings.
    """

    path: str
    holds: Holds
    meaning: str
    target: str | None = None
    low: int = 0
    high: int = MAX_INT
    choices: tuple[str, ...] = ()
    later: Mapping[str, str] = {}
    short: bool = False
    default: str | None = None
    example: str | None = None
    why: str = "not built yet"

    @property
    def parts(self) -> tuple[str, ...]:
        """The path, taken apart."""
        return tuple(self.path.split("."))

    @property
    def kind(self) -> str:
        """What it holds, in words."""
        return f"one of {', '.join(self.choices)}" if self.choices else self.holds.value

    def written(self, value: Any) -> str:
        """A value of this key as it is written in the file; empty for none."""
        if value is None or value in ({}, ()):
            return ""
        if self.holds is Holds.DURATION:
            return exact_duration(value)
        if self.holds is Holds.SIZE:
            return format_size(value) if value else "0"
        return str(value).lower() if isinstance(value, bool) else str(value)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A key that stands in the file: its concrete path, its row, its value (None after a fault), its node.

    Without a row: a name that the file gives (``agents.worker``), before what stands below it.
    """

    path: tuple[str, ...]
    key: Key | None
    value: Any
    node: Any  # a Node; msgspec takes no plain class


def read_keys(root: Node, keys: Sequence[Key]) -> list[Found]:
    """All that the file says, in its order. Faults are noted on the root's faults."""
    return list(_walk(root, keys, 0, ()))


def _walk(node: Node, keys: Sequence[Key], depth: int, path: tuple[str, ...]) -> list[Found]:
    """What stands below a node; ``keys`` are those whose paths lead through it."""
    if node.absent:
        return []
    short = [key for key in keys if key.short and len(key.parts) == depth + 1]
    if short and not node.is_mapping:
        return [_read(node, short[0], (*path, short[0].parts[-1]))]
    found = []
    wild = any(key.parts[depth] == ANY for key in keys)
    children = dict(node.entries()) if wild and node.is_mapping else node.mapping(_names(keys, depth))
    for name, child in children.items():
        below = [key for key in keys if key.parts[depth] in {name, ANY}]
        if wild and not _good_name(child, name):
            continue
        leaf = [key for key in below if len(key.parts) == depth + 1]
        if not leaf:
            if wild:
                found.append(Found(path=(*path, name), key=None, value=None, node=child))
            found += _walk(child, below, depth + 1, (*path, name))
        elif not child.absent:
            found.append(_read(child, leaf[0], (*path, name)))
    return found


def _names(keys: Sequence[Key], depth: int) -> list[str]:
    return list(dict.fromkeys(key.parts[depth] for key in keys))


def _read(node: Node, key: Key, path: tuple[str, ...]) -> Found:
    return Found(path=path, key=key, value=_READ[key.holds](node, key), node=node)


def _good_name(node: Node, name: str) -> bool:
    if name != name.strip() or not 0 < len(name) <= 100:
        node.fault("is no good name", "1 to 100 characters, without blanks around them")
        return False
    return True


def _limits(node: Node, key: Key) -> dict[str, int] | None:
    if not node.is_mapping:
        node.fault("a mapping of names to whole numbers is expected", "write { name: 1 }")
        return None
    result = {}
    for name, child in node.entries():
        if _good_name(child, name):
            value = child.integer(low=key.low, high=key.high)
            if value is not None:
                result[name] = value
    return result


def _command(node: Node, _: Key) -> str | tuple[str, ...] | None:
    if node.scalar:
        return node.text(most=100_000, empty=False)
    if not node.is_sequence or not node.items():
        node.fault("a command is expected", 'write a shell text, or a list: ["prog", "argument"]')
        return None
    if not all(item.scalar for item in node.items()):
        node.fault("an argument is no text", "every member of the list is one argument")
        return None
    arguments = [item.text(most=100_000) for item in node.items()]
    if arguments[0] is not None and not arguments[0].strip():
        node.fault("its first member is empty", "it names the program")
        return None
    return None if None in arguments else tuple(each for each in arguments if each is not None)


def _environment(node: Node, _: Key) -> dict[str, str] | None:
    if not node.is_mapping:
        node.fault("a mapping of names to texts is expected", "write { NAME: value }")
        return None
    result = {}
    for name, child in node.entries():
        if not _ENV_NAME.fullmatch(name):
            child.fault("is no good name for a variable", "letters, digits and _, no digit first")
        elif name.startswith("INTERLOCK_"):
            child.fault("is set by Interlock itself", "choose another name")
        elif child.absent:
            child.fault("has no value", 'write "" for an empty one')
        elif (value := child.text(most=100_000)) is not None:
            result[name] = value
    return result


_READ: dict[Holds, Callable[[Any, Key], Any]] = {
    Holds.BOOL: lambda node, _: node.boolean(),
    Holds.INT: lambda node, key: node.integer(low=key.low, high=key.high),
    Holds.DECIMAL: lambda node, key: node.decimal(low=key.low, high=key.high),
    Holds.MS: lambda node, key: node.integer(low=key.low, high=key.high),
    Holds.DURATION: lambda node, key: node.duration(low=key.low),
    Holds.SIZE: lambda node, _: node.size(),
    Holds.TEXT: lambda node, _: node.line_of_text(most=4096),
    Holds.NAME: lambda node, _: node.name(),
    Holds.NAMES: lambda node, _: node.several(lambda one: one.name(), most=1000),
    Holds.CHOICE: lambda node, key: node.choice(key.choices, later=key.later),
    Holds.LIMITS: _limits,
    Holds.COMMAND: _command,
    Holds.ENV: _environment,
    Holds.TASK: lambda node, _: node.free_mapping(most_bytes=MOST_TASK_BYTES),
    Holds.ANYTHING: lambda node, _: node.free(),
}
