"""Prints without holding anybody up: a terminal that was stopped (Ctrl-S), a full pipe or a closed one delays lines or loses
them, never leases, stops and signals.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from interlock.cli.text import count

KEPT_LINES = 10_000
AT_ONCE = 500
PATIENCE_SECONDS = 2.0


class Said(NamedTuple):
    """A line (or several) to print, and its rich style."""

    text: str
    style: str = ""


class Speaker:
    """A thread that prints, behind a queue of bounded length. ``write`` may block; what it raises is its own affair to catch."""

    def __init__(self, write: Callable[[Sequence[Said]], None], *, kept: int = KEPT_LINES) -> None:
        self._write = write
        self._queue: queue.Queue[Said | threading.Event | None] = queue.Queue(kept)
        self._lost = 0
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def say(self, text: str, style: str = "") -> None:
        """Print it soon. From any thread; never waits."""
        self._start()
        try:
            self._queue.put_nowait(Said(text, style))
        except queue.Full:
            self._lost += 1

    def flush(self, patience_seconds: float = PATIENCE_SECONDS) -> bool:
        """Wait until what was said is printed; a reader that does not read is not waited for any longer. Whether it is."""
        if self._thread is None:
            return True
        printed = threading.Event()
        try:
            self._queue.put(printed, timeout=patience_seconds)
        except queue.Full:
            return False
        return printed.wait(patience_seconds)

    def close(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """:meth:`flush`, and nothing more will be said."""
        if self.flush(patience_seconds) and self._thread is not None:
            with suppress(queue.Full):
                self._queue.put_nowait(None)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                # A daemon: one that is stuck in a write must not keep the process from ending.
                self._thread = threading.Thread(target=self._print, name="interlock-speaker", daemon=True)
                self._thread.start()

    def _print(self) -> None:
        while True:
            batch = [self._queue.get()]
            with suppress(queue.Empty):
                while len(batch) < AT_ONCE:
                    batch.append(self._queue.get_nowait())
            lines = [each for each in batch if isinstance(each, Said)]
            if self._lost:
                lines.append(Said(f"{count(self._lost, 'line')} left out: the reader is too slow"))
                self._lost = 0
            if lines:
                self._write(lines)
            for each in batch:
                if isinstance(each, threading.Event):
                    each.set()
            if None in batch:
                return
