"""Values with their places: a typed view on what was read, that collects faults instead of stopping at the
first.

The reader asks for what the schema expects (``node.integer()``, ``node.name()``) and the node answers with
the value or, after noting a fault, with None. Nothing is guessed from how a value looks: ``id: 007`` asked
for as a name is ``"007"``, ``title: no`` asked for as text is ``"no"``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from interlock.domain.errors import InvalidInput
from interlock.sources.durations import parse_duration, parse_size
from interlock.sources.faults import Faults, both_lines, nearest, shown
from interlock.sources.raw import Form, Raw

T = TypeVar("T")

ANY = "*"
"""Among known keys: any name."""

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
# what YAML 1.1 and 1.2 both take for a float, without a trailing zero: 1.10 is a version, not 1.1
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.(?:[0-9]*[1-9]|0)(?:[eE][-+][0-9]+)?")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
# CR comes in by escapes: bodies fetched from web forms have it, and it harms nothing
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_NOT_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MOST_DIGITS = 300


class Node:
    """A :class:`Raw` value at its path. Lines and columns count from 1."""

    __slots__ = ("_key", "_label", "_parent", "faults", "raw")

    def __init__(
        self,
        raw: Raw,
        faults: Faults,
        parent: Node | None = None,
        label: str = "",
        key: Raw | None = None,
    ) -> None:
        self.raw = raw
        self._key = key
        self.faults = faults
        self._parent = parent
        self._label = label

    @property
    def path(self) -> str:
        """The field, as messages name it: ``tasks[3].context.files``."""
        above = self._parent.path if self._parent else ""
        if self._label.startswith("[") or not above:
            return above + self._label
        return f"{above}.{self._label}" if self._label else above

    @property
    def place(self) -> tuple[int, int]:
        """Line and column, from 1. Of a list, a mapping or an alias: those of its key."""
        key, raw = self._key, self.raw
        if key is not None and (not self.scalar or raw.line < key.line):
            return key.line, key.column
        return raw.line, raw.column

    @property
    def line(self) -> int:
        """Line, from 1."""
        return self.place[0]

    @property
    def absent(self) -> bool:
        """Whether nothing was said: empty, ``null`` or ``~``."""
        return self.raw.absent

    @property
    def scalar(self) -> bool:
        """Whether it is neither a list nor a mapping."""
        return self.raw.scalar

    @property
    def is_mapping(self) -> bool:
        """Whether it has keys."""
        return self.raw.form is Form.MAPPING

    @property
    def is_sequence(self) -> bool:
        """Whether it is a list."""
        return self.raw.form is Form.SEQUENCE

    def fault(self, problem: str, hint: str | None = None) -> None:
        """Notes a fault at this place."""
        self.faults.add(*self.place, self.path, problem, hint)

    def _found(self) -> str:
        return shown(self.raw.text) if self.scalar else self.raw.form.value

    def _refuse(self, wanted: str, hint: str) -> None:
        found = "it is empty" if self.absent else f"found {self._found()}"
        self.fault(f"{wanted} is expected, {found}", hint)

    # containers

    def items(self) -> list[Node]:
        """Of a list, its members."""
        return [Node(raw, self.faults, self, f"[{at}]") for at, raw in enumerate(self.raw.items)]

    def field(self, key: str) -> Node | None:
        """Of a mapping, the value of a key if anything is said there. Notes no fault."""
        for written, value in self.raw.entries:
            if written.text == key and not value.absent:
                return Node(value, self.faults, self, key, written)
        return None

    def entries(self) -> Iterator[tuple[str, Node]]:
        """Of a mapping, keys (as written, always text) and values.

        Faults: doubled, merge, empty and non-text keys.
        """
        seen: dict[str, int] = {}
        for key, value in self.raw.entries:
            add = self.faults.add
            if not key.scalar or key.absent:
                add(
                    key.line,
                    key.column,
                    self.path,
                    "a key must be text",
                    "quote it, or remove the ? or [ before it",
                )
            elif key.form is Form.PLAIN and key.text == "<<":
                add(key.line, key.column, self.path, "merge keys (<<) are not taken", "write the keys out")
            elif bad := _NOT_LINE.search(key.text):
                problem = f"key {shown(key.text)} has the control character U+{ord(bad[0]):04X}"
                add(key.line, key.column, self.path, problem, "remove it")
            elif key.text in seen:
                path = f"{self.path}.{key.text[:100]}" if self.path else key.text[:100]
                problem = f"is there twice, {both_lines(seen[key.text], key.line)}"
                add(key.line, key.column, path, problem, "keep one of them")
            else:
                seen[key.text] = key.line
                yield key.text, Node(value, self.faults, self, key.text[:100], key)

    def mapping(self, known: Collection[str]) -> dict[str, Node]:
        """The values of a mapping by key.

        Faults: not a mapping, a key that is not known (with the nearest that is).
        """
        if not self.is_mapping:
            if not self.absent:
                keys = "with names of your own" if ANY in known else f"the keys are {_some(known)}"
                self._refuse("a mapping", f"write `key: value` lines; {keys}")
            return {}
        result = {}
        for key, value in self.entries():
            if key in known:
                result[key] = value
                continue
            near = nearest(key, known)
            hint = f"did you mean {near}?" if near else f"the keys are {_some(known)}"
            # the place of the key, not of a value that may start lines below
            where = next(raw for raw, _ in self.raw.entries if raw.text == key)
            path = f"{self.path}.{key[:100]}" if self.path else key[:100]
            self.faults.add(where.line, where.column, path, "is no known key", hint)
        return result

    # text

    def text(self, *, most: int, most_bytes: int | None = None, empty: bool = True) -> str | None:
        """Text of any number of lines; a plain scalar as it was written."""
        return self._text(_NOT_TEXT, most, most_bytes, empty=empty)

    def line_of_text(self, *, most: int) -> str | None:
        """Text on one line, not blank. The line break that ends a block scalar (``|``) is not part of it."""
        value = self._text(_NOT_LINE, most, None, empty=False, ending=True)
        return value or None

    def name(self, *, most: int = 100) -> str | None:
        """Text on one line without blanks around it."""
        value = self.line_of_text(most=most)
        if value is not None and value != value.strip():
            self.fault(f"{shown(value)} begins or ends with a blank", "remove it")
            return None
        return value

    def _text(
        self, bad: re.Pattern[str], most: int, most_bytes: int | None, *, empty: bool, ending: bool = False
    ) -> str | None:
        if not self.scalar or self.raw.form is Form.WORD:
            self._refuse("text", 'put quotes around it: "..."' if self.scalar else "write one value")
            return None
        value = self.raw.text.rstrip("\n") if ending else self.raw.text
        found = bad.search(value)
        if found:
            if found[0] in "\n\r":
                self.fault("must be one line", "move what follows to another field")
            else:
                what = "half a surrogate pair," if "\ud800" <= found[0] <= "\udfff" else "the control character"
                self.fault(f"has {what} U+{ord(found[0]):04X}", "remove it")
            return None
        if not empty and not value.strip():
            self.fault("is empty", "write something, or leave the field out")
            return None
        if len(value) > most:
            self.fault(f"has {len(value)} characters, at most {most} fit", "shorten it")
            return None
        if most_bytes is not None and len(value) * 4 > most_bytes and len(value.encode()) > most_bytes:
            self.fault(f"has {len(value.encode())} bytes, at most {most_bytes} fit", "put it in a file and name that")
            return None
        return value

    def several(self, one: Callable[[Node], T | None], *, most: int) -> tuple[T, ...]:
        """A list of values, or a single one for a list of one."""
        if self.absent:
            return ()
        if self.is_mapping:
            self._refuse("a list", "write [a, b] or one value")
            return ()
        members = self.items() if self.is_sequence else [self]
        if len(members) > most:
            self.fault(f"has {len(members)} entries, at most {most} fit", "remove some")
            return ()
        values = []
        for member in members:
            if member.absent:
                member.fault("is empty", "write something, or remove the entry")
            elif (value := one(member)) is not None:
                values.append(value)
        return tuple(values)

    def choice(self, options: Collection[str], *, later: Mapping[str, str] | None = None) -> str | None:
        """One of the words. ``later``: words that are known and not built yet, with what to do instead."""
        value = self.raw.text if self.scalar else ""
        if value in options:
            return value
        if later and value in later:
            self.fault(f"{value} comes later and is not active yet", later[value])
            return None
        near = nearest(value, options)
        self._refuse(f"one of {', '.join(options)}", f"did you mean {near}?" if near else "choose one of these")
        return None

    # numbers

    def integer(self, *, low: int, high: int) -> int | None:
        """A whole number, written in decimal digits without leading zero, sign ``+`` or quotes."""
        if self.raw.form not in (Form.PLAIN, Form.NUMBER) or not _INTEGER.fullmatch(self.raw.text):
            quoted = self.raw.form is Form.QUOTED and _INTEGER.fullmatch(self.raw.text)
            self._refuse("a whole number", "remove the quotes" if quoted else "write it like 3, without leading zero")
            return None
        if len(self.raw.text) > _MOST_DIGITS or not low <= int(self.raw.text) <= high:
            self.fault(f"{self.raw.text[:30]} is out of range", f"from {low} to {high}")
            return None
        return int(self.raw.text)

    def decimal(self, *, low: float, high: float) -> float | None:
        """A number such as 0.3."""
        if self.raw.form not in (Form.PLAIN, Form.NUMBER) or not _DECIMAL.fullmatch(self.raw.text[:100]):
            self._refuse("a number", "write it like 0.3, without quotes")
            return None
        value = float(self.raw.text[:100])
        if not low <= value <= high:
            self.fault(f"{self.raw.text[:30]} is out of range", f"from {low:g} to {high:g}")
            return None
        return value

    def boolean(self) -> bool | None:
        """``true`` or ``false``, and no other word for them."""
        if self.raw.form in (Form.PLAIN, Form.WORD) and self.raw.text in {"true", "false"}:
            return self.raw.text == "true"
        self._refuse("true or false", "write true or false, without quotes")
        return None

    def duration(self, *, low: int = 1) -> int | None:
        """Milliseconds of ``90s``, ``5m``, ``1h30m``; at least ``low``."""
        value = self._parsed(parse_duration, "a duration", "write it like 90s, 5m or 1h30m")
        if value is not None and value < low:
            self.fault(f"{shown(self.raw.text)} is too short", f"at least {low} ms; leave it out for no limit")
            return None
        return value

    def size(self) -> int | None:
        """Bytes of ``512MiB``, ``2GiB``."""
        return self._parsed(parse_size, "a size", "write it like 512MiB or 2GiB")

    def _parsed(self, parse: Callable[[str], T], wanted: str, hint: str) -> T | None:
        if not self.scalar or self.absent or self.raw.form is Form.WORD:
            self._refuse(wanted, hint)
            return None
        try:
            return parse(self.raw.text)
        except InvalidInput as cause:
            self.fault(f"{shown(self.raw.text)}: {cause.message}", cause.hint)
            return None

    # whatever it is

    def free(self) -> Any:
        """The value as it looks, cautiously: only true, false, null, plain decimal integers and floats are
        not text.

        So ``007``, ``1.10``, ``1e5``, ``yes``, ``2026-01-01`` and all that is quoted stay text.
        """
        if self.is_mapping:
            return {key: node.free() for key, node in self.entries()}
        if self.is_sequence:
            return [node.free() for node in self.items()]
        if self.absent:
            return None
        text = self.raw.text
        if self.raw.form is Form.QUOTED:
            return self._text(_NOT_TEXT, len(text), None, empty=True)
        if text in {"true", "false"}:
            return text == "true"
        number = self.raw.form is Form.NUMBER
        if _INTEGER.fullmatch(text) and (number or len(text) <= _MOST_DIGITS):
            if len(text) > _MOST_DIGITS:
                self.fault(f"has more than {_MOST_DIGITS} digits", "quote it")
                return None
            return int(text)
        if number or _FLOAT.fullmatch(text):
            value = float(text)
            if abs(value) != float("inf"):
                return value
            if number:
                self.fault(f"{text[:30]} is too large a number", "quote it")
                return None
        return self._text(_NOT_TEXT, len(text), None, empty=True)

    def free_mapping(self, *, most_bytes: int) -> dict[str, Any] | None:
        """A mapping of whatever; at most so many bytes as JSON."""
        if not self.is_mapping:
            self._refuse("a mapping", "write `key: value` lines")
            return None
        before = self.faults.count
        value: dict[str, Any] = self.free()
        if self.faults.count != before:
            return None
        size = len(msgspec.json.encode(value))
        if size > most_bytes:
            self.fault(f"has {size} bytes as JSON, at most {most_bytes} fit", "put it in a file and name that")
            return None
        return value


def _some(names: Collection[str]) -> str:
    return ", ".join(names)
