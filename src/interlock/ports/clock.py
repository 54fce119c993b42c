"""Time and randomness come in through here; nothing else reads a clock."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall time that does not jump.

    Contract: ``now_ms`` never goes back within a process and advances with CLOCK_BOOTTIME (so it counts a suspend).
    ``step_ms`` is how far the system's wall clock has moved away from it since it was anchored; ``reanchor`` takes
    the system's wall clock as the truth again (the caller then moves the stored deadlines by the same step).
    """

    def now_ms(self) -> int:
        """Unix milliseconds."""
        ...

    def step_ms(self) -> int:
        """Milliseconds by which the system's wall clock was set forward (or back, if negative) since anchoring."""
        ...

    def epoch(self) -> tuple[str, int]:
        """(boot id, wall clock minus CLOCK_BOOTTIME in ms) as the system has it now: changes only when somebody sets the clock."""
        ...

    def reanchor(self) -> None:
        """Follow the system's wall clock from where it is now."""
        ...

    async def sleep_until(self, at_ms: int) -> None:
        """Return once ``now_ms() >= at_ms``."""
        ...
