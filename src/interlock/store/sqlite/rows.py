"""Values to rows and back. A column is a field; what SQLite has no type for is JSON.

JSON that is not what its column holds (written by another version, or by hand) makes no row unreadable: the cell is read as
what stands in for it, so that one bad row is in nobody's way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from interlock.domain.errors import Conflict
from interlock.domain.run import (
    AgentHealth,
    Attempt,
    Event,
    Instance,
    ProcessIdentity,
    Route,
    Run,
    Stop,
    Usage,
)
from interlock.domain.states import AttemptState, Reason, RunState, StopKind
from interlock.domain.task import Task, UnreadableTask

T = TypeVar("T", bound=msgspec.Struct)

astuple = msgspec.structs.astuple
_encoder = msgspec.json.Encoder()


def to_json(value: Any) -> str | None:
    """JSON text of a value; NULL for None."""
    return None if value is None else _encoder.encode(value).decode()


_UNDECODABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
UNREADABLE = "(unreadable task)"


def _json(kind: Any, instead: Callable[[str, str], Any] = lambda _cell, _fault: None) -> Callable[[str], Any]:
    """Reads a cell as ``kind``; ``instead`` makes of the cell and what is wrong with it what stands in for it."""
    decode = msgspec.json.Decoder(kind).decode

    def read(cell: str) -> Any:
        try:
            return decode(cell)
        except _UNDECODABLE as error:
            return instead(cell, str(error))

    return read


class _Titled(msgspec.Struct):
    title: str


def _unreadable(cell: str, fault: str) -> UnreadableTask:
    try:
        title = f"{UNREADABLE} {msgspec.json.decode(cell, type=_Titled).title}".strip()
    except _UNDECODABLE:
        title = UNREADABLE
    return UnreadableTask(title=title, fault=fault)


def _unreadable_stop(_: str, fault: str) -> Stop:
    # Somebody wanted it stopped; queued again, it waits for what they really wanted.
    message = f"why it is to be stopped cannot be read: {fault}"
    return Stop(kind=StopKind.INTERRUPT, reason=Reason.INTERRUPTED, message=message, by="system", at_ms=0)


class Rows(Generic[T]):
    """The two directions for one kind of value."""

    def __init__(
        self, kind: type[T], readers: dict[str, Callable[[Any], Any]], json_fields: Sequence[str] = ()
    ) -> None:
        self.kind = kind
        self.fields: tuple[str, ...] = kind.__struct_fields__
        self._readers = [(self.fields.index(name), read) for name, read in readers.items()]
        self._json = frozenset(json_fields)

    def read(self, row: Sequence[Any]) -> T:
        """The value of a row."""
        cells = list(row)
        for index, read in self._readers:
            if cells[index] is not None:
                cells[index] = read(cells[index])
        return self.kind(**dict(zip(self.fields, cells, strict=True)))

    def cell(self, name: str, value: Any) -> Any:
        """What goes into column ``name`` for ``value``."""
        if name in self._json:
            if isinstance(value, UnreadableTask):
                raise Conflict(f"the task cannot be read, and so it cannot be written: {value.fault}")
            return to_json(value)
        return int(value) if isinstance(value, bool) else value

    def write(self, value: T) -> list[Any]:
        """All cells of a value."""
        return [self.cell(name, each) for name, each in zip(self.fields, astuple(value), strict=True)]

    def changes(self, old: T, new: T) -> tuple[tuple[str, ...], list[Any]]:
        """Names and cells of the fields in which ``new`` differs."""
        pairs = zip(self.fields, astuple(old), astuple(new), strict=True)
        changed = [(name, after) for name, before, after in pairs if before is not after and before != after]
        return tuple([name for name, _ in changed]), [self.cell(name, after) for name, after in changed]


RUNS = Rows(
    Run,
    {
        "state": RunState,
        "task": _json(Task, _unreadable),
        "stop": _json(Stop, _unreadable_stop),
        "result": _json(Any),
        "ready": bool,
        "held": bool,
        "pull": bool,
        "remote": bool,
    },
    ("task", "stop", "result"),
)
ATTEMPTS = Rows(
    Attempt,
    {
        "state": AttemptState,
        "remote": bool,
        "process": _json(ProcessIdentity),
        "usage": _json(Usage),
        "result": _json(Any),
    },
    ("process", "usage", "result"),
)
EVENTS = Rows(Event, {"data": _json(dict[str, Any])}, ("data",))
ROUTES = Rows(Route, {})
INSTANCES = Rows(Instance, {})
HEALTHS = Rows(AgentHealth, {})
