"""What runs wait for: the one place where ``interlock why``, the live view and the end of ``interlock run`` have it from.

One :class:`Waiting` reads once what does not depend on the run (routes, limits, agents' health, the pause), so that hundreds of
runs can be asked about in one transaction. Reasons come one by one, the most binding first: who wants the first one only
pays for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from interlock.decide.capacity import GLOBAL, Saturated, caps, saturated, slot_keys
from interlock.decide.reasons import Wait, WaitKind
from interlock.decide.routing import agent_for, waits_for_route
from interlock.domain.run import Brake, Instance, Run
from interlock.domain.settings import Mode, Settings
from interlock.domain.states import Reason, RunState
from interlock.ports.store import Tx
from interlock.service.brakes import paused
from interlock.service.context import Context
from interlock.service.dispatching import circumstances
from interlock.sources.durations import format_duration

replace = msgspec.structs.replace

TRIES = 2
"""What could not be started this often in a row is taken for something that a person has to put right."""
MIB = 1024 * 1024
ENDING = ("draining", "stopped")
ABOUT_TO_START = "about to start"
_BRAKES = {
    Brake.MEMORY: (WaitKind.MEMORY, "it goes on once memory is free; or lower dispatch.minFreeMemory"),
    Brake.STORE: (WaitKind.STORE, "it goes on by itself once the store serves again"),
}


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What the database does not hold: which dispatchers live, and the free memory."""

    alive: tuple[Instance, ...] = ()
    free_memory_bytes: int | None = None


class Hold(NamedTuple):
    """What holds back dispatching as a whole."""

    kind: WaitKind
    words: str


class Waiting:
    """The runs of a database as one transaction sees them, and who is there to dispatch."""

    def __init__(self, tx: Tx, ctx: Context, around: Surroundings) -> None:
        self._tx = tx
        self._ctx = ctx
        self._surroundings = around
        self._around = circumstances(tx, ctx)
        self._healths = tx.healths()
        self._used = tx.used()
        self._pause = paused(tx)
        self._limits: dict[str, Wait] = {}
        self._caps_of: dict[int | None, Mapping[str, int]] = {}
        self._dispatchers: dict[str | None, list[Wait]] = {}
        self._known: dict[int, bool] = {}

    # the questions

    def why(self, run: Run) -> list[Wait]:
        """Every reason that ``run`` has not started or ended. There always is one."""
        return list(self.waits(run)) or [self._order(run)]

    def waits(self, run: Run) -> Iterator[Wait]:
        """What keeps ``run`` from starting or ending, the most binding first; nothing when its turn has come."""
        if run.terminal:
            yield _ended(run)
        elif run.held_by_agent:
            yield from self._working(run)
        elif run.state is RunState.BLOCKED:
            yield Wait(
                kind=WaitKind.BLOCKED,
                message=f"its agent asked: {run.question}",
                short="asked a question (`interlock answer`)",
                remedy=f"`interlock answer {run.number} TEXT`, or cancel the run",
            )
        else:
            yield from self._not_started(run)

    def goes_on(self, number: int) -> bool:
        """Whether something will happen with a run without a person, be it through those that it needs.

        A pause is not counted: whoever made it ends it. A need that ends badly ends its dependant, so one need that goes on
        is enough.
        """
        # A stack of its own: a chain of needs may be longer than Python's.
        known = self._known
        stack = [number]
        while stack:
            current = stack[-1]
            if current in known:
                stack.pop()
                continue
            run = self._tx.run(current)
            alone = run is not None and self._goes_on_but_for_needs(run)
            if run is None or not alone or run.state is not RunState.QUEUED or not run.needs_left:
                known[current] = alone
                continue
            unmet = [need for need, met in self._tx.needs_of(current) if not met]
            unknown = [need for need in unmet if need not in known]
            if unknown:
                stack.extend(unknown)
            else:
                known[current] = any(known[need] or self._has_ended(need) for need in unmet)
        return known[number]

    def hold(self) -> Hold | None:
        """What holds everything back, if so."""
        if self._pause is not None:
            words = f": {self._pause.message}" if self._pause.message else ""
            return Hold(WaitKind.PAUSED, f"dispatching is paused by {self._pause.by}{words} (`interlock resume`)")
        for instance in self._surroundings.alive:
            if instance.state not in ENDING and instance.note and instance.brake is not None:
                return Hold(_BRAKES[instance.brake][0], instance.note)
        return None

    def _has_ended(self, need: int) -> bool:
        """Whoever waits for a need that has ended is about to be told."""
        run = self._tx.run(need)
        return run is not None and run.terminal

    def _goes_on_but_for_needs(self, run: Run) -> bool:
        if run.terminal or run.state is RunState.BLOCKED:
            return False
        if run.state is not RunState.QUEUED:
            return True
        return all(wait.by_itself or wait.kind is WaitKind.PAUSED for wait in self._but_for_needs(run))

    # the reasons

    def _working(self, run: Run) -> Iterator[Wait]:
        if run.stop is not None:
            yield Wait(
                kind=WaitKind.STOPPING,
                message=f"stopping ({run.stop.kind}): {run.stop.message}; it moves once its agent is gone",
                short="being stopped",
                remedy="wait; its slots are kept until then",
                by_itself=True,
            )
        else:
            until = run.timeout_at_ms
            left = "" if until is None else f", at most {self._in(until)} more"
            who = f"agent '{run.agent}'" if run.agent else run.holder
            yield Wait(
                kind=WaitKind.WORKING,
                message=f"{who} works on it (attempt {run.fence}{left})",
                short="being worked on",
                remedy=f"`interlock logs {run.number} -f` shows what it writes"
                if not run.remote
                else f"wait, or `interlock cancel {run.number}`",
                by_itself=True,
            )
        if not run.remote and run.owner not in {instance.id for instance in self._surroundings.alive}:
            yield Wait(
                kind=WaitKind.NOT_SUPERVISED,
                message=f"no dispatcher looks after its agent now (it was {run.owner})",
                short="without a dispatcher that looks after the agent",
                remedy="`interlock up` (or the same `interlock run`) takes it up again",
            )

    def _not_started(self, run: Run) -> Iterator[Wait]:
        if run.state is RunState.DISPATCHED and run.pull:
            whom = f"agent '{run.agent}'" if run.agent else "any agent that takes it"
            yield Wait(
                kind=WaitKind.OFFERED,
                message=f"it is offered to {whom}; nobody has claimed it yet",
                short="offered, not claimed yet",
                remedy="start an agent that pulls",
                by_itself=True,
            )
        if run.held:
            yield _held(run)
        if run.needs_left:
            yield from self._needs(run)
        yield from self._but_for_needs(run, held=False)

    def _but_for_needs(self, run: Run, *, held: bool = True) -> Iterator[Wait]:
        if held and run.held:
            yield _held(run)
        agent = (
            run.agent if run.state is RunState.DISPATCHED else agent_for(run.task, self._around.routes, self._settings)
        )
        of_agent = self._agent(run, agent)
        if of_agent is not None:
            yield of_agent
        # A run that came back because its agent cannot start waits for that, not for a time.
        said = None if of_agent is None else of_agent.details.get("reason")
        if (
            run.not_before_ms is not None
            and run.not_before_ms > self._ctx.now_ms
            and (run.not_before_why is None or run.not_before_why != said)
        ):
            yield self._time(run, run.not_before_ms)
        if run.state is RunState.QUEUED:
            full = saturated(slot_keys(run.task, agent, self._settings), self._used, self._caps(run.batch))
            # The narrowest one says most: all slots together are full nearly always.
            for limit in sorted(full, key=lambda limit: (limit.cap > 0, limit.key == GLOBAL, limit.cap)):
                yield self._limit(limit)
        yield from self._brakes(run.batch)

    def _needs(self, run: Run) -> Iterator[Wait]:
        for number, met in self._tx.needs_of(run.number):
            need = None if met else self._tx.run(number)
            if need is not None:
                yield Wait(
                    kind=WaitKind.NEED,
                    message=f"it needs #{need.number} ({need.task.title}), which is {need.state}",
                    short="need other tasks first",
                    remedy=f"`interlock why {need.number}`",
                    by_itself=need.terminal or self.goes_on(number),
                    details={"need": need.number},
                )

    def _agent(self, run: Run, agent: str | None) -> Wait | None:
        missing = waits_for_route(run.task, agent, self._around.agents, self._settings)
        if missing is not None and not (run.state is RunState.DISPATCHED and run.pull):
            what, _, remedy = missing.partition(": ")
            return Wait(kind=WaitKind.NO_ROUTE, message=what, short=what, remedy=remedy)
        health = self._healths.get(agent or "")
        if health is None or self._settings.mode is not Mode.PUSH:
            return None
        # Asked for a later time, it would wait anyway; until then somebody may have put the agent right.
        later = run.not_before_why is None and (run.not_before_ms or 0) > self._ctx.now_ms
        return Wait(
            kind=WaitKind.AGENT_UNAVAILABLE,
            message=f"agent '{agent}' cannot be started: {health.reason}",
            short=f"agent '{agent}' cannot be started: {health.reason}; next try",
            remedy=f"put that right; it is tried again in {self._in(health.retry_ms)}",
            # Once its wait is over, the next run that may start tries it.
            by_itself=later or health.retry_ms <= self._ctx.now_ms or (health.tries < TRIES and not _misfires(run)),
            until_ms=health.retry_ms,
            details={"agent": agent, "tries": health.tries, "reason": health.reason},
        )

    def _time(self, run: Run, until_ms: int) -> Wait:
        if run.not_before_why is None:
            return Wait(
                kind=WaitKind.NOT_BEFORE,
                message=f"it is not to start before a certain time: in {self._in(until_ms)}",
                short="not to start yet; the first",
                remedy="it starts by itself then",
                by_itself=True,
                until_ms=until_ms,
                details={"not_before_ms": until_ms},
            )
        return Wait(
            kind=WaitKind.BACKOFF,
            message=f"next try in {self._in(until_ms)}: {run.not_before_why}",
            short="wait for another try; the first",
            remedy="put that right; it is tried again then" if _misfires(run) else "it goes on by itself then",
            by_itself=not _misfires(run),
            until_ms=until_ms,
            details={"not_before_ms": until_ms, "why": run.not_before_why},
        )

    def _caps(self, batch: str | None) -> Mapping[str, int]:
        """The limits in force; of all together, that of the dispatchers which look after the run (`run -j` has its own)."""
        totals = [
            instance.total
            for instance in self._surroundings.alive
            if instance.scope in (None, batch) and instance.total is not None
        ]
        total = max(totals, default=None)
        if total not in self._caps_of:
            limits = self._settings.limits if total is None else replace(self._settings.limits, total=total)
            self._caps_of[total] = caps(replace(self._settings, limits=limits), self._around.routes)
        return self._caps_of[total]

    def _limit(self, full: Saturated) -> Wait:
        if full.key not in self._limits:
            holders = [number for number, *_ in self._tx.slot_holders(full.key, 5)]
            by = ", ".join(f"#{number}" for number in holders)
            more = f" and {full.used - len(holders)} more" if full.used > len(holders) else ""
            noun, _, value = full.key.partition(":")
            what = f"{noun} '{value}'" if value else noun
            if full.key == GLOBAL:
                short = f"wait for a free slot (all {full.cap} in use)" if full.cap else "wait: concurrency is 0"
            else:
                short = f"wait: limit of {noun} {value} is full ({full.used} of {full.cap})"
            self._limits[full.key] = Wait(
                kind=WaitKind.LIMIT,
                message=f"the limit of {what} is full: {full.used} of {full.cap} in use, by {by}{more}"
                if holders
                else f"the limit of {what} is {full.cap}",
                short=short,
                remedy="it starts when one of them ends; or raise the limit" if full.cap else "raise the limit",
                by_itself=full.cap > 0,
                details={"key": full.key, "cap": full.cap, "used": full.used, "held_by": holders},
            )
        return self._limits[full.key]

    def _brakes(self, batch: str | None) -> list[Wait]:
        """What holds back every run of a batch alike."""
        if batch not in self._dispatchers:
            self._dispatchers[batch] = [*self._switched_off(), *self._nobody_dispatches(batch)]
        return self._dispatchers[batch]

    def _switched_off(self) -> Iterator[Wait]:
        if self._pause is not None:
            since = format_duration(max(0, self._ctx.now_ms - self._pause.at_ms))
            words = f": {self._pause.message}" if self._pause.message else ""
            yield Wait(
                kind=WaitKind.PAUSED,
                message=f"dispatching is paused since {since} by {self._pause.by}{words}",
                short="held back",
                remedy="`interlock resume`",
            )
        if not self._settings.enabled:
            yield Wait(
                kind=WaitKind.DISABLED,
                message="dispatch.enabled is false",
                short="held back: dispatch.enabled is false",
                remedy="set it to true in interlock.yaml and restart the daemon",
            )

    def _nobody_dispatches(self, batch: str | None) -> Iterator[Wait]:
        alive = self._surroundings.alive
        nobody = "without a dispatcher that looks after them"
        fitting = [instance for instance in alive if instance.scope in (None, batch)]
        working = [instance for instance in fitting if instance.state not in ENDING]
        if not alive:
            yield Wait(
                kind=WaitKind.NO_DISPATCHER,
                message="no dispatcher is running for this data folder",
                short=nobody,
                remedy="`interlock up` starts one",
            )
            yield from self._too_little_memory()
        elif not fitting:
            yield Wait(
                kind=WaitKind.OUT_OF_SCOPE,
                message="the dispatcher that runs looks after another backlog only",
                short=nobody,
                remedy="`interlock up` takes everything",
            )
        elif not working:
            for instance in fitting:
                yield Wait(
                    kind=WaitKind.NO_DISPATCHER,
                    message=f"{instance.id} is {instance.state} and starts nothing new",
                    short=nobody,
                    remedy="`interlock up` once it has ended",
                )
        elif all(instance.brake is not None for instance in working):
            for instance in working:
                assert instance.brake is not None
                kind, remedy = _BRAKES[instance.brake]
                message = f"{instance.id} dispatches nothing now: {instance.note}"
                yield Wait(kind=kind, message=message, short="held back", remedy=remedy, by_itself=True)

    def _too_little_memory(self) -> Iterator[Wait]:
        """What the next dispatcher will find: none is there to say so."""
        floor, free = self._settings.min_free_memory_bytes, self._surroundings.free_memory_bytes
        if floor and free is not None and free < floor:
            kind, remedy = _BRAKES[Brake.MEMORY]
            message = f"{free // MIB} MiB of memory are free, under the floor of {floor // MIB} MiB"
            yield Wait(kind=kind, message=message, short="held back", remedy=remedy, by_itself=True)

    def _order(self, run: Run) -> Wait:
        ahead = self._tx.lane_rank(run, 1000) if run.state is RunState.QUEUED else 0
        if ahead:
            many = "1000 or more" if ahead == 1000 else str(ahead)
            return Wait(
                kind=WaitKind.BEHIND,
                message=f"{many} run(s) like it go before it (higher priority, or older)",
                short=ABOUT_TO_START,
                remedy=f"`interlock set {run.number} --priority N` moves it up",
                by_itself=True,
            )
        return Wait(
            kind=WaitKind.NEXT,
            message="nothing holds it back; it starts with the next free slot",
            short=ABOUT_TO_START,
            remedy=f"wait a moment; `interlock logs {run.number} -f` follows it from its start",
            by_itself=True,
        )

    @property
    def _settings(self) -> Settings:
        return self._ctx.settings

    def _in(self, at_ms: int) -> str:
        return format_duration(max(0, at_ms - self._ctx.now_ms))


def _ended(run: Run) -> Wait:
    remedy = "" if run.state is RunState.COMPLETED else f"`interlock retry {run.number}` makes a new run of it"
    message = f"it ended {run.state} ({run.reason}): {run.message}"
    return Wait(kind=WaitKind.ENDED, message=message, short="ended", remedy=remedy)


def _held(run: Run) -> Wait:
    return Wait(
        kind=WaitKind.HELD,
        message=f"it is on hold: {run.message}" if run.message else "it is on hold",
        short="on hold (`interlock unhold`)",
        remedy=f"`interlock unhold {run.number}`",
    )


def _misfires(run: Run) -> bool:
    """Whether its start failed again and again. One that a dispatcher did not live to see says nothing about the next."""
    return run.misfires >= TRIES and run.reason != Reason.NOT_STARTED
