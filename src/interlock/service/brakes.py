"""What holds offers and dispatching back as a whole: a pause of the operator, ``enabled: false``, a run on hold."""

from __future__ import annotations

import msgspec

from interlock.domain.run import Run
from interlock.ports.store import Tx
from interlock.service.context import Context

PAUSED_META = "paused"


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing is dispatched, since when, by whom."""

    by: str
    at_ms: int
    message: str = ""


def paused(tx: Tx) -> Pause | None:
    """The pause in force, if any."""
    stored = tx.meta(PAUSED_META)
    return None if stored is None else msgspec.json.decode(stored, type=Pause)


def set_pause(tx: Tx, pause: Pause | None) -> None:
    """Begin a pause, or end it."""
    tx.set_meta(PAUSED_META, None if pause is None else msgspec.json.encode(pause).decode())
    tx.hint()


def not_to_be_offered(tx: Tx, ctx: Context, run: Run) -> str | None:
    """Why ``run`` must not stand open for a claim now, or None."""
    if run.held:
        return "it is on hold"
    if not ctx.settings.enabled:
        return "dispatching is switched off (dispatch.enabled)"
    return "dispatching is paused" if paused(tx) is not None else None
