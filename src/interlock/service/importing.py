"""Runs of another dispatcher, taken over: what waits is queued, what is in flight there is held, what has ended is left out.

A run is known again by its batch and key, so that the same file may be imported again, also a newer state of it: what was queued
here and has ended there meanwhile ends here, and what was taken up there is put on hold. So nothing that the other dispatcher has
begun is ever started here as well, unless a person lets go of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from interlock.domain.run import Run
from interlock.domain.states import Note, Reason, RunEvent, RunState
from interlock.ports.store import Tx
from interlock.service import operating
from interlock.service.context import Context
from interlock.service.moves import change, move, record
from interlock.service.submitting import Item, submit
from interlock.sources.workflow_runs import OldRun, OldState

BY = "import"


class Fate(StrEnum):
    """What becomes of a run of the other dispatcher."""

    QUEUED = "queued"
    HELD = "held"
    ENDED = "ended"
    LEFT_OUT = "left_out"
    KNOWN = "known"
    HELD_NOW = "held_now"
    ENDED_NOW = "ended_now"
    CLASH = "clash"


_NEW = (Fate.QUEUED, Fate.HELD, Fate.ENDED)


class TakenOver(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the other dispatcher, and the one that stands for it here, if one does.

    ``CLASH``: an agent works on it here, and the other dispatcher has begun or ended it as well; nothing was changed.
    """

    old: OldRun
    fate: Fate
    run: Run | None = None


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """How to import. ``finished``: what has ended comes as well, as ended; ``hold``: all that waits is put on hold."""

    batch: str
    finished: bool = False
    hold: bool = False


def plan(tx: Tx, runs: Sequence[OldRun], wanted: Wanted) -> list[TakenOver]:
    """What :func:`take_over` would do."""
    return [_planned(tx.batch_latest(wanted.batch, old.key), old, wanted) for old in runs]


def _planned(known: Run | None, old: OldRun, wanted: Wanted) -> TakenOver:
    return TakenOver(old=old, fate=new_fate(old, wanted) if known is None else _known_fate(known, old), run=known)


def new_fate(old: OldRun, wanted: Wanted) -> Fate:
    """What becomes of a run that is not known here."""
    if old.state.ended:
        # A run ends timed_out in an attempt, and there was none here.
        return Fate.ENDED if wanted.finished and old.state is not OldState.TIMED_OUT else Fate.LEFT_OUT
    return Fate.HELD if wanted.hold or old.state is OldState.IN_FLIGHT else Fate.QUEUED


def _known_fate(known: Run, old: OldRun) -> Fate:
    if known.terminal or old.state is OldState.WAITING:
        return Fate.KNOWN
    if known.held_by_agent:
        return Fate.CLASH
    if old.state.ended:
        return Fate.ENDED_NOW
    return Fate.KNOWN if known.held or known.state is RunState.BLOCKED else Fate.HELD_NOW


def take_over(tx: Tx, ctx: Context, runs: Sequence[OldRun], wanted: Wanted) -> list[TakenOver]:
    """Bring what is here up to ``runs``, all or none; the answer is in their order."""
    planned = plan(tx, runs, wanted)
    made = iter(submit(tx, ctx, [_item(each, wanted) for each in planned if each.fate in _NEW], by=BY))
    return [_carried_out(tx, ctx, each, next(made).run if each.fate in _NEW else each.run) for each in planned]


def _carried_out(tx: Tx, ctx: Context, planned: TakenOver, run: Run | None) -> TakenOver:
    if run is not None:
        if planned.fate in (Fate.ENDED, Fate.ENDED_NOW):
            run = _end(tx, ctx, run, planned.old)
        elif planned.fate is Fate.HELD_NOW:
            run = _hold(tx, ctx, run, planned.old)
    return msgspec.structs.replace(planned, run=run)


def _item(planned: TakenOver, wanted: Wanted) -> Item:
    old = planned.old
    held = planned.fate is not Fate.QUEUED
    message = None
    if planned.fate is Fate.HELD:
        message = in_flight_words(old) if old.state is OldState.IN_FLIGHT else "it was imported on hold"
    return Item(task=old.task, batch=wanted.batch, key=old.key, held=held, message=message)


def in_flight_words(old: OldRun) -> str:
    """Why a run that the other dispatcher has begun is held, and how it goes on."""
    who = f" by {old.task.agent}" if old.task.agent else ""
    return (
        f"the old dispatcher had it in flight ({old.status}{who}), and nothing is started twice: once it is certain how it "
        "went there, `interlock close` it if it was done, `interlock unhold` it to start it here, or `interlock cancel` it"
    )


def _end(tx: Tx, ctx: Context, run: Run, old: OldRun) -> Run:
    """End a run that is nobody's here, as it ended there."""
    words = f"{old.status or old.state} in the old dispatcher"
    if old.state is OldState.COMPLETED:
        return operating.close(tx, ctx, run, by=BY, message=words)
    if old.state is OldState.CANCELLED:
        return operating.cancel(tx, ctx, run, by=BY, message=words)
    return move(tx, ctx, run, RunEvent.REJECT, by=BY, reason=str(Reason.EXTERNAL_FAILURE), message=words)


def _hold(tx: Tx, ctx: Context, run: Run, old: OldRun) -> Run:
    run = change(tx, ctx, run, held=True, message=in_flight_words(old))
    if run.state is RunState.DISPATCHED:
        words = "the old dispatcher has it in flight"
        run = move(tx, ctx, run, RunEvent.WITHDRAW, by=BY, reason=str(Reason.OPERATOR), message=words)
    record(tx, ctx, run, Note.HOLD, by=BY, before=run.state, message=run.message)
    return run
