"""A place to try commands in: a real store in a folder, a clock that is set by hand, chance that repeats itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec

from interlock.decide.outcome import Outcome, OutcomeKind
from interlock.domain.run import Claim, Run
from interlock.domain.settings import Agent, Limits, Mode, Settings
from interlock.domain.states import Reason
from interlock.domain.task import Task
from interlock.ports.store import Tx
from interlock.service import claims, dispatching, operating, submitting
from interlock.service.context import Context
from interlock.store.sqlite import SqliteStore

T = TypeVar("T")
START = 1_700_000_000_000
OWNER = "here:1:a"
SETTINGS = Settings(agents={"a": Agent(name="a", command="true")}, default_agent="a", limits=Limits(total=100))


def said(kind: OutcomeKind, message: str = "so it is", **more: Any) -> Outcome:
    """An outcome."""
    return Outcome(kind=kind, reason=more.pop("reason", Reason.AGENT_FAILED), message=message, **more)


class Yard:
    """The service's commands on a store of their own."""

    def __init__(self, folder: Path, settings: Settings = SETTINGS) -> None:
        self.store = SqliteStore(folder, create=True, inline=True)
        self.path = self.store.path
        self.settings = settings
        self.now = START
        self.rng = Random(1)

    @property
    def ctx(self) -> Context:
        return Context(now_ms=self.now, rng=self.rng, settings=self.settings)

    def configure(self, **changes: Any) -> None:
        """Change settings; ``limits=...`` and the like are whole values."""
        self.settings = msgspec.structs.replace(self.settings, **changes)

    def do(self, command: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Run a command of the service."""
        return self.store.write_now(lambda tx: command(tx, self.ctx, *arguments, **named))

    def on(self, run: Run, command: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Run a command on a run as it is now."""
        return self.do(lambda tx, ctx: command(tx, ctx, tx.run(run.number), *arguments, **named))

    def ask(self, question: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Ask a question of the service."""
        return self.store.read_now(lambda tx: question(tx, self.ctx, *arguments, **named))

    def read(self, work: Callable[[Tx], T]) -> T:
        return self.store.read_now(work)

    def get(self, run: Run) -> Run:
        """The run as it is now."""
        found = self.read(lambda tx: tx.run(run.number))
        assert found is not None
        return found

    # ways to get somewhere

    def submit(self, title: str = "task", *, batch: str | None = None, held: bool = False, **fields: Any) -> Run:
        item = submitting.Item(task=Task(title=title, **fields), batch=batch, held=held)
        made: list[submitting.Submitted] = self.do(submitting.submit, [item])
        return made[0].run

    def dispatch(self, *, scope: str | None = None, bound: int = 100) -> dispatching.Dispatched:
        done: dispatching.Dispatched = self.do(dispatching.dispatch, owner=OWNER, scope=scope, bound=bound)
        return done

    def started(self, *, bound: int = 1000) -> list[int]:
        """Dispatch, and say which were claimed or offered."""
        done = self.dispatch(bound=bound)
        return [run.number for run, _ in done.claimed] + [run.number for run in done.offered]

    def claimed(self, title: str = "task", **fields: Any) -> Claim:
        """A run under a local claim."""
        run = self.submit(title, **fields)
        done = self.dispatch()
        assert [one.number for one, _ in done.claimed] == [run.number]
        return claims.claim_of(self.get(run))

    def running(self, title: str = "task", **fields: Any) -> Claim:
        claim = self.claimed(title, **fields)
        self.do(claims.start, claim.run, claim.holder, claim.fence)
        return claim

    def offered(self, title: str = "task", **fields: Any) -> Run:
        """A run that is offered to agents from outside."""
        run = self.submit(title, **fields)
        before, self.settings = self.settings, msgspec.structs.replace(self.settings, mode=Mode.PULL)
        self.dispatch()
        self.settings = before
        return self.get(run)

    def end(self, claim: Claim, kind: OutcomeKind, message: str = "so it is", **more: Any) -> Run:
        ended: Run = self.do(claims.finish, claim.run, claim.holder, claim.fence, said(kind, message, **more))
        return ended

    def bring(self, state: str) -> Run:
        """A run in that state."""
        if state == "queued":
            return self.submit()
        if state == "dispatched":
            return self.offered()
        if state == "cancelled":
            done: Run = self.on(self.submit(), operating.cancel)
            return done
        claim = self.running() if state == "running" else self.claimed()
        kinds = {
            "blocked": OutcomeKind.BLOCKED,
            "completed": OutcomeKind.COMPLETED,
            "timed_out": OutcomeKind.TIMED_OUT,
        }
        if state == "failed":
            return self.end(claim, OutcomeKind.FAILED, permanent=True)
        if state in kinds:
            return self.end(claim, kinds[state])
        run = self.read(lambda tx: tx.run(claim.run))
        assert run is not None
        return run

    def raw(self, *, foreign_keys: bool = False) -> sqlite3.Connection:
        """Another program with the same file open."""
        connection = sqlite3.connect(self.path, isolation_level=None)
        connection.execute(f"PRAGMA foreign_keys = {int(foreign_keys)}")
        return connection
