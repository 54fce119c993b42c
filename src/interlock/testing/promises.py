"""How a check says that something was not as promised."""

from __future__ import annotations


class Broken(AssertionError):
    """A promise was not kept. ``str()`` says which one, and what was seen instead."""


def must(kept: object, words: str) -> None:
    """Raise :class:`Broken` with ``words`` unless ``kept``. Unlike ``assert`` it is there under ``python -O`` as well."""
    if not kept:
        raise Broken(words)
