"""How long to wait before the next try."""

from __future__ import annotations

from random import Random

from interlock.domain.settings import Retry


def exponential_ms(tries: int, base_ms: int, max_ms: int) -> int:
    """Wait after the ``tries``-th failure (1, 2, ...) in milliseconds: base, 2 x base, 4 x base ... at most ``max_ms``."""
    if tries < 1:
        return 0
    # Past 2^40 every cap is reached; the bound keeps a huge count from building a huge integer.
    return min(max_ms, base_ms << min(tries - 1, 40))


def equal_jitter_ms(delay_ms: int, rng: Random) -> int:
    """Half of the delay for certain, the other half by chance, so that failures that came together do not return together."""
    half = delay_ms // 2
    return half + rng.randint(0, delay_ms - half)


def retry_delay_ms(failures: int, retry: Retry, rng: Random) -> int:
    """Wait before the retry that follows the ``failures``-th failure, jitter included."""
    return equal_jitter_ms(exponential_ms(failures, retry.base_delay_ms, retry.max_delay_ms), rng)
