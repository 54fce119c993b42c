"""The service: every command and every question, as one object over a store.

Each command is one transaction. It is a plain function of (transaction, context, ...) in one of the modules beside this one;
the methods here run it on the store, with the time of the moment in which it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from random import Random, SystemRandom
from typing import Any, Protocol, TypeVar

from interlock.decide.outcome import Outcome, OutcomeKind
from interlock.decide.reasons import Wait
from interlock.domain.puller import Puller
from interlock.domain.run import AgentHealth, Claim, Event, Instance, ProcessIdentity, Route, Run, Usage
from interlock.domain.settings import Agent, Settings
from interlock.domain.states import Reason, StopKind
from interlock.domain.task import Task
from interlock.domain.template import TaskTemplate
from interlock.domain.token import Scope, Token
from interlock.ports.clock import Clock
from interlock.ports.store import Changes, Store, Tx
from interlock.service import (
    brakes,
    claims,
    dispatching,
    filing,
    importing,
    operating,
    pulling,
    reads,
    submitting,
    supervising,
    templating,
    tokens,
    waiting,
)
from interlock.service.context import OPERATOR, Context, find_run
from interlock.sources.workflow_runs import OldRun

T = TypeVar("T")
FEW = 32
"""So many tasks are submitted without keeping the loop from anything else."""
Ref = str | int | Run


class WriteAndDispatch(Protocol):
    """Runs a command in a transaction, and in the same one has runs dispatched. The answer is that of the command."""

    async def __call__(self, command: Callable[[Tx, Context], T], /) -> T:
        """See :meth:`Service.write`."""
        ...


class Service:
    """The one door. Safe for use by many tasks at once; other processes may use the same file."""

    def __init__(self, store: Store, clock: Clock, settings: Settings, *, rng: Random | None = None) -> None:
        self.store = store
        self.clock = clock
        self.settings = settings
        self.rng = rng or SystemRandom()
        self._followed = False
        self.dispatcher: WriteAndDispatch | None = None
        """The dispatcher in this process, while it starts runs: writes a command with a round of dispatching behind it."""

    def context(self) -> Context:
        """Time, chance and settings for a command that runs now."""
        return Context(now_ms=self.clock.now_ms(), rng=self.rng, settings=self.settings)

    async def write(self, command: Callable[[Tx, Context], T], *, bulk: bool = False) -> T:
        """Run a command in a transaction. The time is read when the transaction has begun, so that commands are in order.

        ``bulk``: it may take long, for it goes over many runs.
        """

        def work(tx: Tx) -> tuple[bool, T]:
            stepped = abs(self.clock.step_ms()) > supervising.CLOCK_STEP_MS
            follows = stepped or not self._followed
            if follows:
                self._follow_clock(tx, stepped=stepped)
            return follows, command(tx, self.context())

        follows, answer = await self.store.write(work, bulk=bulk)
        # Not before it is on disk: a command that was refused has taken the look at the clock back with it.
        self._followed = self._followed or follows
        return answer

    def _follow_clock(self, tx: Tx, *, stepped: bool) -> None:
        """Somebody set the wall clock: move what is stored along, once for all processes, before anything is written by it."""
        self._followed = False
        if stepped:
            self.clock.reanchor()
        supervising.follow_clock(tx, self.context(), self.clock.epoch())

    async def read(self, question: Callable[[Tx, Context], T]) -> T:
        """Answer a question from a snapshot."""
        return await self.store.read(lambda tx: question(tx, self.context()))

    def changes(self) -> AbstractAsyncContextManager[Changes]:
        """Listen for commits, of this process and others."""
        return self.store.changes()

    # submitting

    async def submit(self, task: Task, *, held: bool = False, by: str = OPERATOR) -> submitting.Submitted:
        """Queue one task. With a ``unique`` key that an unfinished run has, that run comes back instead."""
        return (await self.submit_all([task], held=held, by=by))[0]

    async def submit_all(
        self, tasks: Iterable[Task], *, held: bool = False, by: str = OPERATOR
    ) -> list[submitting.Submitted]:
        """Queue several, all or none; their ``needs`` may name each other."""
        items = [submitting.Item(task=task, held=held) for task in tasks]

        def command(tx: Tx, ctx: Context) -> list[submitting.Submitted]:
            return submitting.submit(tx, ctx, items, by=by)

        if self.dispatcher is not None and len(items) <= FEW:
            # What may start at once is claimed by the commit that accepts it.
            return await self.dispatcher(command)
        return await self.write(command, bulk=len(items) > FEW)

    async def submit_once(
        self, tasks: Iterable[Task], *, key: str, digest: str, held: bool = False, by: str = OPERATOR
    ) -> list[submitting.Submitted]:
        """The same as :meth:`submit_all`, answered the same when it is asked for again; see
        :func:`interlock.service.submitting.submit_once`.
        """
        items = [submitting.Item(task=task, held=held) for task in tasks]
        return await self.write(
            lambda tx, ctx: submitting.submit_once(tx, ctx, items, key=key, digest=digest, by=by),
            bulk=len(items) > FEW,
        )

    async def reconcile_batch(
        self,
        batch: str,
        tasks: Sequence[tuple[str, Task]],
        *,
        retry_failed: bool = False,
        again: bool = False,
    ) -> list[submitting.Planned]:
        """Bring a batch up to its backlog; see :func:`interlock.service.submitting.reconcile_batch`."""
        return await self.write(
            lambda tx, ctx: submitting.reconcile_batch(tx, ctx, batch, tasks, retry_failed=retry_failed, again=again),
            bulk=True,
        )

    async def take_over(self, runs: Sequence[OldRun], wanted: importing.Wanted) -> list[importing.TakenOver]:
        """Import runs of another dispatcher; see :func:`interlock.service.importing.take_over`."""
        return await self.write(lambda tx, ctx: importing.take_over(tx, ctx, runs, wanted), bulk=True)

    async def retry(self, ref: Ref, *, by: str = OPERATOR) -> Run:
        """A new run of the task of a terminal one."""
        return await self._on(ref, lambda tx, ctx, run: submitting.retry(tx, ctx, run, by=by))

    async def needs_first(self, numbers: Sequence[int]) -> list[int]:
        """The same runs, each before those that need it: the order to retry them in."""
        return await self.store.read(lambda tx: submitting.needs_first(tx, numbers))

    async def put_adhoc_agent(self, agent: Agent) -> None:
        """Make an agent known that no configuration file has."""
        await self.write(lambda tx, _: tx.put_adhoc_agent(agent))

    # dispatching

    async def dispatch(
        self, *, owner: str, scope: str | None = None, bound: int = 64, fit: Container[str] | None = None
    ) -> dispatching.Dispatched:
        """Admit what may start; see :func:`interlock.service.dispatching.dispatch`."""
        return await self.write(partial(dispatching.dispatch, owner=owner, scope=scope, bound=bound, fit=fit))

    def outlook(self) -> dispatching.Outlook:
        """Whether a round of dispatching could do anything at all."""
        return self.store.peek(lambda tx: dispatching.outlook(tx, self.settings))

    async def withdraw_offers(self, reason: Reason, message: str) -> int:
        """Take every open offer back to the queue."""
        return await self.write(
            lambda tx, ctx: dispatching.withdraw_offers(tx, ctx, reason, message, 1_000_000), bulk=True
        )

    async def rekey_lanes(self, *, at_once: int = 500) -> None:
        """File queued runs under the lanes that today's limits make, in batches, if the limits speak of other values now."""
        after = await self.write(filing.begin_rekeying)
        while after is not None:
            after = await self.write(partial(filing.rekey, after=after, limit=at_once), bulk=True)

    # claims

    async def offers(
        self,
        *,
        holder: str,
        agent: str | None = None,
        types: Sequence[str] = (),
        role: str | None = None,
        limit: int = 10,
    ) -> list[Run]:
        """Offers that an agent from outside may claim. Asking is also a sign that somebody is there to take them."""
        puller = Puller(holder=holder, agent=agent, types=tuple(types), role=role)
        return await self.write(lambda tx, ctx: pulling.look(tx, ctx, puller, limit))

    async def claim_next(
        self, puller: Puller, *, request_id: str | None = None, lease_ms: int | None = None
    ) -> Run | None:
        """Claim the next fitting offer; see :func:`interlock.service.pulling.claim_next`."""
        return await self.write(
            lambda tx, ctx: pulling.claim_next(tx, ctx, puller, request_id=request_id, lease_ms=lease_ms)
        )

    async def claim(
        self,
        ref: Ref,
        *,
        holder: str,
        agent: str | None = None,
        request_id: str | None = None,
        lease_ms: int | None = None,
        offer: int | None = None,
    ) -> Claim:
        """Claim an offer; see :func:`interlock.service.claims.claim_offered`."""
        return claims.claim_of(
            await self.claim_run(ref, holder=holder, agent=agent, request_id=request_id, lease_ms=lease_ms, offer=offer)
        )

    async def claim_run(
        self,
        ref: Ref,
        *,
        holder: str,
        agent: str | None = None,
        request_id: str | None = None,
        lease_ms: int | None = None,
        offer: int | None = None,
    ) -> Run:
        """The same: the run as it is under the claim."""
        return await self._on(
            ref,
            lambda tx, ctx, run: claims.claim_offered(
                tx,
                ctx,
                run,
                holder=holder,
                agent=agent,
                request_id=request_id,
                lease_ms=lease_ms,
                offer=offer,
            ),
        )

    async def start(self, claim: Claim, process: ProcessIdentity | None = None) -> Run:
        """The agent is confirmed working."""
        return await self.write(lambda tx, ctx: claims.start(tx, ctx, claim.run, claim.holder, claim.fence, process))

    async def renew(self, claim: Claim, lease_ms: int | None = None) -> claims.Heartbeat:
        """A heartbeat; its answer says whether to go on."""
        return await self.write(lambda tx, ctx: claims.renew(tx, ctx, claim.run, claim.holder, claim.fence, lease_ms))

    async def renew_owned(self, owner: str) -> int:
        """Renew every local claim of a dispatcher."""
        return await self.write(lambda tx, ctx: claims.renew_owned(tx, ctx, owner))

    async def report_usage(self, claim: Claim, usage: Usage) -> None:
        """What the attempt used so far."""
        await self.write(lambda tx, ctx: claims.report_usage(tx, ctx, claim.run, claim.holder, claim.fence, usage))

    async def finish(self, claim: Claim, outcome: Outcome) -> Run:
        """End a claim; see :func:`interlock.service.claims.finish`."""
        return await self.write(lambda tx, ctx: claims.finish(tx, ctx, claim.run, claim.holder, claim.fence, outcome))

    async def complete(self, claim: Claim, *, result: Any = None, message: str = "done") -> Run:
        """Done."""
        return await self.finish(
            claim, Outcome(kind=OutcomeKind.COMPLETED, reason=Reason.DONE, message=message, result=result)
        )

    async def fail(self, claim: Claim, message: str, *, permanent: bool = False) -> Run:
        """The attempt failed; the run is tried again while retries are left, unless ``permanent``."""
        reason = Reason.PERMANENT_FAILURE if permanent else Reason.AGENT_FAILED
        return await self.finish(
            claim, Outcome(kind=OutcomeKind.FAILED, reason=reason, message=message, permanent=permanent)
        )

    async def defer(self, claim: Claim, message: str, *, delay_ms: int | None = None) -> Run:
        """Not now: try again later."""
        return await self.finish(
            claim,
            Outcome(kind=OutcomeKind.DEFERRED, reason=Reason.DEFERRED, message=message, delay_ms=delay_ms),
        )

    async def block(self, claim: Claim, question: str) -> Run:
        """A person has to answer first."""
        return await self.finish(
            claim,
            Outcome(kind=OutcomeKind.BLOCKED, reason=Reason.HELP_NEEDED, message=question, question=question),
        )

    async def release(self, claim: Claim, message: str = "given back") -> Run:
        """Give the run back untouched."""
        return await self.finish(claim, Outcome(kind=OutcomeKind.RETURNED, reason=Reason.GIVEN_BACK, message=message))

    async def keep_late_result(self, claim: Claim, outcome: Outcome) -> bool:
        """Keep what an agent brings for a claim that it has lost, as a note. Whether it was kept now."""
        return await self.write(
            lambda tx, ctx: claims.keep_late_result(tx, ctx, claim.run, claim.holder, claim.fence, outcome)
        )

    # templates

    async def templates(self) -> list[TaskTemplate]:
        """All templates of tasks, by name: those of the configuration, and those of the database that it does not hide."""
        return await self.read(templating.known)

    async def template(self, name: str) -> TaskTemplate:
        """One of them. Raises NotFound."""
        return await self.read(lambda tx, ctx: templating.find(tx, ctx, name))

    async def put_template(self, name: str, task: Mapping[str, Any]) -> TaskTemplate:
        """Add or change one of the database. Raises InvalidInput, TooLarge, and Conflict for one of the configuration."""
        return await self.write(lambda tx, ctx: templating.store_template(tx, ctx, name, task))

    async def delete_template(self, name: str) -> None:
        """Remove one of the database. Raises NotFound."""
        await self.write(lambda tx, _: templating.delete_template(tx, name))

    # tokens

    async def create_token(self, name: str, scope: Scope) -> str:
        """A new token's secret, which nobody can be shown again."""
        return await self.write(lambda tx, ctx: tokens.create(tx, ctx, name, scope))

    async def revoke_token(self, name: str) -> None:
        """It is accepted no more."""
        await self.write(lambda tx, _: tokens.revoke(tx, name))

    async def tokens(self) -> list[Token]:
        """All that are accepted."""
        return await self.store.read(lambda tx: tx.tokens())

    def token_of(self, secret: str) -> Token | None:
        """The token that a secret belongs to."""
        return self.store.peek(lambda tx: tokens.token_of(tx, secret))

    # supervising

    async def reap(self, *, bound: int = 256) -> list[supervising.Reaped]:
        """Do what is due. Time in which no dispatcher was awake is given back first, in the same transaction: a process that
        sleeps between the two would judge by deadlines that have passed in its sleep.
        """

        def awake(tx: Tx, ctx: Context) -> list[supervising.Reaped]:
            supervising.catch_up(tx, ctx, epoch=self.clock.epoch(), threshold_ms=supervising.ASLEEP_MS)
            return supervising.reap(tx, ctx, bound)

        return await self.write(awake)

    def next_due_ms(self) -> int | None:
        """When something is due next."""
        return self.store.peek(lambda tx: tx.next_due_ms())

    def stopping(self, owner: str) -> list[Run]:
        """Local runs of a dispatcher whose agents are to be stopped."""
        return self.store.peek(lambda tx: tx.stopping(owner))

    def claimed_by(self, owner: str) -> set[int]:
        """Numbers of the local runs that a dispatcher looks after."""
        return self.store.peek(lambda tx: tx.claimed_by(owner))

    async def catch_up(self, threshold_ms: int) -> int:
        """Move deadlines on by the time in which no dispatcher was awake, when that is over ``threshold_ms``. Returns the shift.

        Down, suspended, stopped by a signal, kept from the store: whatever it was, it counts against nobody. A step of the
        wall clock is found here as well, once for all processes.
        """
        epoch = self.clock.epoch()
        if abs(self.clock.step_ms()) > supervising.CLOCK_STEP_MS:
            self.clock.reanchor()
        return await self.write(partial(supervising.catch_up, epoch=epoch, threshold_ms=threshold_ms))

    async def request_stop(self, ref: Ref, kind: StopKind, *, reason: str, message: str, by: str) -> Run:
        """Persist the intent to stop a live agent."""
        return await self._on(
            ref,
            lambda tx, ctx, run: supervising.request_stop(tx, ctx, run, kind, reason=reason, message=message, by=by),
        )

    async def adopt_all(self, claims: Sequence[tuple[int, str]], *, new_owner: str) -> list[Run]:
        """Take over local claims, as (number, old owner), whose owners are gone. Returns those that are ours now."""
        return await self.write(lambda tx, ctx: supervising.adopt_all(tx, ctx, claims, new_owner=new_owner))

    def owners(self) -> set[str]:
        """Dispatchers that local claims belong to."""
        return self.store.peek(lambda tx: tx.owners())

    async def agent_cannot_start(self, agent: str, reason: str) -> AgentHealth:
        """Mark an agent unavailable."""
        return await self.write(lambda tx, ctx: operating.agent_cannot_start(tx, ctx, agent, reason))

    async def agent_started(self, agent: str) -> None:
        """It can be started after all."""
        await self.write(lambda tx, _: operating.agent_started(tx, agent))

    # operating

    async def cancel(self, ref: Ref, *, by: str = OPERATOR, message: str = "cancelled by the operator") -> Run:
        """Cancel a run, at once or once its agent is gone."""
        return await self._on(ref, lambda tx, ctx, run: operating.cancel(tx, ctx, run, by=by, message=message))

    async def interrupt(self, ref: Ref, *, by: str, message: str) -> Run:
        """Stop a run's agent and queue the run again."""
        return await self._on(ref, lambda tx, ctx, run: operating.interrupt(tx, ctx, run, by=by, message=message))

    async def close(self, ref: Ref, *, by: str = OPERATOR, message: str = "done elsewhere") -> Run:
        """It was done elsewhere."""
        return await self._on(ref, lambda tx, ctx, run: operating.close(tx, ctx, run, by=by, message=message))

    async def answer(self, ref: Ref, text: str, *, by: str = OPERATOR) -> Run:
        """Answer a blocked run."""
        return await self._on(ref, lambda tx, ctx, run: operating.answer(tx, ctx, run, text, by=by))

    async def hold(self, ref: Ref) -> Run:
        """Keep a run from being dispatched."""
        return await self._on(ref, operating.hold)

    async def unhold(self, ref: Ref) -> Run:
        """Let it be dispatched again."""
        return await self._on(ref, operating.unhold)

    async def set_priority(self, ref: Ref, priority: int) -> Run:
        """Set a run's own priority."""
        return await self._on(ref, lambda tx, ctx, run: operating.set_priority(tx, ctx, run, priority))

    async def forget(self, ref: Ref, *, by: str = OPERATOR) -> Run:
        """Declare that the agent of a run is gone, when nobody else can tell."""
        return await self._on(ref, lambda tx, ctx, run: supervising.forget_process(tx, ctx, run, by=by))

    async def pause(self, *, message: str = "", by: str = OPERATOR) -> brakes.Pause:
        """Dispatch nothing until resumed."""
        return await self.write(lambda tx, ctx: operating.pause(tx, ctx, by=by, message=message))

    async def resume(self) -> bool:
        """Dispatch again."""
        return await self.write(lambda tx, _: operating.resume(tx))

    async def put_route(self, route: Route) -> Route:
        """Add or change a route."""
        return await self.write(lambda tx, ctx: operating.put_route(tx, ctx, route), bulk=True)

    async def delete_route(self, workflow_type: str) -> None:
        """Remove a route."""
        await self.write(lambda tx, _: operating.delete_route(tx, workflow_type), bulk=True)

    async def prune(self, ended_before_ms: int, *, bound: int = 500) -> list[tuple[int, list[str]]]:
        """Delete old terminal runs, a bounded number at a time."""
        return await self.write(lambda tx, _: operating.prune(tx, ended_before_ms, bound), bulk=True)

    # questions

    async def get(self, ref: Ref) -> Run:
        """The run that ``ref`` names, as it is now."""
        return await self.store.read(lambda tx: self._find(tx, ref))

    async def story(self, ref: Ref) -> reads.Story:
        """A run with everything that is known of it."""
        return await self.store.read(lambda tx: reads.story(tx, self._find(tx, ref)))

    async def find(self, by: reads.Filter) -> list[Run]:
        """Runs, the newest first."""
        return await self.store.read(lambda tx: tx.find_runs(by))

    async def batch(self, batch: str) -> list[Run]:
        """The runs of a batch, the oldest first."""
        return await self.store.read(lambda tx: tx.batch_runs(batch))

    async def worked_ms(self, numbers: Sequence[int]) -> dict[int, int]:
        """How long agents worked on runs, all attempts together, downtime of the dispatcher included."""
        return await self.read(lambda tx, ctx: reads.worked_ms(tx, ctx, numbers))

    async def events(self, after: int, limit: int = 1000) -> list[Event]:
        """The event log behind a sequence number."""
        return await self.store.read(lambda tx: tx.events_after(after, limit))

    async def why(self, ref: Ref, around: waiting.Surroundings) -> list[Wait]:
        """Every reason that a run has not started or ended."""
        return await self.read(lambda tx, ctx: reads.why(tx, ctx, self._find(tx, ref), around))

    async def limits(self) -> list[reads.LimitUse]:
        """Limits and their use."""
        return await self.read(reads.limits)

    async def stats(self, window_ms: int) -> reads.Stats:
        """Numbers."""
        return await self.read(lambda tx, ctx: reads.stats(tx, ctx, window_ms))

    async def instances(self) -> list[Instance]:
        """Every dispatcher that was not ended cleanly; whether it lives, its lock tells."""
        return await self.store.read(lambda tx: tx.instances())

    async def ask_to_end(self, instances: Sequence[str], how: str) -> None:
        """Leave word for dispatchers to end: ``drain``, ``detach`` or ``kill``. They see it at once."""
        await self.write(lambda tx, _: operating.ask_to_end(tx, instances, how))

    async def repair_slots(self) -> None:
        """Count the slots anew, from the runs that hold them."""
        await self.write(lambda tx, _: tx.repair_slots())

    async def forget_instance(self, instance: str) -> None:
        """A dispatcher is gone; its lock was found free."""
        await self.write(lambda tx, _: tx.delete_instance(instance))

    async def _on(self, ref: Ref, command: Callable[[Tx, Context, Run], T]) -> T:
        return await self.write(lambda tx, ctx: command(tx, ctx, self._find(tx, ref)))

    @staticmethod
    def _find(tx: Tx, ref: Ref) -> Run:
        return find_run(tx, ref.number if isinstance(ref, Run) else ref)
