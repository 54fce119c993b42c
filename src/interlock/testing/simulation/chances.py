"""Chance, all of it from the seed."""

from __future__ import annotations

from random import Random


def chance_of(seed: int, *whose: object) -> Random:
    """A generator of its own for everybody who draws, so that one drawing more does not change what another one draws."""
    return Random(":".join(map(str, (seed, *whose))))  # noqa: S311 - chance is to be repeated here, not to be kept secret
