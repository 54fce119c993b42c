"""A run that cannot be dealt with is put on hold with the reason in its log, and the others go on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from interlock.domain.errors import Conflict, InterlockError
from interlock.domain.run import Event, Run
from interlock.domain.states import Note
from interlock.domain.task import UnreadableTask
from interlock.ports.store import Tx, Undone
from interlock.service.context import SYSTEM, Context

log = logging.getLogger("interlock")

LOOK_AGAIN_MS = 5 * 60_000
"""A live claim keeps its deadlines: what failed for it once is tried again after so long."""


def unreadable(run: Run) -> Conflict | None:
    """What is wrong with a run of which nobody can say what it is to do."""
    if not isinstance(run.task, UnreadableTask):
        return None
    return Conflict(
        f"its task cannot be read: {run.task.fault}",
        hint=f"another version of Interlock wrote it, or a person; `interlock cancel {run.number}` ends it",
    )


@contextmanager
def apart(tx: Tx, ctx: Context, run: Run) -> Iterator[None]:
    """What is done for one run: when it raises, that alone is undone, the run is put on hold, and the caller goes on."""
    try:
        with tx.apart():
            yield
    except Undone as undone:
        quarantine(tx, ctx, run.number, undone.cause)


def quarantine(tx: Tx, ctx: Context, number: int, cause: Exception) -> None:
    """Hold run ``number``, because dealing with it raised ``cause``. Works whatever its row is like."""
    what = cause.message if isinstance(cause, InterlockError) else f"{type(cause).__name__}: {cause}"
    message = f"put on hold, as it could not be dealt with: {what}"
    state = tx.quarantine(number, ctx.now_ms + LOOK_AGAIN_MS, message)
    if state is None:
        # Held already: it was said then.
        return
    log.error("run #%d is put on hold: %s", number, what, exc_info=None if isinstance(cause, InterlockError) else cause)
    tx.add_event(
        Event(
            seq=0,
            run=number,
            event=str(Note.HOLD),
            from_state=str(state),
            to_state=str(state),
            at_ms=ctx.now_ms,
            by=SYSTEM,
            message=message,
        )
    )
