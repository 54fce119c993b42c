"""The service on the real SQLite store, step by step beside the model: any interleaving of commands, DESIGN section 3 checked
after each. Who draws the steps (Hypothesis, chance) is the tests' affair.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any

import service_model as model

from interlock.decide.outcome import Outcome, OutcomeKind, decide
from interlock.domain.errors import (
    AlreadyClaimed,
    Conflict,
    IllegalTransition,
    InterlockError,
    InvalidInput,
    NotFound,
    StaleClaim,
)
from interlock.domain.run import Claim, ProcessIdentity, Route, Run, Usage
from interlock.domain.settings import (
    Agent,
    Budgets,
    Leases,
    Limits,
    Mode,
    OnNeedFailed,
    OnNeverClaimed,
    OnTimeout,
    Retry,
    Role,
    Settings,
)
from interlock.domain.states import Note, Reason, RunEvent, StopKind
from interlock.domain.task import Task
from interlock.machines.table import RUN
from interlock.service import claims, dispatching, filing, operating, submitting, supervising
from interlock.service.context import Context
from interlock.service.moves import move
from interlock.store.sqlite import DATABASE, SqliteStore

START = 1_700_000_000_000
OWNERS = ("o1", "o2")
EPOCH = ("boot", 0)
ALL = 1_000_000
MEMORY = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
"""Commits here are real, but nobody waits for a disk."""


@cache
def fresh_database() -> Path:
    """A database after its migrations, to be copied."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY, prefix="interlock-fresh-"))
    SqliteStore(folder, create=True, inline=True).close()
    return folder / DATABASE


def real_settings(rules: model.Rules) -> Settings:
    return Settings(
        mode=Mode.PULL if rules.pull else Mode.PUSH,
        limits=Limits(
            total=rules.total,
            per_project=dict(rules.projects),
            per_tracker=dict(rules.trackers),
            per_role=dict(rules.roles),
            per_tag=dict(rules.tags),
            per_agent=dict(rules.agents),
        ),
        retry=Retry(max_retries=rules.max_retries),
        budgets=Budgets(max_losts=rules.max_losts, max_defers=rules.max_defers, max_offers=rules.max_offers),
        leases=Leases(
            local_ms=rules.local_lease,
            remote_ms=rules.remote_lease,
            grace_ms=model.GRACE,
            claim_timeout_ms=rules.claim_timeout,
        ),
        agents={
            name: Agent(name=name, command="true", max_concurrent=cap, timeout_ms=model.AGENT_TIMEOUTS[name])
            for name, cap in model.AGENTS.items()
        },
        roles={name: Role(name=name, agent=agent) for name, agent in model.ROLE_AGENTS.items()},
        default_agent=rules.default_agent,
        timeout_ms=rules.timeout,
        deadline_ms=rules.deadline,
        on_timeout=OnTimeout.RETRY if rules.retry_on_timeout else OnTimeout.END,
        on_need_failed=OnNeedFailed(rules.need_failed),
        on_never_claimed=OnNeverClaimed(rules.never_claimed),
    )


def mostly(usual: Any, *others: Any) -> list[Any]:
    """The usual value at least half of the time."""
    return [usual] * len(others) + [usual, *others]


def _pairs(*names: str) -> list[tuple[tuple[str, int], ...]]:
    """Limits of some of the names, none half of the time."""
    options = [[(name, cap) for cap in (1, 2, 3, 1, 2, 3, 0)] + [None] * 2 for name in names]
    found = [tuple(pair for pair in pairs if pair is not None) for pairs in product(*options)]
    return [()] * len(found) + found


CONFIGURATION = {
    "pull": [False, True],
    "total": [3, 4, 2, 5, 6, 8, 4, 1, 3, 4, 5, 6, 8, 3, 0],
    "projects": _pairs("p1", "p2"),
    "trackers": _pairs("t1"),
    "roles": _pairs("r1"),
    "tags": _pairs("gpu", "net"),
    "agents": _pairs("a1", "a2"),
    "default_agent": ["a1", "a1", "a1", "a2", None],
    "deadline": mostly(None, 40 * model.MINUTE),
    "retry_on_timeout": [False, True],
    "need_failed": ["fail", "skip", "run"],
    "never_claimed": ["withdraw", "fail"],
}
PICK = range(60)
SPANS = [
    "due",
    "due",
    "almost",
    1,
    1000,
    12_000,
    30_000,
    61_000,
    5 * model.MINUTE + 1,
    16 * model.MINUTE,
    45 * model.MINUTE,
]
TASK = {
    "project": mostly(None, "p1", "p2", "p3"),
    "tracker": mostly(None, "t1", "t2"),
    "role": mostly(None, "r1", "r2"),
    "type": mostly(None, "review", "build"),
    "agent": mostly(None, "a1", "a2", "a2", "a2", "ghost"),
    "tags": mostly((), ("gpu",), ("net",), ("gpu", "net"), ("doc", "doc")),
    "priority": mostly(0, -1, 1, 2, 3),
    "unique": mostly(None, None, None, "u1", "u2"),
    "timeout_ms": mostly(None, 10 * model.MINUTE, 50 * model.MINUTE),
}
NEEDS: list[tuple[int, ...]] = [()] * 150 + [(a,) for a in range(30)] + [(a, b) for a in range(8) for b in range(8)]
EDGES = [
    (),
    *combinations([(a, b) for a in "abc" for b in "abc"], 1),
    *combinations([(a, b) for a in "abc" for b in "abc"], 3),
]
ENDS = mostly(
    "completed",
    "failed",
    "failed",
    "permanent",
    "deferred",
    "deferred_long",
    "blocked",
    "lost",
    "returned",
    "cannot_start",
)
DISTORTIONS = mostly("", "old", "holder", "fence")

Draw = Callable[[str, Sequence[Any]], Any]
"""(label, options) -> one of them."""


@dataclass(frozen=True)
class Action:
    """A step that can be taken: how often beside the others, and when."""

    work: Callable[..., None]
    weight: int
    when: Callable[[Beside], bool]
    options: dict[str, Any]


ACTIONS: dict[str, Action] = {}


def action(
    *,
    weight: int = 1,
    when: Callable[[Beside], bool] = lambda _: True,
    **options: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Actions are drawn within one rule: Hypothesis leaves whole rules out of most of its tries, and a run needs many of them."""

    def enter(work: Callable[..., None]) -> Callable[..., None]:
        ACTIONS[work.__name__] = Action(work, weight, when, options)
        return work

    return enter


class Beside:
    """The service beside the model."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY, prefix="interlock-beside-"))
        shutil.copy(fresh_database(), self.folder / DATABASE)
        self.rng = Random(7)
        self.log: list[str] = []
        self.world = model.World(model.Rules(), START)
        self.settings = real_settings(self.world.rules)
        self.rekeyed = True
        self.claims: list[Claim] = []
        self._open()
        self.watch = sqlite3.connect(self.folder / DATABASE, isolation_level=None)
        self.tables = [
            name
            for (name,) in self.watch.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '%sqlite_%' ORDER BY name"
            )
        ]
        self.before = self.dump = self._dump()
        self.replayed: dict[int, str] = {}
        self.last_seq = 0
        self.finals: dict[int, tuple[Any, ...]] = {}
        self.fences: dict[int, int] = {}
        self.in_use: Counter[str] = Counter()

    def _open(self) -> None:
        self.store = SqliteStore(self.folder, create=True, inline=True)

    def close(self) -> None:
        self.watch.close()
        self.store.close()
        shutil.rmtree(self.folder)

    # doing

    @property
    def now(self) -> int:
        return self.world.now

    def _dump(self) -> dict[str, list[tuple[Any, ...]]]:
        return {table: self.watch.execute(f"SELECT * FROM {table}").fetchall() for table in self.tables}

    def write(self, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Run a command of the service. One that refuses has changed nothing, in no table."""
        context = Context(now_ms=self.now, rng=self.rng, settings=self.settings)
        self.before = self._dump()
        try:
            return self.store.write_now(lambda tx: work(tx, context, *arguments, **named))
        except InterlockError as error:
            self.tell(f"  refused: {error.code}: {error}")
            assert self._dump() == self.before, "a refused command changed something"
            raise

    def on(self, run: model.Run, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Run a command on a run."""
        return self.write(lambda tx, ctx: work(tx, ctx, tx.run(run.number), *arguments, **named))

    @contextmanager
    def refused(self, kind: type[InterlockError] | tuple[type[InterlockError], ...]) -> Iterator[None]:
        try:
            yield
        except kind:
            return
        raise AssertionError(f"it should have been refused as {kind}")

    def unchanged(self) -> None:
        """The last command has changed nothing, in no table."""
        assert self._dump() == self.before, "a command that has nothing to do changed something"

    def tell(self, line: str) -> None:
        self.log.append(line)

    def a_run(self, pick: int, *states: str) -> model.Run:
        """A run, of the given states if there is one."""
        runs = [run for run in self.world.runs.values() if not states or run.state in states]
        runs = runs or list(self.world.runs.values())
        return runs[pick % len(runs)]

    def a_claim(self, pick: int, distortion: str) -> tuple[Claim, bool]:
        """A claim and whether it is the live one. Mostly a live one."""
        live = [claim for claim in self.claims if self._is_live(claim)]
        # Those that work already come twice.
        live += [claim for claim in live if self.world.runs[claim.run].state == "running"]
        chosen = live if live and distortion != "old" else self.claims
        claim = chosen[pick % len(chosen)]
        if distortion == "holder":
            claim = Claim(**{**_fields(claim), "holder": "somebody else"})
        elif distortion == "fence":
            claim = Claim(**{**_fields(claim), "fence": claim.fence + (-1 if pick % 2 else 1)})
        return claim, self._is_live(claim)

    def _is_live(self, claim: Claim) -> bool:
        run = self.world.runs.get(claim.run)
        return run is not None and run.live and run.fence == claim.fence and run.holder == claim.holder

    def step(self, draw: Draw) -> None:
        """Take a step and check everything."""
        possible = [name for name, one in ACTIONS.items() for _ in range(one.weight) if one.when(self)]
        chosen = ACTIONS[draw("step", possible)]
        drawn = {name: _drawn(draw, name, options) for name, options in chosen.options.items()}
        with self.telling():
            chosen.work(self, **drawn)
            self.check()

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Whatever fails comes with the whole story."""
        try:
            yield
        except BaseException as error:
            error.add_note("\n".join(self.story()))
            raise

    def story(self) -> Iterator[str]:
        """What was done, and what became of every run."""
        yield from self.log
        for number, run in self.world.runs.items():
            yield f"#{number} should be: {run}"
            for event in self.store.read_now(lambda tx, n=number: tx.events_of(n)):
                yield f"    {event.at_ms - START} {event.event} {event.from_state} -> {event.to_state} {event.message}"

    # what comes in

    def begin(self, draw: Draw) -> None:
        """A configuration, and some work."""
        rules = model.Rules(**_drawn(draw, "rules", CONFIGURATION))
        self.world.rules, self.world.lanes_by = rules, rules.speaks_of
        self.settings = real_settings(rules)
        self.tell(f"{rules}")
        for _ in range(draw("tasks", range(1, 7))):
            self.submit(_drawn(draw, "task", TASK), (), None, None, held=False)

    @action(
        weight=6,
        task=TASK,
        needs=NEEDS,
        delay=mostly(None, 20_000),
        batch=[None, None, "B"],
        held=mostly(False, False, True),
    )
    def submit(
        self, task: dict[str, Any], needs: Sequence[int], delay: int | None, batch: str | None, held: bool
    ) -> None:
        numbers = [self.a_run(pick).number for pick in needs] if self.world.runs else []
        not_before = None if delay is None else self.now + delay
        task = {name: value for name, value in task.items() if value not in (None, ())}
        made = Task(
            title=f"task {len(self.world.runs)}",
            needs=tuple(f"#{n}" for n in numbers),
            not_before_ms=not_before,
            **task,
        )
        (done,) = self.write(submitting.submit, [submitting.Item(task=made, batch=batch, held=held)])
        self.tell(f"submit {task} needs={numbers} batch={batch} held={held} -> #{done.run.number}")
        twin = next(
            (run for run in self.world.runs.values() if run.unique and run.unique == made.unique and not run.ended),
            None,
        )
        assert done.created == (twin is None)
        if twin is not None:
            assert done.run.number == twin.number
            self.unchanged()
            return
        self._enter(done.run, held=held, needs=numbers)

    def _enter(self, run: Run, *, held: bool = False, needs: list[int] | None = None) -> model.Run:
        task = run.task
        entered = model.Run(
            number=run.number,
            id=run.id,
            project=task.project,
            tracker=task.tracker,
            role=task.role,
            type=task.type,
            wish=task.agent,
            tags=task.tags,
            batch=run.batch,
            unique=task.unique,
            own_priority=task.priority,
            timeout=task.timeout_ms,
            not_before=task.not_before_ms,
            held=held,
            needs=dict.fromkeys(needs or [], False),
        )
        self.world.submit(entered)
        assert str(run.state) == entered.state, "what submit answers is what is there"
        return entered

    @action(weight=2, edges=EDGES, pick=PICK)
    def submit_several(self, edges: Sequence[tuple[str, str]], pick: int) -> None:
        wants: dict[str, list[str]] = {name: [] for name in "abc"}
        for name, need in edges:
            wants[name].append(need)
        outside = [f"#{self.a_run(pick).number}"] if self.world.runs and pick % 3 == 0 else []
        items = [
            submitting.Item(task=Task(title=name, id=name, needs=(*needs, *(outside if name == "c" else []))))
            for name, needs in wants.items()
        ]
        self.tell(f"submit a, b, c with needs {edges} {outside}")
        if _has_circle(edges):
            with self.refused(InvalidInput):
                self.write(submitting.submit, items)
            return
        done = [made.run for made in self.write(submitting.submit, items)]
        numbers = dict(zip("abc", (run.number for run in done), strict=True))
        entered = [
            model.Run(number=run.number, id=run.id, needs={numbers[n]: False for n in wants[run.task.title]})
            for run in done
        ]
        for name in outside:
            entered[2].needs[int(name[1:])] = False
        for run in entered:
            self.world.runs[run.number] = run
        for run in entered:
            self.world.submit(run)
        assert [str(run.state) for run in done] == [run.state for run in entered]

    @action(weight=2, when=lambda self: self.world.runs, pick=PICK)
    def retry(self, pick: int) -> None:
        run = self.a_run(pick, *model.ENDED)
        self.tell(f"retry #{run.number}")
        twin = run.unique and any(other.unique == run.unique and not other.ended for other in self.world.runs.values())
        failed = self.world.rules.need_failed != "run" and any(need.ended for need in self.world.needs_of_a_retry(run))
        if not run.ended or twin or failed:
            with self.refused(Conflict):
                self.on(run, submitting.retry)
            return
        made = self.on(run, submitting.retry)
        assert made.retry_of == run.number
        self.world.submit(self.world.again(run, made.number, made.id))

    # dispatching and claims

    @action(
        weight=16,
        when=lambda self: self.world.runs,
        owner=OWNERS,
        scope=[None, None, None, None, None, "B"],
        bound=range(1, 5),
    )
    def dispatch(self, owner: str, scope: str | None, bound: int) -> None:
        ready = [number for (number,) in self.watch.execute("SELECT number FROM runs WHERE ready = 1")]
        done = self.write(dispatching.dispatch, owner=owner, scope=scope, bound=bound)
        offered = [run.number for run in done.offered]
        claimed = [run.number for run, _ in done.claimed]
        self.tell(
            f"dispatch by {owner} scope={scope} bound={bound} -> claimed {claimed} offered {offered} more={done.more}"
        )
        if not self.rekeyed:
            self._follow_dispatch(claimed, offered, owner, scope, done)
        else:
            taken, more = self.world.dispatch(ready, owner=owner, scope=scope, bound=bound)
            # Runs that still had their slots are claimed here even when new ones are only offered.
            assert claimed + offered == taken, f"the model starts {taken}"
            assert done.more == more
        for run, agent in done.claimed:
            assert run.agent == agent.name
            self.claims.append(claims.claim_of(run))

    def _follow_dispatch(
        self, claimed: list[int], offered: list[int], owner: str, scope: str | None, done: dispatching.Dispatched
    ) -> None:
        """Lanes still follow other limits: no limit may be passed; the order is the lanes' own affair until they are filed anew."""
        world = self.world
        if not world.paused and not world.rules.pull:
            for run in list(world.runs.values()):
                if run.state == "dispatched" and run.pull and scope in (None, run.batch):
                    world.enqueue(run)
        kept = [n for n in claimed if world.runs[n].state == "dispatched"]
        for run in list(world.runs.values()):
            if run.state == "dispatched" and not run.pull and run.number not in kept:
                row = self.watch.execute("SELECT state FROM runs WHERE number = ?", (run.number,)).fetchone()
                if row[0] != "dispatched":
                    assert run.agent not in model.AGENTS or world.unavailable.get(run.agent or "", 0) > self.now
                    world.enqueue(run)
        for number in claimed + offered:
            run = world.runs[number]
            if number in kept:
                world.claim_local(run, owner)
                continue
            assert world.is_ready(run)
            assert world.startable(run), f"#{number} may not start"
            world.admit(run)
            if not world.rules.pull:
                world.claim_local(run, owner)
        assert done.more or len(claimed + offered) < 5

    @action(
        weight=4,
        holder=["h1", "h2"],
        agent=[None, "a1", "a2"],
        types=[(), ("review",)],
    )
    def look_for_offers(self, holder: str, agent: str | None, types: tuple[str, ...]) -> None:
        self.tell(f"{holder} looks for offers as {agent} {types}")
        self.write(lambda tx, ctx: tx.put_puller(holder, agent, types, ctx.now_ms))
        self.world.pullers[holder] = (agent, types, self.now)

    @action(
        weight=12,
        when=lambda self: any(run.state in model.ACTIVE for run in self.world.runs.values()),
        pick=PICK,
        which=["open"] * 6 + ["held", "held", "ours", "any"],
        holder=["h1", "h2"],
        agent=mostly(None, "a1", "a2"),
        request=[None, "same", "q1", "q2", "q3", "q4", "q5"],
        offer=mostly("any", "this", "old"),
        lease=mostly(None, 60_000, 90_000, 0),
    )
    def claim(
        self,
        pick: int,
        which: str,
        holder: str,
        agent: str | None,
        request: str | None,
        offer: str,
        lease: int | None,
    ) -> None:
        fitting = {
            "open": [run for run in self.world.runs.values() if run.pull],
            "held": [run for run in self.world.runs.values() if run.live],
            "ours": [run for run in self.world.runs.values() if run.state == "dispatched" and not run.pull],
        }.get(which)
        run = fitting[pick % len(fitting)] if fitting else self.a_run(pick)
        if request == "same":
            request = run.attempts[run.fence].request if run.attempts else None
        number = {"any": None, "this": run.dispatches, "old": run.dispatches - 1}[offer]
        self.tell(f"{holder} ({agent}) claims #{run.number} request={request} offer={offer} lease={lease}")
        wanted: dict[str, Any] = {
            "holder": holder,
            "agent": agent,
            "request_id": request,
            "offer": number,
            "lease_ms": lease,
        }
        known = next((a for a in run.attempts.values() if request is not None and a.request == request), None)
        if known is not None and known.asked is None and known.holder == holder and lease != 0:
            claim = self.on(run, claims.claim_offer, **wanted)
            assert (claim.fence, claim.holder) == (run.fence, holder), "the same request gets the same claim"
            self.unchanged()
            return
        refusal = self._refusal(run, known, agent, offer, lease)
        if refusal is not None:
            with self.refused(refusal):
                self.on(run, claims.claim_offer, **wanted)
            return
        if run.agent is None and agent is not None:
            run.slots |= {f"agent:{agent}"}
        claim = self.on(run, claims.claim_offer, **wanted)
        self.claims.append(claim)
        self.world.claim(run, holder, run.agent or agent, None, request, lease or self.world.rules.remote_lease)

    def _refusal(
        self, run: model.Run, known: model.Attempt | None, agent: str | None, offer: str, lease: int | None
    ) -> type[InterlockError] | tuple[type[InterlockError], ...] | None:
        if lease == 0:
            return InvalidInput
        if known is not None:
            return StaleClaim
        if run.live:
            return AlreadyClaimed
        if run.state == "dispatched" and (run.held or self.world.paused):
            return Conflict
        if offer == "old":
            return StaleClaim
        if run.state == "dispatched" and not run.pull:
            return Conflict
        if run.state != "dispatched":
            # What is wrong first does not matter: there is no offer, and it may have been another agent's.
            return (IllegalTransition, InvalidInput)
        if agent is not None and run.agent is not None and agent != run.agent:
            return InvalidInput
        if run.agent is None and agent is not None and not self.world.has_room(frozenset({f"agent:{agent}"})):
            return Conflict
        return None

    # what a holder does

    @action(weight=8, when=lambda self: self.claims, pick=PICK, distortion=DISTORTIONS)
    def start(self, pick: int, distortion: str) -> None:
        claim, live = self.a_claim(pick, distortion)
        process = ProcessIdentity(boot_id="b", pid_namespace="n", pid=1, start_ticks=2)
        self.tell(f"start under {claim.holder} fence {claim.fence} of #{claim.run}")
        arguments = (claims.start, claim.run, claim.holder, claim.fence, process)
        if not live:
            with self.refused(StaleClaim):
                self.write(*arguments)
            return
        self.write(*arguments)
        run = self.world.runs[claim.run]
        if run.state == "running":
            self.unchanged()
        run.state, run.misfires = "running", 0

    @action(weight=4, when=lambda self: self.claims, pick=PICK, distortion=DISTORTIONS, lease=mostly(None, 90_000, -5))
    def renew(self, pick: int, distortion: str, lease: int | None) -> None:
        claim, live = self.a_claim(pick, distortion)
        self.tell(f"renew under {claim.holder} fence {claim.fence} of #{claim.run} for {lease}")
        arguments = (claims.renew, claim.run, claim.holder, claim.fence, lease)
        if not live or lease == -5:
            with self.refused(InvalidInput if lease == -5 else StaleClaim):
                self.write(*arguments)
            return
        beat = self.write(*arguments)
        run, rules = self.world.runs[claim.run], self.world.rules
        if run.remote:
            run.state, run.misfires = "running", 0
        assert beat.go_on == (run.stop is None)
        assert beat.go_on or beat.reason
        if run.stop is None:
            run.lease = self.now + (lease or (rules.remote_lease if run.remote else rules.local_lease))
        assert beat.lease_expires_ms == run.lease

    @action(weight=2, owner=OWNERS)
    def renew_owned(self, owner: str) -> None:
        self.tell(f"{owner} renews")
        mine = [run for run in self.world.runs.values() if run.live and run.owner == owner]
        assert self.write(claims.renew_owned, owner) == len(mine)
        for run in mine:
            run.lease = self.now + self.world.rules.local_lease

    @action(weight=2, when=lambda self: self.claims, pick=PICK, distortion=DISTORTIONS, tokens=range(6))
    def report_usage(self, pick: int, distortion: str, tokens: int) -> None:
        claim, live = self.a_claim(pick, distortion)
        self.tell(f"usage {tokens} under {claim.holder} fence {claim.fence} of #{claim.run}")
        arguments = (claims.report_usage, claim.run, claim.holder, claim.fence, Usage(input_tokens=tokens))
        if live:
            self.write(*arguments)
        else:
            with self.refused(StaleClaim):
                self.write(*arguments)

    @action(
        weight=16,
        when=lambda self: self.claims,
        pick=PICK,
        distortion=DISTORTIONS,
        end=ENDS,
        doubled=[False, True],
        words=["so it is", ""],
    )
    def end(self, pick: int, distortion: str, end: str, doubled: bool, words: str) -> None:
        claim, live = self.a_claim(pick, distortion)
        kind = OutcomeKind({"permanent": "failed", "deferred_long": "deferred"}.get(end, end))
        outcome = Outcome(
            kind=kind,
            reason=Reason.AGENT_FAILED,
            message=words,
            permanent=end == "permanent",
            delay_ms=3 * model.MINUTE if end == "deferred_long" else None,
        )
        run = self.world.runs.get(claim.run)
        self.tell(f"{end} under {claim.holder} fence {claim.fence} of #{claim.run}")
        arguments = (claims.finish, claim.run, claim.holder, claim.fence, outcome)
        if not live:
            past = None if run is None else run.attempts.get(claim.fence)
            if past is not None and past.holder == claim.holder and past.asked == kind:
                self.write(*arguments)
                self.unchanged()
                return
            with self.refused(StaleClaim):
                self.write(*arguments)
            return
        assert run is not None
        self.write(*arguments)
        self.world.end_attempt(run, str(kind), permanent=outcome.permanent, delay=outcome.delay_ms)
        if doubled:
            self.write(*arguments)
            self.unchanged()

    @action(weight=6, when=lambda self: any(run.live and run.stop for run in self.world.runs.values()), pick=PICK)
    def stopped_tree_is_gone(self, pick: int) -> None:
        """What the actor of a local run does once its agent is stopped; a remote agent acknowledges."""
        stopping = [run for run in self.world.runs.values() if run.live and run.stop]
        run = stopping[pick % len(stopping)]
        assert run.stop is not None
        stored = self.store.read_now(lambda tx: tx.run(run.number))
        assert stored is not None
        outcome = decide(stop=stored.stop, exit_status=143, result=None, result_fault=None, tail="")
        self.tell(f"the agent of #{run.number} is gone: {outcome.kind}")
        self.write(claims.finish, run.number, run.holder, run.fence, outcome)
        late = run.stop == ("timeout", "deadline")
        self.world.end_attempt(run, model.STOP_MEANS[run.stop[0]], deadline=late)

    # what an operator does

    @action(
        weight=5,
        when=lambda self: self.world.runs,
        pick=PICK,
        how=["cancel", "close", "interrupt", "stall"],
        words=mostly("why not", "  "),
    )
    def stop(self, pick: int, how: str, words: str) -> None:
        run = self.a_run(pick, *([] if pick % 4 == 0 else ["claimed", "running", "blocked", "dispatched"]))
        self.tell(f"{how} #{run.number}")
        if run.ended and how in ("cancel", "close"):
            with self.refused(Conflict):
                self.on(run, getattr(operating, how), message=words, by="operator")
            return
        if how == "stall":
            self.on(run, supervising.request_stop, StopKind.STALL, reason="stalled", message=words, by="system")
        else:
            self.on(run, getattr(operating, how), message=words, by="operator")
        if run.live:
            if run.stop is not None and how in ("cancel", "close") and run.stop[0] not in ("cancel", "close"):
                if run.then is None:
                    run.then = how
                else:
                    self.unchanged()
            elif run.stop is not None:
                self.unchanged()
            else:
                reasons = {
                    "cancel": "operator",
                    "close": "external_completion",
                    "interrupt": "interrupted",
                    "stall": "stalled",
                }
                run.stop = (how, reasons[how])
        elif how in ("cancel", "close") and not run.ended:
            self.world.finish(run, "cancelled" if how == "cancel" else "completed")
        else:
            self.unchanged()

    @action(weight=2, when=lambda self: self.world.runs, pick=PICK)
    def forget_process(self, pick: int) -> None:
        run = self.a_run(pick, *model.HELD)
        self.tell(f"forget the process of #{run.number}")
        self.on(run, supervising.forget_process, by="operator")
        if not run.live:
            self.unchanged()
        elif run.stop is not None:
            late = run.stop == ("timeout", "deadline")
            self.world.end_attempt(run, model.STOP_MEANS[run.stop[0]], deadline=late)
        else:
            self.world.end_attempt(run, "lost")

    @action(
        weight=5,
        when=lambda self: any(run.state == "blocked" for run in self.world.runs.values()),
        pick=PICK,
        words=mostly("yes", " "),
    )
    def answer(self, pick: int, words: str) -> None:
        run = self.a_run(pick, *([] if pick % 4 == 0 else ["blocked"]))
        self.tell(f"answer #{run.number} {words!r}")
        if not words.strip() or run.state != "blocked":
            with self.refused((InvalidInput, IllegalTransition)):
                self.on(run, operating.answer, words)
            return
        self.on(run, operating.answer, words)
        self.world.enqueue(run)

    @action(weight=2, when=lambda self: self.world.runs, pick=PICK)
    def hold(self, pick: int) -> None:
        self._hold(self.a_run(pick), held=True)

    @action(weight=5, when=lambda self: any(run.held for run in self.world.runs.values()), pick=PICK)
    def unhold(self, pick: int) -> None:
        held = [run for run in self.world.runs.values() if run.held]
        self._hold(held[pick % len(held)] if pick % 5 else self.a_run(pick), held=False)

    def _hold(self, run: model.Run, *, held: bool) -> None:
        self.tell(f"{'hold' if held else 'unhold'} #{run.number}")
        work = operating.hold if held else operating.unhold
        if run.ended:
            with self.refused(Conflict):
                self.on(run, work)
            return
        self.on(run, work)
        if run.held == held:
            self.unchanged()
        elif held and run.state == "dispatched":
            wait = (run.not_before, run.backoff, run.window)
            self.world.enqueue(run)
            run.not_before, run.backoff, run.window = wait
        run.held = held

    @action(weight=3, when=lambda self: self.world.runs, pick=PICK, priority=range(-2, 6))
    def set_priority(self, pick: int, priority: int) -> None:
        run = self.a_run(pick)
        self.tell(f"priority of #{run.number} -> {priority}")
        if run.ended:
            with self.refused(Conflict):
                self.on(run, operating.set_priority, priority)
            return
        self.on(run, operating.set_priority, priority)
        run.own_priority = priority

    @action(weight=9, when=lambda self: self.world.paused)
    def resume(self) -> None:
        self.tell("resume")
        assert self.write(lambda tx, _: operating.resume(tx))
        assert not self.write(lambda tx, _: operating.resume(tx))
        self.world.paused = False

    @action(weight=1)
    def pause(self) -> None:
        self.tell("pause")
        self.write(operating.pause)
        if not self.world.paused:
            for run in list(self.world.runs.values()):
                if run.state == "dispatched":
                    wait = (run.not_before, run.backoff, run.window)
                    self.world.enqueue(run)
                    run.not_before, run.backoff, run.window = wait
        self.world.paused = True

    @action(
        weight=2,
        type_=["review", "build"],
        route={
            "agent": ["a1", "a2", "ghost"],
            "priority": range(-1, 3),
            "cap": [None, None, 0, 1],
            "minutes": [None, 5],
        },
        gone=[False, False, True],
    )
    def set_route(self, type_: str, route: dict[str, Any], gone: bool) -> None:
        self._set_route(type_, None if gone else model.Route(**route))

    def _set_route(self, type_: str, route: model.Route | None) -> None:
        self.tell(f"route {type_} -> {route}")
        if route is None and type_ not in self.world.routes:
            with self.refused(NotFound):
                self.write(lambda tx, _: operating.delete_route(tx, type_))
        elif route is None:
            self.write(lambda tx, _: operating.delete_route(tx, type_))
            del self.world.routes[type_]
        else:
            self.write(
                operating.put_route,
                Route(
                    workflow_type=type_,
                    agent_id=route.agent,
                    priority=route.priority,
                    max_concurrent=route.cap,
                    timeout_minutes=route.minutes,
                ),
            )
            self.world.routes[type_] = route

    @action(weight=1, agent=["a1", "a2"], broken=mostly(False, True, True))
    def agent_health(self, agent: str, broken: bool) -> None:
        self.tell(f"agent {agent} {'cannot start' if broken else 'can be started'}")
        if broken:
            health = self.write(operating.agent_cannot_start, agent, "command not found")
            if self.world.unavailable.get(agent, 0) > self.now:
                self.unchanged()
            else:
                assert 2500 <= health.retry_ms - self.now <= 300_000
            self.world.unavailable[agent] = health.retry_ms
        else:
            self.write(lambda tx, _: operating.agent_started(tx, agent))
            self.world.unavailable.pop(agent, None)

    @action(weight=1, rules=CONFIGURATION, rekey=[False, True])
    def new_configuration(self, rules: dict[str, Any], rekey: bool) -> None:
        """The daemon is restarted with another configuration; queued runs are filed anew at once, or not yet."""
        self._configure(model.Rules(**rules), rekey=rekey)

    def _configure(self, rules: model.Rules, *, rekey: bool) -> None:
        self.restart()
        self.tell(f"new configuration {rules} rekey={rekey}")
        self.world.rules = rules
        self.settings = real_settings(rules)
        if not rekey:
            # Nothing was stored about lanes so far: then they follow whoever files.
            self.rekeyed = self.world.lanes_by == rules.speaks_of and self.rekeyed
            if self.store.read_now(lambda tx: tx.meta(filing.LIMITED_META)) is None:
                self.write(lambda tx, _: filing.begin_rekeying(tx, self._context_of(self.world.lanes_by)))
                self.write(lambda tx, ctx: filing.rekey(tx, ctx, 0, ALL))
            return
        after = self.write(filing.begin_rekeying)
        while after is not None:
            after = self.write(filing.rekey, after, 2)
        self.rekeyed = True
        self.world.lanes_by = rules.speaks_of

    def _context_of(self, speaks_of: tuple[frozenset[str], ...]) -> Context:
        named = [dict.fromkeys(sorted(names), 1) for names in speaks_of]
        limits = Limits(per_project=named[0], per_tracker=named[1], per_tag=named[2])
        return Context(now_ms=self.now, rng=self.rng, settings=Settings(limits=limits))

    # time and crashes

    @action(weight=4, span=SPANS)
    def time_passes(self, span: int | str) -> None:
        self._pass(span)

    def _pass(self, span: int | str) -> None:
        self.world.now += self._length(span)
        self.tell(f"{span}: it is {self.now - START} ms after the start")

    def _length(self, span: int | str) -> int:
        """A number of milliseconds; ``due``: up to the next moment at which something is due, ``almost``: up to the one before."""
        if isinstance(span, int):
            return span
        dues = [due for run in self.world.runs.values() if (due := self.world.due(run)) is not None and due > self.now]
        return (min(dues) if dues else self.now + 1) - self.now - (span == "almost")

    @action(weight=6, span=SPANS)
    def reap(self, span: int | str) -> None:
        self._pass(span)
        # An end may bring the next one: a lapsed claim is offered again, and its deadline has passed as well.
        for _ in range(4):
            reaped = self.write(supervising.reap, ALL)
            self.tell(f"reap -> {[(r.run.number, str(r.due.kind)) for r in reaped]}")
            self.world.reap()
            if not reaped:
                break
        else:
            raise AssertionError("the reaper would spin")
        late = [run.number for run in self.world.runs.values() if self.world.is_ready(run)]
        ready = [n for (n,) in self.watch.execute("SELECT number FROM runs WHERE ready = 1 ORDER BY number")]
        assert ready == sorted(late), "after the reaper every run whose time has come is ready"

    @action(weight=1)
    def restart(self) -> None:
        self.tell("the store is closed and opened again")
        self.store.close()
        self._open()

    @action(weight=1, span=SPANS)
    def downtime(self, span: int | str) -> None:
        """Time in which no dispatcher was awake counts against nobody."""
        span = self._length(span)
        self.tell(f"the dispatcher is down for {span} ms")
        self.write(supervising.catch_up, epoch=EPOCH, threshold_ms=0)
        self.world.catch_up()
        self.world.now += span
        self.restart()
        shifted = self.write(supervising.catch_up, epoch=EPOCH, threshold_ms=0)
        assert shifted == span
        self.world.catch_up()

    @action(weight=3, when=lambda self: self.world.runs, pick=PICK, old=OWNERS, new=OWNERS)
    def adopt(self, pick: int, old: str, new: str) -> None:
        run = self.a_run(pick, *model.HELD)
        if pick % 3 and run.owner is not None:
            old = run.owner
        self.tell(f"{new} takes #{run.number} over from {old}")
        adopted = self.write(supervising.adopt, run.number, old_owner=old, new_owner=new)
        if not run.live or run.remote or run.owner != old:
            assert adopted is None
            self.unchanged()
            return
        run.owner, run.epoch = new, run.epoch + 1
        run.lease = self.now + self.world.rules.local_lease

    @action(
        weight=2,
        when=lambda self: self.world.runs,
        pick=PICK,
        event=[event for event in RunEvent if event is not RunEvent.SUBMIT],
    )
    def illegal_move(self, pick: int, event: RunEvent) -> None:
        run = self.a_run(pick)
        if (run.state, event) in {(str(state), name) for state, name in RUN.moves}:
            return
        self.tell(f"an illegal {event} of #{run.number}, which is {run.state}")
        with self.refused(IllegalTransition):
            self.on(run, move, event, by="nobody")

    @action(weight=1, when=lambda self: any(run.ended for run in self.world.runs.values()), bound=range(1, 4))
    def prune(self, bound: int) -> None:
        gone = [number for number, _ in self.write(lambda tx, _: operating.prune(tx, self.now, bound))]
        self.tell(f"prune -> {gone}")
        for number in gone:
            assert self.world.runs.pop(number).ended
            self.finals.pop(number)
            self.fences.pop(number, None)
            self.replayed.pop(number)
            for run in self.world.runs.values():
                run.needs.pop(number, None)
        self.in_use = self.world.used()

    # what always holds

    def check(self) -> None:
        """DESIGN section 3, and that every row is as the model has it."""
        self.dump = self._dump()
        rows = self._rows()
        self._as_in_the_model(rows)
        self._one_live_claim(rows)
        self._slots(rows)
        self._events(rows)
        self._finality(rows)
        self._queue(rows)

    def _rows(self) -> dict[int, Run]:
        def everything(tx: Any) -> dict[int, Run]:
            numbers = [number for (number,) in self.watch.execute("SELECT number FROM runs ORDER BY number")]
            return {number: tx.run(number) for number in numbers}

        return self.store.read_now(everything)

    def _as_in_the_model(self, rows: dict[int, Run]) -> None:
        assert rows.keys() == self.world.runs.keys()
        for number, run in self.world.runs.items():
            row = rows[number]
            if run.window is not None:
                assert row.not_before_ms is not None
                assert run.window[0] <= row.not_before_ms <= run.window[1], f"the wait of #{number}"
                run.not_before, run.window = row.not_before_ms, None
            seen = {
                "state": str(row.state),
                "held": row.held,
                "fence": row.fence,
                "holder": row.holder,
                "remote": row.remote,
                "owner": row.owner,
                "epoch": row.owner_epoch,
                "pull": row.pull,
                "lease": row.lease_expires_ms,
                "offered": row.offered_ms,
                "claimed": row.claimed_ms,
                "timeout_at": row.timeout_at_ms,
                "spent": row.spent_ms,
                "stop": None if row.stop is None else (str(row.stop.kind), row.stop.reason),
                "budgets": (
                    row.failures,
                    row.losts,
                    row.defers,
                    row.offers,
                    row.releases,
                    row.misfires,
                    row.dispatch_count,
                ),
                "not_before": row.not_before_ms,
                "backoff": row.not_before_why is not None,
                "own priority": row.base_priority,
            }
            wanted = {
                "state": run.state,
                "held": run.held,
                "fence": run.fence,
                "holder": run.holder,
                "remote": run.remote,
                "owner": run.owner,
                "epoch": run.epoch,
                "pull": run.pull,
                "lease": run.lease,
                "offered": run.offered,
                "claimed": run.claimed,
                "timeout_at": run.timeout_at,
                "spent": run.spent,
                "stop": run.stop,
                "budgets": (
                    run.failures,
                    run.losts,
                    run.defers,
                    run.offers,
                    run.releases,
                    run.misfires,
                    run.dispatches,
                ),
                "not_before": run.not_before,
                "backoff": run.backoff,
                "own priority": run.own_priority,
            }
            if not run.ended:
                seen["priority"], wanted["priority"] = row.priority, self.world.priority(run)
                seen["needs"], wanted["needs"] = row.needs_left, run.unmet
            if run.state in model.ACTIVE:
                seen["agent"], wanted["agent"] = row.agent, run.agent
            differences = {key: (seen[key], wanted[key]) for key in wanted if seen[key] != wanted[key]}
            assert not differences, f"#{number} (is, should be): {differences}"
            if not run.ended:
                unmet = "SELECT count(*) FROM needs WHERE run = ? AND met = 0"
                assert row.needs_left == self.watch.execute(unmet, (number,)).fetchone()[0]

    def _one_live_claim(self, rows: dict[int, Run]) -> None:
        for number, row in rows.items():
            attempts = self.store.read_now(lambda tx, n=number: tx.attempts(n))
            assert [attempt.fence for attempt in attempts] == list(range(1, row.fence + 1))
            live = [attempt for attempt in attempts if attempt.ended_ms is None]
            assert len(live) == (1 if row.held_by_agent else 0), f"live attempts of #{number}: {live}"
            assert all(attempt.fence == row.fence and attempt.holder == row.holder for attempt in live)
            for attempt in attempts:
                asked = self.world.runs[number].attempts[attempt.fence].asked
                assert attempt.ending_event == asked
                if attempt.ended_ms is not None:
                    assert attempt.reason in {str(reason) for reason in Reason}
                    assert (attempt.message or "").strip()
            if row.terminal:
                assert row.reason in {str(reason) for reason in Reason}
                assert (row.message or "").strip()
                assert row.ended_ms is not None
            assert row.fence >= self.fences.get(number, 0), "fences only grow"
            self.fences[number] = row.fence

    def _slots(self, rows: dict[int, Run]) -> None:
        def counted(tx: Any) -> tuple[dict[str, int], dict[str, int], list[str], dict[int, list[str]]]:
            return tx.used(), tx.recount(), tx.slot_faults(), {number: tx.slots_of(number) for number in rows}

        used, recount, faults, slots = self.store.read_now(counted)
        assert not faults
        assert used == recount == dict(self.world.used())
        assert slots == {number: sorted(run.slots) for number, run in self.world.runs.items()}
        for key, cap in self.world.caps().items():
            assert used.get(key, 0) <= max(cap, self.in_use[key]), f"{used[key]} of {cap} {key}"
        self.in_use = Counter(used)

    def _events(self, rows: dict[int, Run]) -> None:
        notes = {str(entry) for entry in Note}
        for event in self.store.read_now(lambda tx: tx.events_after(self.last_seq, ALL)):
            assert event.seq > self.last_seq
            self.last_seq = event.seq
            before = self.replayed.get(event.run)
            assert event.from_state == before, "the log has no gaps"
            if event.event in notes:
                assert event.to_state == before
            elif event.event == RunEvent.SUBMIT:
                assert (before, event.to_state) == (None, "queued")
            else:
                assert before is not None
                assert str(RUN.moves[RUN.states(before), event.event]) == event.to_state
            self.replayed[event.run] = event.to_state or ""
        assert self.replayed == {number: str(row.state) for number, row in rows.items()}, "the log tells the same story"

    def _finality(self, rows: dict[int, Run]) -> None:
        raw = {row[0]: row for row in self.dump["runs"]}
        for number, row in rows.items():
            if number in self.finals:
                assert raw[number] == self.finals[number], f"#{number} had ended and was changed"
            elif row.terminal:
                self.finals[number] = raw[number]

    def _queue(self, rows: dict[int, Run]) -> None:
        for number, row in rows.items():
            run = self.world.runs[number]
            due, wanted = row.due_ms, self.world.due(run)
            if row.ready:
                assert self.world.is_ready(run)
                assert due is None
            elif run.state == "queued" and self.world.is_ready(run):
                assert due is not None, f"nobody would wake #{number}"
                assert due <= self.now
            elif (
                run.state == "dispatched" and not run.pull and run.not_before is not None and run.not_before <= self.now
            ):
                assert due in (wanted, run.timeout_at)
            else:
                assert due == wanted, f"#{number} is due at {due}, should be {wanted}"
        heads: dict[int, tuple[int, float, int]] = {}
        for row in rows.values():
            if row.ready:
                order = (-row.priority, -row.score, row.number)
                heads[row.lane] = min(heads.get(row.lane, order), order)
        stored = {
            lane: (-priority, -score, number)
            for lane, number, priority, score in self.watch.execute(
                "SELECT id, head_number, head_priority, head_score FROM lanes WHERE head_number IS NOT NULL"
            )
        }
        assert stored == heads, "heads of lanes"
        if self.rekeyed:
            lanes = {
                (row.lane, self.world.lane(self.world.runs[number]))
                for number, row in rows.items()
                if str(row.state) == "queued"
            }
            assert len({lane for lane, _ in lanes}) == len({key for _, key in lanes}) == len(lanes), f"lanes {lanes}"


def _drawn(draw: Draw, name: str, options: Any) -> Any:
    if isinstance(options, dict):
        return {key: _drawn(draw, f"{name}.{key}", some) for key, some in options.items()}
    return draw(name, options)


def _fields(claim: Claim) -> dict[str, Any]:
    return {name: getattr(claim, name) for name in claim.__struct_fields__}


def _has_circle(edges: Sequence[tuple[str, str]]) -> bool:
    reach = set(edges)
    while True:
        more = {(a, d) for a, b in reach for c, d in reach if b == c} - reach
        if not more:
            return any(a == b for a, b in reach)
        reach |= more
