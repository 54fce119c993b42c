"""The service's own commands on a :class:`~record.Record`: each real transaction is run once per value and remembered.

Where a rule is switched off, the command is the one that somebody would have written without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from one_run_tx import NUMBER, OneRunTx, Refused
from record import OFFER_NUMBER, REQUEST_ID, Record, Request, from_tx, holder_name, open_tx, owner_name
from setting import Rule, Setting

from interlock.decide.budget import settle
from interlock.decide.outcome import Outcome, OutcomeKind, ResultFile, decide
from interlock.domain.errors import AlreadyClaimed, IllegalTransition, InterlockError, StaleClaim
from interlock.domain.run import Attempt, Run, Stop, Usage
from interlock.domain.settings import Mode
from interlock.domain.states import AttemptState, Reason, RunEvent, RunState, StopKind
from interlock.machines.table import ATTEMPT, RUN
from interlock.ports.store import Tx
from interlock.service import claims, dispatching, operating, supervising
from interlock.service.context import Context
from interlock.service.moves import move

DONE, STALE, TAKEN, CONFLICT, ILLEGAL, BROKEN = "done", "stale", "taken", "conflict", "illegal", "broken"

ENDINGS: dict[str, Outcome] = {
    "completed": Outcome(kind=OutcomeKind.COMPLETED, reason=Reason.DONE, message="done"),
    "failed": Outcome(kind=OutcomeKind.FAILED, reason=Reason.AGENT_FAILED, message="failed"),
    "gave up": Outcome(kind=OutcomeKind.FAILED, reason=Reason.PERMANENT_FAILURE, message="never", permanent=True),
    "returned": Outcome(kind=OutcomeKind.RETURNED, reason=Reason.GIVEN_BACK, message="given back"),
    "deferred": Outcome(kind=OutcomeKind.DEFERRED, reason=Reason.DEFERRED, message="later"),
    "asked": Outcome(kind=OutcomeKind.BLOCKED, reason=Reason.HELP_NEEDED, message="help", question="which way?"),
    "cannot start": Outcome(kind=OutcomeKind.CANNOT_START, reason=Reason.AGENT_UNAVAILABLE, message="no command"),
    "not started": Outcome(kind=OutcomeKind.INTERRUPTED, reason=Reason.NOT_STARTED, message="never ran"),
}
"""What a claim can be ended with that is not decided from a process's end."""

WORDS: dict[str, tuple[int | None, ResultFile | None]] = {
    "": (None, None),
    "done": (0, None),
    "fails": (1, None),
    "defers": (75, None),
    "asks": (0, ResultFile(outcome=OutcomeKind.BLOCKED, question="which way?")),
}
"""How a local agent ends: exit status and result file. Empty: it leaves neither."""


class Answer(NamedTuple):
    """What a command led to: the record, how it was answered, and the events and notes that were written.

    ``go_on``: what a heartbeat is told.
    """

    record: Record
    said: str
    wrote: tuple[str, ...] = ()
    go_on: bool | None = None


class Commands:
    """Everything that anybody asks of the service, by value."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._memory: dict[Any, Answer] = {}
        self.taken: set[tuple[RunState, str]] = set()

    def _do(
        self,
        key: tuple[Any, ...],
        work: Callable[[OneRunTx, Context], object],
        mode: Mode = Mode.PUSH,
        writes: str | None = None,
        **around: Any,
    ) -> Answer:
        known = self._memory.get(key)
        if known is not None:
            return known
        record: Record = key[1]
        tx, ctx = open_tx(record, self.setting, mode, **around)
        try:
            with self._without_rules():
                result = work(tx, ctx)
        except StaleClaim:
            answer = Answer(record, STALE)
        except AlreadyClaimed:
            answer = Answer(record, TAKEN)
        except IllegalTransition:
            answer = Answer(record, ILLEGAL)
        except InterlockError:
            answer = Answer(record, CONFLICT)
        except Refused as refused:
            answer = Answer(record, f"{BROKEN}: {refused}")
        else:
            after = from_tx(tx, record, ctx.settings)
            answer = Answer(after, DONE, tuple(tx.moved), getattr(result, "go_on", None))
            if writes is not None:
                # A heartbeat is a move that writes no event.
                self.taken.add((answer.record.state, writes))
        self._memory[key] = answer
        self._note(record, answer)
        return answer

    def _note(self, record: Record, answer: Answer) -> None:
        state = record.state
        for event in answer.wrote:
            if (state, event) in RUN.moves:
                self.taken.add((state, event))
                state = RUN.moves[state, event]

    @contextmanager
    def _without_rules(self) -> Iterator[None]:
        """The service as it would be without the rules that are off."""
        setting = self.setting
        if not setting.on(Rule.BLOCK):
            moves = {pair: to for pair, to in RUN.moves.items() if pair != (RunState.CLAIMED, "block")}
            with patch.object(RUN, "moves", moves):
                yield
        elif not setting.on(Rule.HOLDER):
            with patch.object(claims, "checked", _checked_by_fence):
                yield
        elif not setting.on(Rule.HELD_BACK):
            with patch.object(claims, "not_to_be_offered", lambda *_: None):
                yield
        else:
            yield

    # admission and claims

    def dispatch(self, record: Record, owner: int, mode: Mode, *, room: bool, paused: bool) -> Answer:
        """A round of dispatching by dispatcher ``owner``."""
        name = owner_name(owner) or ""
        return self._do(
            ("dispatch", record, owner, mode, room, paused),
            lambda tx, ctx: dispatching.dispatch(_port(tx), ctx, owner=name, scope=None, bound=1),
            mode,
            room=room,
            paused=paused,
        )

    def claim(self, record: Record, holder: int, request: Request, *, paused: bool) -> Answer:
        """A request for a claim from outside."""
        identified = self.setting.on(Rule.REQUEST)
        offer = OFFER_NUMBER if request is not Request.OLD_OFFER else OFFER_NUMBER - 1
        return self._do(
            ("claim", record, holder, request, paused),
            lambda tx, ctx: claims.claim_offer(
                _port(tx),
                ctx,
                tx.now_run,
                holder=holder_name(holder, 0),
                request_id=REQUEST_ID if identified else None,
                offer=offer if identified else None,
            ),
            Mode.PULL,
            paused=paused,
            request=request,
            asker=holder,
        )

    def start(self, record: Record, holder: int, fence: int) -> Answer:
        """The agent is confirmed working."""
        name = holder_name(holder, fence)
        return self._do(
            ("start", record, holder, fence),
            lambda tx, ctx: claims.start(_port(tx), ctx, NUMBER, name, fence),
        )

    def renew(self, record: Record, holder: int, fence: int) -> Answer:
        """A heartbeat."""
        name = holder_name(holder, fence)
        return self._do(
            ("renew", record, holder, fence),
            lambda tx, ctx: claims.renew(_port(tx), ctx, NUMBER, name, fence),
            writes="renew",
        )

    def report_usage(self, record: Record, holder: int, fence: int) -> Answer:
        """A write that moves nothing."""
        name, usage = holder_name(holder, fence), Usage(input_tokens=1)
        return self._do(
            ("usage", record, holder, fence),
            lambda tx, ctx: claims.report_usage(_port(tx), ctx, NUMBER, name, fence, usage),
        )

    def finish(self, record: Record, holder: int, fence: int, outcome: Outcome, *, paused: bool) -> Answer:
        """The end of a claim."""
        name = holder_name(holder, fence)
        if not self.setting.on(Rule.HOLDER_TABLE):
            return self._do(
                ("finish", record, fence, outcome), lambda tx, ctx: _finish_by_fence(tx, ctx, fence, outcome)
            )
        return self._do(
            ("finish", record, holder, fence, outcome, paused),
            lambda tx, ctx: claims.finish(_port(tx), ctx, NUMBER, name, fence, outcome),
            paused=paused,
        )

    # the system

    def reap(self, record: Record, *, fitting: bool, paused: bool) -> Answer:
        """The reaper's look."""
        pretends = not self.setting.on(Rule.FITTING)
        return self._do(
            ("reap", record, fitting, paused),
            lambda tx, ctx: supervising.reap(_port(tx), ctx, 1),
            Mode.PULL,
            pullers=("x",) if fitting or pretends else (),
            paused=paused,
        )

    def catch_up(self, record: Record) -> Answer:
        """Downtime is given back."""
        return self._do(
            ("catch up", record),
            lambda tx, ctx: supervising.catch_up(_port(tx), ctx, epoch=("boot", 0), threshold_ms=12_000),
        )

    def adopt(self, record: Record, old_owner: int, new_owner: int) -> Answer:
        """A takeover by compare-and-swap; without the comparison if that rule is off."""
        expected = record.owner if not self.setting.on(Rule.OWNER_CAS) else old_owner
        old, new = owner_name(expected) or "", owner_name(new_owner) or ""
        return self._do(
            ("adopt", record, expected, new_owner),
            lambda tx, ctx: supervising.adopt_all(_port(tx), ctx, [(NUMBER, old)], new_owner=new),
        )

    def forget(self, record: Record) -> Answer:
        """The claim is ended as lost, without a look at its process."""
        return self._do(
            ("forget", record),
            lambda tx, ctx: supervising.forget_process(_port(tx), ctx, tx.now_run, by="system"),
        )

    def lapse(self, record: Record) -> Answer:
        """A lapse that was decided on earlier, carried out without a second look."""
        return self._do(("lapse", record), _lapse_unseen)

    def withdraw(self, record: Record) -> Answer:
        """A withdrawal that does not look at what it takes."""
        return self._do(("withdraw", record), _withdraw_unseen)

    # operators

    def cancel(self, record: Record) -> Answer:
        """Cancel; without the rule of intents: at once."""
        if not self.setting.on(Rule.STOP_INTENT):
            return self._do(("cancel", record), _cancel_at_once)
        return self._stop_or_move("cancel", record, operating.cancel)

    def close(self, record: Record) -> Answer:
        """It was done elsewhere."""
        return self._stop_or_move("close", record, lambda tx, ctx, run: operating.close(tx, ctx, run, by="source"))

    def interrupt(self, record: Record) -> Answer:
        """Stop its agent, queue it again."""
        return self._stop_or_move(
            "interrupt", record, lambda tx, ctx, run: operating.interrupt(tx, ctx, run, by="d0", message="stop")
        )

    def _stop_or_move(self, name: str, record: Record, command: Callable[[Tx, Context, Run], Run]) -> Answer:
        if record.stop is not None and not self.setting.on(Rule.THEN):
            return Answer(record, DONE)
        return self._do((name, record), lambda tx, ctx: command(_port(tx), ctx, tx.now_run))

    def hold(self, record: Record, *, held: bool) -> Answer:
        """Put on hold, or let go."""
        command = operating.hold if held else operating.unhold
        return self._do(("hold", record, held), lambda tx, ctx: command(_port(tx), ctx, tx.now_run))

    def answer(self, record: Record) -> Answer:
        """A person answers."""
        return self._do(("answer", record), lambda tx, ctx: operating.answer(_port(tx), ctx, tx.now_run, "that way"))

    def withdraw_offers(self, record: Record) -> Answer:
        """What a pause does to this run."""
        if not self.setting.on(Rule.PAUSE) and record.live:
            return self.withdraw(record)
        return self._do(
            ("pause", record),
            lambda tx, ctx: dispatching.withdraw_offers(_port(tx), ctx, Reason.PAUSED, "paused", 10),
        )


def outcome_of_end(word: str, stop: StopKind | None) -> Outcome:
    """What the end of a local agent means, by the real decision."""
    intent = None if stop is None else Stop(kind=stop, reason=str(stop), message="stop", by="somebody", at_ms=0)
    status, result = WORDS[word]
    return decide(stop=intent, exit_status=status, result=result, result_fault=None, tail="the last line")


def _port(tx: OneRunTx) -> Any:
    """It has what the commands ask for, not the whole port."""
    return tx


def _checked_by_fence(tx: Tx, number: int, holder: str, fence: int) -> tuple[Run, Attempt]:
    """As it would be if the fence were all that counts."""
    run, attempt = tx.run(number), tx.attempt(number, fence)
    if run is None or attempt is None or run.fence != fence:
        raise StaleClaim(f"{holder} comes too late", hint="stop")
    return run, attempt


def _finish_by_fence(tx: OneRunTx, ctx: Context, fence: int, outcome: Outcome) -> None:
    """One UPDATE with the fence in its WHERE, as many queues have it."""
    run = tx.now_run
    if run.fence != fence or run.terminal:
        raise StaleClaim("too late", hint="stop")
    attempt = tx.attempt(NUMBER, fence)
    settlement = settle(run, outcome, ctx.settings, ctx.now_ms, ctx.rng)
    with patch.object(RUN, "moves", {**RUN.moves, **_by_anybody(run.state)}):
        for event in settlement.events:
            run = move(
                _port(tx),
                ctx,
                run,
                event,
                by="fence",
                reason=str(outcome.reason),
                message=outcome.message,
                changes={"failures": settlement.failures, "losts": settlement.losts, "defers": settlement.defers},
            )
    if attempt is not None and attempt.ended_ms is None:
        _end(tx, attempt, settlement.attempt_event)


def _by_anybody(state: RunState) -> dict[tuple[RunState, str], RunState]:
    return {(state, event): to for (source, event), to in RUN.moves.items() if source is RunState.RUNNING}


def _end(tx: OneRunTx, attempt: Attempt, event: str) -> None:
    state = AttemptState(ATTEMPT.target(attempt.state, event))
    changes = {"state": state, "ended_ms": 1, "reason": event, "message": event, "ending_event": event}
    tx.save_attempt(attempt, claims.replace(attempt, **changes))


def _move_unseen(tx: OneRunTx, ctx: Context, event: RunEvent, ends: str) -> None:
    run = tx.now_run
    attempt = tx.attempt(NUMBER, run.fence)
    if attempt is not None and attempt.ended_ms is None:
        _end(tx, attempt, ends)
    move(_port(tx), ctx, run, event, by="system", reason="operator", message="unseen")


def _withdraw_unseen(tx: OneRunTx, ctx: Context) -> None:
    _move_unseen(tx, ctx, RunEvent.WITHDRAW, "interrupt")


def _cancel_at_once(tx: OneRunTx, ctx: Context) -> None:
    _move_unseen(tx, ctx, RunEvent.CANCEL, "cancel")


def _lapse_unseen(tx: OneRunTx, ctx: Context) -> None:
    run = tx.now_run
    attempt = tx.attempt(NUMBER, run.fence)
    assert attempt is not None
    outcome = Outcome(kind=OutcomeKind.LAPSED, reason=Reason.LEASE_LAPSED, message="decided earlier")
    claims.end_attempt(_port(tx), ctx, run, attempt, outcome, by="system")
