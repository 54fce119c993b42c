"""Tokens: who may do what over HTTP."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Scope(StrEnum):
    """How far a token reaches; each further one reaches as far as those before it."""

    READ = "read"
    AGENT = "agent"
    OPERATOR = "operator"

    def reaches(self, wanted: Scope) -> bool:
        """Whether it is enough for something that needs ``wanted``."""
        order = list(Scope)
        return order.index(self) >= order.index(wanted)


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token that was made; its secret is not kept. ``digest``: the SHA-256 of that, as hex."""

    name: str
    scope: Scope
    digest: str
    created_ms: int
