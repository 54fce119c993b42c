"""Where a queued run is filed: the lane that the limits in force give it."""

from __future__ import annotations

import msgspec

from interlock.decide.lanes import LaneKey, Limited, lane_key, limited
from interlock.domain.task import Task
from interlock.ports.store import Tx
from interlock.service.context import Context

LIMITED_META = "limited"
REKEYING_META = "rekeying"
"""Number up to which queued runs are filed anew; there while that goes on, so that it survives a crash."""


def limited_now(tx: Tx, ctx: Context) -> Limited:
    """The values that lanes are keyed by: as the last dispatcher set them, so that every process files runs alike."""
    stored = tx.meta(LIMITED_META)
    return limited(ctx.settings.limits) if stored is None else msgspec.json.decode(stored, type=Limited)


def lane_text(key: LaneKey) -> str:
    """A lane's key as it is stored."""
    return msgspec.json.encode(key).decode()


def lane_of(tx: Tx, ctx: Context, task: Task, batch: str | None) -> int:
    """The lane of a run that is queued now."""
    return tx.lane(lane_text(lane_key(task, batch, limited_now(tx, ctx))))


def note_keying(tx: Tx, ctx: Context) -> None:
    """Note what the lanes of a new database are keyed by, so that its first dispatcher need not file its runs anew."""
    if tx.meta(LIMITED_META) is None:
        tx.set_meta(LIMITED_META, msgspec.json.encode(limited(ctx.settings.limits)).decode())


def begin_rekeying(tx: Tx, ctx: Context) -> int | None:
    """Key lanes by today's limits from now on. Returns behind which number to :func:`rekey`, None when all are filed."""
    wanted = msgspec.json.encode(limited(ctx.settings.limits)).decode()
    if tx.meta(LIMITED_META) != wanted:
        tx.set_meta(LIMITED_META, wanted)
        tx.set_meta(REKEYING_META, "0")
    stored = tx.meta(REKEYING_META)
    return None if stored is None else int(stored)


def rekey(tx: Tx, ctx: Context, after: int, limit: int) -> int | None:
    """File up to ``limit`` queued runs with numbers over ``after`` under today's lanes. Returns where to go on, None at the end."""
    by = limited_now(tx, ctx)
    runs = tx.queued_after(after, limit)
    for run in runs:
        lane = tx.lane(lane_text(lane_key(run.task, run.batch, by)))
        if lane != run.lane:
            tx.save_run(run, msgspec.structs.replace(run, lane=lane))
    end = runs[-1].number if len(runs) == limit else None
    tx.set_meta(REKEYING_META, None if end is None else str(end))
    return end
