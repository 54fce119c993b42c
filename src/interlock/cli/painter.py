"""Paints a block of lines at the bottom of a terminal, again and again, and takes it away.

Unlike rich's Live it writes from a worker thread, so that a terminal that does not take anything (Ctrl-S, a slow ssh) never stops
the dispatching, and it takes the old block away correctly when the window became narrower and its lines were wrapped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
CLEAR_LINE, CLEAR_BELOW = "\x1b[K", "\x1b[J"


class Line(NamedTuple):
    """A line as it is sent, and how many columns it takes."""

    text: str
    columns: int


def terminal_size(descriptor: int) -> tuple[int, int]:
    """Columns and rows; 80x24 when the terminal does not know."""
    try:
        columns, rows = os.get_terminal_size(descriptor)
    except OSError:
        return 80, 24
    return columns or 80, rows or 24


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, also to a descriptor that somebody made non-blocking. Blocks this thread."""
    import select  # noqa: PLC0415

    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [], 1)


class Painter:
    """The block. Makes strings; ``write`` sends them."""

    def __init__(self, write: Callable[[str], None], size: Callable[[], tuple[int, int]]) -> None:
        self._write = write
        self._size = size
        self._painted: list[Line] = []
        self._hidden = False

    def paint(self, lines: Sequence[Line], above: str = "") -> None:
        """Replace the block; ``above`` are whole lines that stay, before it. Writes nothing when nothing changed."""
        if not above and list(lines) == self._painted:
            return
        parts = [self._home()]
        if not self._hidden:
            parts.append(HIDE_CURSOR)
            self._hidden = True
        if above:
            parts += [CLEAR_BELOW, above.replace("\n", "\r\n")]
        parts.append("\r\n".join(f"{line.text}{CLEAR_LINE}" for line in lines))
        parts.append(CLEAR_BELOW)
        self._painted = list(lines)
        self._write("".join(parts))

    def clear(self) -> None:
        """Take the block away and give the cursor back; :meth:`paint` may follow."""
        if not self._painted and not self._hidden:
            return
        self._write(f"{self._home()}{CLEAR_BELOW}{SHOW_CURSOR}")
        self._painted, self._hidden = [], False

    def _home(self) -> str:
        """Back to the first column of the block's first line, wherever its lines were wrapped since."""
        columns = self._size()[0]
        rows = sum(max(1, -(-line.columns // columns)) for line in self._painted)
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "")
