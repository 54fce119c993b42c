"""The system's clocks behind :class:`interlock.ports.clock.Clock`."""

from __future__ import annotations

import time
from pathlib import Path

import trio


class SystemClock:
    """Wall time, anchored once and carried on by CLOCK_BOOTTIME: it counts a suspend and ignores steps of the wall clock."""

    def __init__(self) -> None:
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        self._offset_ns = self._wall_offset_ns()

    @staticmethod
    def _boot_ns() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    @staticmethod
    def _wall_ns() -> int:
        return time.time_ns()

    def _wall_offset_ns(self) -> int:
        return self._wall_ns() - self._boot_ns()

    def now_ms(self) -> int:
        """Unix milliseconds, which never go back but by :meth:`reanchor`."""
        return (self._boot_ns() + self._offset_ns) // 1_000_000

    def step_ms(self) -> int:
        """How far the system's wall clock was moved since it was anchored."""
        return round((self._wall_offset_ns() - self._offset_ns) / 1_000_000)

    def epoch(self) -> tuple[str, int]:
        """(boot id, wall clock minus CLOCK_BOOTTIME in ms)."""
        return self._boot_id, self._wall_offset_ns() // 1_000_000

    def reanchor(self) -> None:
        """Follow the system's wall clock from where it is now."""
        self._offset_ns = self._wall_offset_ns()

    async def sleep_until(self, at_ms: int) -> None:
        """Return once ``now_ms() >= at_ms``. Sleeps in pieces, since trio's own clock stands still in a suspend."""
        while (left := at_ms - self.now_ms()) > 0:
            await trio.sleep(min(left, 60_000) / 1000)


class TrioClock:
    """Time as trio tells it, for tests under MockClock: starts at ``start_ms`` and moves with the loop's clock."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self.start_ms = start_ms

    def now_ms(self) -> int:
        """Unix milliseconds."""
        return self.start_ms + round(trio.current_time() * 1000)

    def step_ms(self) -> int:
        """It has no wall clock beside it."""
        return 0

    def epoch(self) -> tuple[str, int]:
        """One that never changes."""
        return "trio", 0

    def reanchor(self) -> None:
        """Nothing to follow."""

    async def sleep_until(self, at_ms: int) -> None:
        """Return once ``now_ms() >= at_ms``."""
        while (left := at_ms - self.now_ms()) > 0:
            await trio.sleep(left / 1000)
