"""The tree that every format is read into: what was written, and where. No value is decided here."""

from __future__ import annotations

from enum import Enum

from interlock.domain.errors import TooLarge
from interlock.sources.faults import Faults

MAX_DEPTH = 64
MAX_NODES = 5_000_000


class Form(Enum):
    """How a value was written."""

    MAPPING = "a mapping"
    SEQUENCE = "a list"
    QUOTED = "text"
    PLAIN = "a plain word"  # YAML: what it means depends on what is expected there
    NUMBER = "a number"  # JSON only
    WORD = "true, false or null"  # JSON only


class Raw:
    """One node. ``text`` of a scalar is as written, escapes resolved. Shared where an alias was used."""

    __slots__ = ("column", "entries", "form", "items", "line", "text", "weight")

    def __init__(self, form: Form, line: int, column: int, text: str = "") -> None:
        self.form = form
        self.line = line
        self.column = column
        self.text = text
        # nearly all nodes are scalars: they share the empty lists
        self.items: list[Raw] = [] if form is Form.SEQUENCE else _NO_ITEMS
        self.entries: list[tuple[Raw, Raw]] = [] if form is Form.MAPPING else _NO_ENTRIES
        self.weight = 1 + len(text)
        """Nodes and characters below, aliases counted in full: what an alias bomb would blow up to."""

    @property
    def scalar(self) -> bool:
        """Whether it is neither a list nor a mapping."""
        return self.form is not Form.MAPPING and self.form is not Form.SEQUENCE

    @property
    def absent(self) -> bool:
        """Whether nothing was said: empty, ``null`` or ``~``."""
        if self.form is Form.PLAIN:
            return self.text in _ABSENT
        return self.form is Form.WORD and self.text == "null"


_ABSENT = frozenset({"", "~", "null"})
_NO_ITEMS: list[Raw] = []
_NO_ENTRIES: list[tuple[Raw, Raw]] = []


def too_many_nodes(faults: Faults) -> TooLarge:
    """Refusal of a small file that would need much memory."""
    return TooLarge(f"{faults.source}: more than {MAX_NODES} values", hint="split it into several files")
