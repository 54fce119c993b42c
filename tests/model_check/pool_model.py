"""Run, attempt and pool workers together: the three compiled tables, and the real decision of what an end leads to.

Pull mode of the second seed: the dispatcher keeps a pool of workers, agents that are started without a run, claim an offer for
themselves, and go on to the next one when it is done. It respawns those that end, and stops those that idle too long or are too
many. What is modelled is how the three machines have to move together:

* an offer is taken in one transaction: the worker's ``take``, the run's ``claim``, the attempt's beginning;
* a turn's end is one transaction: the attempt's end, what :func:`~interlock.decide.budget.settle` says of the run, the
  worker's ``done`` (or ``crash``, or ``gone``);
* a worker's process may die at any moment; the pool sees that later, and what it held is lost then, not before;
* stopping a busy worker, or cancelling its run, is an intent; run and attempt move once the process is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from commands import ENDINGS

from interlock.decide.budget import ATTEMPT_EVENTS, settle
from interlock.decide.outcome import Outcome, OutcomeKind, decide
from interlock.domain.run import Run, Stop
from interlock.domain.settings import Budgets, Retry, Settings
from interlock.domain.states import (
    HELD_BY_AGENT,
    TERMINAL,
    AttemptState,
    Reason,
    RunState,
    StopKind,
    WorkerState,
)
from interlock.domain.task import Task
from interlock.machines.table import ATTEMPT, RUN, WORKER

SETTINGS = Settings(retry=Retry(max_retries=1), budgets=Budgets(max_losts=1, max_defers=1, max_offers=1))
FENCES = 3
BY_ITSELF = ("completed", "failed", "gave up", "returned", "deferred", "asked")
LOST = Outcome(kind=OutcomeKind.LOST, reason=Reason.PROCESS_LOST, message="its process is gone")
RULES = frozenset({"take at once", "end at once", "claim once", "intent"})


class Worker(NamedTuple):
    """A pool worker as the pool knows it, and whether its process lives. ``holds``: the live claim is its own."""

    state: WorkerState = WorkerState.STARTING
    lives: bool = True
    holds: bool = False


class Pool(NamedTuple):
    """The whole state. ``attempt``: of the last claim. ``stop``: the intent that the live claim is under."""

    run: RunState = RunState.QUEUED
    attempt: AttemptState | None = None
    workers: tuple[Worker, ...] = (Worker(), Worker())
    fence: int = 0
    stop: StopKind | None = None
    failures: int = 0
    losts: int = 0
    defers: int = 0
    releases: int = 0


class Move(NamedTuple):
    """A step. ``fair``: it happens by itself sooner or later."""

    label: str
    to: Pool
    fair: bool = True


class PoolModel:
    """The steps. ``rules``: those that are in force."""

    def __init__(self, rules: frozenset[str] = RULES) -> None:
        self.rules = rules
        self.taken: set[tuple[str, str, str]] = set()

    def _go(self, machine: str, state: str, event: str) -> str:
        """The compiled table decides; what was asked of it is kept."""
        table: Any = {"run": RUN, "attempt": ATTEMPT, "worker": WORKER}[machine]
        self.taken.add((machine, state, event))
        return str(table.target(state, event))

    def _run(self, pool: Pool, event: str) -> Pool:
        return pool._replace(run=RunState(self._go("run", pool.run, event)))

    def _attempt(self, pool: Pool, event: str) -> Pool:
        assert pool.attempt is not None
        return pool._replace(attempt=AttemptState(self._go("attempt", pool.attempt, event)))

    def _worker(self, pool: Pool, w: int, event: str, **more: bool) -> Pool:
        worker = pool.workers[w]
        new = worker._replace(state=WorkerState(self._go("worker", worker.state, event)), **more)
        return pool._replace(workers=(*pool.workers[:w], new, *pool.workers[w + 1 :]))

    # steps

    def moves(self, pool: Pool) -> Iterator[Move]:
        """Everything that may happen next."""
        yield from self._of_run(pool)
        for w, worker in enumerate(pool.workers):
            if worker.lives:
                dead = worker._replace(lives=False)
                workers = (*pool.workers[:w], dead, *pool.workers[w + 1 :])
                yield Move(f"worker {w}: its process dies", pool._replace(workers=workers), fair=False)
                yield from self._of_worker(pool, w, worker)
            yield from self._of_pool(pool, w, worker)

    def _of_run(self, pool: Pool) -> Iterator[Move]:
        if pool.run is RunState.QUEUED and pool.fence < FENCES:
            yield Move("dispatch: offered", self._run(pool, "dispatch")._replace(releases=0))
        if pool.run is RunState.DISPATCHED:
            yield Move("a pause withdraws the offer", self._run(pool, "withdraw"), fair=False)
            yield Move("redispatch", self._run(pool, "redispatch"))
        if pool.run is RunState.BLOCKED:
            yield Move("a person answers", self._run(pool, "answer"))
        if pool.run in TERMINAL:
            return
        if pool.run not in HELD_BY_AGENT:
            yield Move("cancel", self._run(pool, "cancel"), fair=False)
            return
        for kind in StopKind:
            if pool.stop is None:
                yield Move(f"intent: {kind}", pool._replace(stop=kind), fair=False)
        if "intent" not in self.rules:
            yield Move("cancel at once", self._attempt(self._run(pool, "cancel"), "cancel"), fair=False)

    def _of_worker(self, pool: Pool, w: int, worker: Worker) -> Iterator[Move]:
        """What the worker's process does."""
        match worker.state:
            case WorkerState.STARTING:
                yield Move(f"worker {w}: is ready", self._worker(pool, w, "ready"))
            case WorkerState.IDLE:
                yield Move(f"worker {w}: asks for work", self._worker(pool, w, "ask"))
            case WorkerState.CLAIMING:
                free = pool.run is RunState.DISPATCHED and pool.fence < FENCES
                if free or ("claim once" not in self.rules and pool.run in HELD_BY_AGENT):
                    yield from self._take(pool, w)
                else:
                    yield Move(f"worker {w}: finds nothing", self._worker(pool, w, "nothing"))
            case WorkerState.BUSY if worker.holds and pool.stop is None:
                yield from self._turn(pool, w)
            case WorkerState.BUSY if worker.holds:
                # Work that is done before the stop is carried out is done.
                yield from self._ends(pool, w, "completed before it is stopped", ENDINGS["completed"], "done")

    def _take(self, pool: Pool, w: int) -> Iterator[Move]:
        if pool.run is RunState.DISPATCHED:
            fence = pool.fence + 1
            claimed = self._run(pool, "claim")._replace(attempt=ATTEMPT.initial, fence=fence, stop=None)
        else:
            claimed = pool
        if "take at once" in self.rules:
            yield Move(f"worker {w}: takes the offer", self._worker(claimed, w, "take", holds=True))
        else:
            yield Move(f"worker {w}: claims, and is to be marked later", claimed)

    def _turn(self, pool: Pool, w: int) -> Iterator[Move]:
        """What goes on in an attempt while its worker is busy with it."""
        state = pool.attempt
        for at, event in (
            (AttemptState.PREPARING, "prompt"),
            (AttemptState.PROMPTING, "launch"),
            (AttemptState.WORKING, "ask"),
            (AttemptState.ASKING, "resume"),
        ):
            if state is at:
                yield Move(f"worker {w}: {event}", self._attempt(pool, event))
        if state in (AttemptState.PREPARING, AttemptState.PROMPTING, AttemptState.LAUNCHING):
            working = self._run(self._attempt(pool, "work"), "start")
            yield Move(f"worker {w}: works", working)
        if (state, "finish") in ATTEMPT.moves:
            yield Move(f"worker {w}: finishes its turn", self._attempt(pool, "finish"))
        if pool.run is RunState.RUNNING:
            yield Move(f"worker {w}: heartbeat", self._run(pool, "renew"))
        for name in BY_ITSELF:
            yield from self._ends(pool, w, name, ENDINGS[name], "done")

    def _of_pool(self, pool: Pool, w: int, worker: Worker) -> Iterator[Move]:
        """What the dispatcher does with its workers."""
        stopping = worker.state is WorkerState.STOPPING
        if not worker.lives and worker.state is not WorkerState.BACKING_OFF and worker.state is not WorkerState.STOPPED:
            event = "gone" if stopping else "crash"
            if worker.holds:
                outcome = self._stopped(pool.stop) if pool.stop is not None else LOST
                yield from self._ends(pool, w, f"its process is gone, {outcome.kind}", outcome, event)
            else:
                yield Move(f"pool: sees that worker {w} is gone", self._worker(pool, w, event))
        if worker.state is WorkerState.BACKING_OFF:
            yield Move(f"pool: respawns worker {w}", self._worker(pool, w, "respawn", lives=True))
            yield Move(f"pool: is smaller now, without worker {w}", self._worker(pool, w, "gone"), fair=False)
        if worker.lives and worker.state not in (WorkerState.STOPPING, WorkerState.STOPPED, WorkerState.BACKING_OFF):
            stopped = self._worker(pool, w, "stop")
            if worker.holds and pool.stop is None:
                stopped = stopped._replace(stop=StopKind.INTERRUPT)
            yield Move(f"pool: stops worker {w}", stopped, fair=False)
        if worker.lives and (stopping or (worker.holds and pool.stop is not None)):
            dead = pool.workers[w]._replace(lives=False)
            workers = (*pool.workers[:w], dead, *pool.workers[w + 1 :])
            yield Move(f"pool: kills worker {w}", pool._replace(workers=workers))

    @staticmethod
    def _stopped(kind: StopKind) -> Outcome:
        stop = Stop(kind=kind, reason=str(kind), message="stop", by="somebody", at_ms=0)
        return decide(stop=stop, exit_status=None, result=None, result_fault=None, tail="")

    def _ends(self, pool: Pool, w: int, name: str, outcome: Outcome, worker_event: str) -> Iterator[Move]:
        """The attempt's end, the run's move and the worker's, in one transaction."""
        run = Run(
            number=1,
            id="r",
            state=pool.run,
            task=Task(title="t"),
            content_hash="",
            failures=pool.failures,
            losts=pool.losts,
            defers=pool.defers,
            releases=pool.releases,
        )
        settlement = settle(run, outcome, SETTINGS, 0, Random(1))
        assert settlement.attempt_event == ATTEMPT_EVENTS[outcome.kind][0]
        to = self._attempt(pool, settlement.attempt_event)
        for event in settlement.events:
            to = self._run(to, event)
        to = to._replace(stop=None, failures=settlement.failures, losts=settlement.losts, defers=settlement.defers)
        if outcome.kind is OutcomeKind.RETURNED and to.run is RunState.DISPATCHED:
            to = to._replace(releases=pool.releases + 1)
        if "end at once" in self.rules:
            to = self._worker(to, w, worker_event, holds=False)
            yield Move(f"worker {w}: {name}", _settled(to))
        else:
            yield Move(
                f"worker {w}: {worker_event}, its attempt is to be ended later", self._worker(pool, w, worker_event)
            )


def _settled(pool: Pool) -> Pool:
    """Counters of a run that has ended make no difference."""
    return pool._replace(failures=0, losts=0, defers=0, releases=0) if pool.run in TERMINAL else pool


def canonical(pool: Pool) -> Pool:
    """Workers are interchangeable."""
    return pool._replace(workers=tuple(sorted(pool.workers)))


def wrong(pool: Pool) -> str | None:
    """What must never be."""
    held = pool.run in HELD_BY_AGENT
    live = pool.attempt is not None and pool.attempt not in ATTEMPT.final
    holders = [worker for worker in pool.workers if worker.holds]
    if live is not held:
        return "an attempt is live iff its run is claimed or running"
    if len(holders) != int(held):
        return "a live claim has one worker"
    if any(worker.state not in (WorkerState.BUSY, WorkerState.STOPPING) for worker in holders):
        return "the worker of a live claim is busy, or being stopped"
    if any(worker.state is WorkerState.BUSY and not worker.holds for worker in pool.workers):
        return "a busy worker holds a live claim"
    if any(worker.state in (WorkerState.STOPPED, WorkerState.BACKING_OFF) and worker.lives for worker in pool.workers):
        return "a worker that is gone has no process"
    if pool.run is RunState.RUNNING and pool.attempt in (AttemptState.PREPARING, AttemptState.PROMPTING):
        return "a run is running once its attempt works"
    return None


class Searched(NamedTuple):
    """What the search came to: states, joint (run, attempt, worker) values, the fault with the shortest way to it."""

    states: int
    triples: frozenset[tuple[RunState, AttemptState | None, WorkerState]]
    fault: str | None
    trace: tuple[str, ...]
    taken: frozenset[tuple[str, str, str]]


def search(rules: frozenset[str] = RULES) -> Searched:
    """Visit every reachable state; then see that an end can be reached from each by fair steps."""
    model = PoolModel(rules)
    root = canonical(Pool())
    parents: dict[Pool, tuple[Pool | None, str]] = {root: (None, "start")}
    fair: dict[Pool, list[Pool]] = {}
    layer = [root]
    fault, at = None, root
    while layer and fault is None:
        following: list[Pool] = []
        for pool in layer:
            fair[pool] = []
            for move in model.moves(pool):
                to = canonical(move.to)
                if move.fair:
                    fair[pool].append(to)
                if to not in parents:
                    parents[to] = (pool, move.label)
                    following.append(to)
                    if fault is None and wrong(to) is not None:
                        fault, at = wrong(to), to
        layer = following
    if fault is None and (stuck := _stuck(fair)) is not None:
        fault, at = "no way left to an end", stuck
    triples = frozenset((pool.run, pool.attempt, worker.state) for pool in parents for worker in pool.workers)
    trace = _trace(parents, at) if fault is not None else ()
    return Searched(len(parents), triples, fault, trace, frozenset(model.taken))


def _ends(pool: Pool) -> bool:
    return pool.run in TERMINAL or (pool.fence == FENCES and pool.run not in HELD_BY_AGENT)


def _stuck(fair: dict[Pool, list[Pool]]) -> Pool | None:
    """The first state, in the order of finding, from which no end can be reached. A pool without workers waits for none."""
    good: set[Pool] = set()
    left = list(fair)
    while True:
        still = []
        for pool in reversed(left):
            unmanned = all(worker.state is WorkerState.STOPPED for worker in pool.workers)
            if _ends(pool) or unmanned or any(to in good for to in fair[pool]):
                good.add(pool)
            else:
                still.append(pool)
        still.reverse()
        if not still or len(still) == len(left):
            return still[0] if still else None
        left = still


def _trace(parents: dict[Pool, tuple[Pool | None, str]], at: Pool) -> tuple[str, ...]:
    lines: list[str] = []
    pool: Pool | None = at
    while pool is not None:
        before, label = parents[pool]
        workers = ", ".join(
            f"{one.state}{'' if one.lives else ' (dead)'}{' holds' if one.holds else ''}" for one in pool.workers
        )
        lines.append(f"{label:<40} | run {pool.run} | attempt {pool.attempt or '-'} {pool.fence} | {workers}")
        pool = before
    return tuple(reversed(lines))
