"""What the database knows of a run, as a small value, and the way to the service's own types and back.

Times are left out but for one question: has the next deadline passed (:class:`Age`)? Backoffs are left out too: any of
them may be over at any moment, which only adds to what can happen.
"""

from __future__ import annotations

from enum import IntEnum
from random import Random
from typing import NamedTuple

from one_run_tx import NUMBER, OneRunTx
from setting import Setting

from interlock.decide.readiness import derived, offer_timeout_ms
from interlock.domain.run import Attempt, Run, Stop
from interlock.domain.settings import Mode, Settings
from interlock.domain.states import ACTIVE, HELD_BY_AGENT, TERMINAL, AttemptState, RunState, StopKind
from interlock.domain.task import Task
from interlock.machines.table import ATTEMPT
from interlock.service.context import Context

NOW = 1_700_000_000_000
HOUR = 3_600_000
DOWN_MS = 48 * HOUR
"""How long a downtime lasts: longer than every deadline."""
REQUEST_ID = "q"
OFFER_NUMBER = 5


class Age(IntEnum):
    """The next deadline of a run (offer, lease or timeout): ahead, passed, or passed only because nobody was awake."""

    FRESH = 0
    PASSED = 1
    SLEPT = 2


class Who(IntEnum):
    """Holders of claims: nobody, the local agent, two from outside."""

    NOBODY = 0
    LOCAL = 1
    X = 2
    Y = 3


class Owner(IntEnum):
    """Dispatchers that look after a local claim. ``GONE``: an instance that is dead and never comes back."""

    NONE = -1
    D0 = 0
    D1 = 1
    GONE = 2


class Request(IntEnum):
    """A request for a claim: for the open offer, or an older one; or one that was granted the last claim, or an earlier one."""

    NONE = 0
    OPEN = 1
    OLD_OFFER = 2
    SPENT = 3
    SPENT_BEFORE = 4


class Record(NamedTuple):
    """A run and its last attempt. ``by``, ``ending``, ``attempt``: holder, ending event, and state of attempt ``fence``."""

    state: RunState = RunState.QUEUED
    fence: int = 0
    held: bool = False
    pull: bool = False
    holder: int = Who.NOBODY
    owner: int = Owner.NONE
    stop: StopKind | None = None
    then: StopKind | None = None
    age: int = Age.FRESH
    failures: int = 0
    losts: int = 0
    defers: int = 0
    releases: int = 0
    offers: int = 0
    slots: bool = False
    by: int = Who.NOBODY
    attempt: AttemptState | None = None
    ending: str | None = None

    @property
    def terminal(self) -> bool:
        """Whether it has ended."""
        return self.state in TERMINAL

    @property
    def live(self) -> bool:
        """Whether a claim on it is live."""
        return self.state in HELD_BY_AGENT

    @property
    def remote(self) -> bool:
        """Whether its holder comes from outside."""
        return self.holder >= Who.X

    def held_by(self, holder: int, fence: int) -> bool:
        """Whether this claim is the live one."""
        return self.state in HELD_BY_AGENT and self.holder == holder and self.fence == fence


def holder_name(holder: int, fence: int) -> str:
    """As the service names them: a local holder is made of agent, run and fence."""
    return {Who.LOCAL: f"a/{NUMBER}.{fence}", Who.X: "x", Who.Y: "y"}[Who(holder)]


def owner_name(owner: int) -> str | None:
    """Instances by name."""
    return {Owner.NONE: None, Owner.D0: "d0", Owner.D1: "d1", Owner.GONE: "gone"}[Owner(owner)]


_HOLDERS = {"x": Who.X, "y": Who.Y}
_OWNERS = {None: Owner.NONE, "d0": Owner.D0, "d1": Owner.D1, "gone": Owner.GONE}


def context(settings: Settings) -> Context:
    """The present, and chance that is always the same: it only lengthens backoffs."""
    return Context(now_ms=NOW, rng=Random(1), settings=settings)


def _stop(record: Record) -> Stop | None:
    def intent(kind: StopKind, then: Stop | None = None) -> Stop:
        return Stop(kind=kind, reason=str(kind), message=f"stop by {kind}", by="somebody", at_ms=NOW, then=then)

    if record.stop is None:
        return None
    return intent(record.stop, None if record.then is None else intent(record.then))


def _times(record: Record, settings: Settings) -> dict[str, int | None]:
    """Concrete times that are as old as ``record.age`` says."""
    passed = record.age != Age.FRESH
    if record.state is RunState.DISPATCHED and record.pull:
        waited = offer_timeout_ms(record.offers, settings) + 1 if passed else 0
        return {"offered_ms": NOW - waited}
    if not record.live:
        return {}
    late = NOW - 2 * settings.leases.grace_ms
    ahead = NOW + HOUR
    lease = late if passed and record.remote else ahead
    timeout = late if passed and not record.remote else ahead
    return {"lease_expires_ms": lease, "timeout_at_ms": timeout, "claimed_ms": NOW - 2 * HOUR}


def to_run(record: Record, settings: Settings) -> Run:
    """The run that ``record`` is the sum of."""
    run = Run(
        number=NUMBER,
        id="r",
        state=record.state,
        task=Task(title="t"),
        content_hash="",
        held=record.held,
        pull=record.pull,
        agent="a" if record.state in ACTIVE else None,
        fence=record.fence,
        holder=holder_name(record.holder, record.fence) if record.live else None,
        remote=record.remote,
        owner=owner_name(record.owner),
        stop=_stop(record),
        failures=record.failures,
        losts=record.losts,
        defers=record.defers,
        releases=record.releases,
        offers=record.offers,
        dispatch_count=OFFER_NUMBER,
        question="which way?" if record.state is RunState.BLOCKED else None,
        first_claimed_ms=NOW - 3 * HOUR if record.fence else None,
        ended_ms=NOW if record.terminal else None,
        reason="done" if record.terminal else None,
        message="as it ended" if record.terminal else None,
        **_times(record, settings),  # type: ignore[arg-type]
    )
    return derived(run, NOW, settings)


def _attempt(record: Record, request: Request) -> Attempt | None:
    if record.by == Who.NOBODY or record.attempt is None:
        return None
    over = record.attempt in ATTEMPT.final
    return Attempt(
        run=NUMBER,
        fence=record.fence,
        state=record.attempt,
        holder=holder_name(record.by, record.fence),
        remote=record.by >= Who.X,
        request_id=REQUEST_ID if request is Request.SPENT else None,
        started_ms=NOW - HOUR if record.state is RunState.RUNNING else None,
        ended_ms=NOW if over else None,
        reason="done" if over else None,
        message="as it ended" if over else None,
        ending_event=record.ending,
        folder=f"{record.fence}",
    )


def open_tx(
    record: Record,
    setting: Setting,
    mode: Mode = Mode.PUSH,
    *,
    room: bool = True,
    paused: bool = False,
    pullers: tuple[str, ...] = (),
    request: Request = Request.NONE,
    asker: int = Who.X,
) -> tuple[OneRunTx, Context]:
    """A transaction that finds the run as ``record`` has it, and the context of a command in it."""
    settings = setting.settings(mode)
    attempt = _attempt(record, request)
    attempts = {} if attempt is None else {record.fence: attempt}
    requests: dict[str, Attempt] = {}
    if request is Request.SPENT and attempt is not None:
        requests[REQUEST_ID] = attempt
    elif request is Request.SPENT_BEFORE:
        requests[REQUEST_ID] = Attempt(
            run=NUMBER, fence=0, state=AttemptState.LAPSED, holder=holder_name(asker, 0), ended_ms=NOW
        )
    tx = OneRunTx(
        to_run(record, settings),
        attempts,
        slots=record.slots,
        elsewhere=setting.limit - 1 if room else setting.limit,
        paused=paused,
        pullers=pullers,
        requests=requests,
        alive_ms=NOW - DOWN_MS if record.age == Age.SLEPT else NOW - 1,
    )
    return tx, context(settings)


def from_tx(tx: OneRunTx, before: Record, settings: Settings) -> Record:
    """What the transaction left behind."""
    run = tx.now_run
    attempt = tx.attempt(NUMBER, run.fence)
    holder = Who.NOBODY if run.holder is None else _HOLDERS.get(run.holder, Who.LOCAL)
    overdue = Age.SLEPT if before.age == Age.SLEPT else Age.PASSED
    by = before.by if run.fence == before.fence else holder
    return Record(
        state=run.state,
        fence=run.fence,
        held=run.held,
        pull=run.pull,
        holder=holder,
        owner=_OWNERS[run.owner],
        stop=None if run.stop is None else run.stop.kind,
        then=None if run.stop is None or run.stop.then is None else run.stop.then.kind,
        age=overdue if _overdue(run, settings) else Age.FRESH,
        failures=run.failures,
        losts=run.losts,
        defers=run.defers,
        releases=run.releases,
        offers=run.offers if run.state is RunState.DISPATCHED else 0,
        slots=tx.has_slots,
        by=by,
        attempt=None if attempt is None else attempt.state,
        ending=None if attempt is None else attempt.ending_event,
    )


def _overdue(run: Run, settings: Settings) -> bool:
    if run.state is RunState.DISPATCHED:
        return (
            run.pull and run.offered_ms is not None and run.offered_ms + offer_timeout_ms(run.offers, settings) <= NOW
        )
    if run.state not in HELD_BY_AGENT:
        return False
    deadline = run.lease_expires_ms if run.remote else run.timeout_at_ms
    assert deadline is not None
    return deadline + (settings.leases.grace_ms if run.remote else 0) <= NOW
