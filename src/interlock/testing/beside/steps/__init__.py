"""The steps, by who takes them. Importing this room enters them all into :data:`interlock.testing.beside.drawing.STEPS`."""

from __future__ import annotations

from interlock.testing.beside.steps import claims, dispatching, operator, time, work

__all__ = ["claims", "dispatching", "operator", "time", "work"]
