"""The actor of one run: from its claim to the commit that ends the attempt.

It prepares the attempt's folder, writes the prompt, starts the agent, watches it, and records how it ended. Whatever it does can
be cut off at any point and taken up by another process: the claim is committed before anything is started, the folder
says what became of the agent, and the end is one transaction. Stopping is an intent in the database before this actor hears
of it; the run moves only after the agent's whole tree is confirmed to be gone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import trio

from interlock.actors.supervision import persist
from interlock.actors.words import load_result, read_tail
from interlock.decide.outcome import Outcome, OutcomeKind, decide
from interlock.decide.routing import route_for
from interlock.domain.attempt_files import AttemptFiles, attempt_variables
from interlock.domain.crashpoints import crashpoint
from interlock.domain.errors import StaleClaim
from interlock.domain.run import Attempt, Claim, ProcessIdentity, Run, Stop
from interlock.domain.settings import Agent, Settings
from interlock.domain.states import AttemptState, Reason, RunState, StopKind
from interlock.machines.table import ATTEMPT
from interlock.ports.clock import Clock
from interlock.ports.runtime import (
    Alive,
    CannotStart,
    Ended,
    Ending,
    Handle,
    Launch,
    NeverStarted,
    Runtime,
    TreeSurvives,
)
from interlock.ports.store import Tx
from interlock.prompts import build_prompt, role_text
from interlock.service import Service
from interlock.service.claims import finish, note, start
from interlock.service.context import Context
from interlock.service.dispatching import stall_limit_ms
from interlock.service.operating import agent_cannot_start, agent_started

log = logging.getLogger("interlock")

CONFIRM_AGAIN_SECONDS = 30.0
QUICK_SECONDS = 0.025
"""An agent that ends within so long is recorded once: its start by the commit that records its end."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What all run actors of a process share."""

    service: Service
    clock: Clock
    settings: Settings
    data: Path
    runtime: Runtime
    environment: Mapping[str, str]
    folder: Path


Write = Callable[[Callable[[Tx, Context], Run]], Awaitable[Run]]


class RunActor:
    """Looks after one claim. ``run`` and ``agent`` are as claimed. ``end``: what runs the command that ends the attempt."""

    def __init__(self, around: Surroundings, run: Run, agent: Agent, *, end: Write | None = None) -> None:
        self.around = around
        self._end: Write = end or around.service.write
        self.run = run
        self.agent = agent
        assert run.holder is not None
        assert run.lease_expires_ms is not None
        self.claim = Claim(
            run=run.number,
            run_id=run.id,
            holder=run.holder,
            fence=run.fence,
            lease_expires_ms=run.lease_expires_ms,
        )
        self.phase = AttemptState.PREPARING
        self.stop_intent: Stop | None = run.stop
        self._stopping = run.stop is not None
        self._watching: trio.CancelScope | None = None
        self._ended_first = False
        self._was_quick = False
        self._process: ProcessIdentity | None = None

    def ask_to_stop(self, stop: Stop) -> None:
        """Hear of a persisted stop intent."""
        if self.stop_intent is None:
            self.stop_intent = stop
        self._stopping = True
        if self._watching is not None:
            self._watching.cancel()

    async def execute(self) -> None:
        """Start the agent of a fresh claim and see it through."""
        files = await self._locate()
        try:
            try:
                await self._prepare(files)
            except OSError as error:
                what = f"the attempt cannot be prepared: {error.strerror} ({error.filename})"
                await self._finish(Outcome(kind=OutcomeKind.CANNOT_START, reason=Reason.NOT_PREPARED, message=what))
                return
            # Any other error than this one proves nothing: the agent may run, and only recovery can tell.
            handle = await self._launch(files)
        except CannotStart as error:
            what = str(error)
            outcome = Outcome(kind=OutcomeKind.CANNOT_START, reason=Reason.AGENT_UNAVAILABLE, message=what)
            await self._finish(outcome, unavailable=what)
            return
        await self._see_through(handle, files)

    async def recover(self) -> None:
        """Take up the agent of a claim that an earlier process left behind."""
        files = await self._locate()
        while True:
            attempt = await self._attempt()
            found = await self.around.runtime.recover(
                files.folder, attempt.process, started=attempt.started_ms is not None
            )
            if isinstance(found, Alive):
                await self._see_through(found.handle, files)
                return
            if isinstance(found, Ended):
                await self._conclude(found.ending, files)
                return
            if isinstance(found, NeverStarted):
                await self._conclude(None, files)
                return
            log.error("run #%d: %s; its slot stays taken", self.run.number, found.why)
            await self._note(f"nobody can tell whether its agent lives: {found.why}")
            await trio.sleep(CONFIRM_AGAIN_SECONDS)

    async def _locate(self) -> AttemptFiles:
        attempt = await self._attempt()
        self.phase = attempt.state
        assert attempt.folder is not None
        return AttemptFiles(self.around.data / attempt.folder)

    async def _attempt(self) -> Attempt:
        found: list[Attempt] = []

        async def look() -> None:
            attempt = self.around.service.store.peek(lambda tx: tx.attempt(self.run.number, self.run.fence))
            assert attempt is not None
            found.append(attempt)

        await persist("reading an attempt", look)
        return found[0]

    # launching

    async def _prepare(self, files: AttemptFiles) -> None:
        files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        crashpoint("prepare.folder")
        self.phase = AttemptState(ATTEMPT.target(self.phase, "prompt"))
        earlier: list[Attempt] = []
        if self.run.fence > 1:
            earlier = self.around.service.store.peek(lambda tx: tx.attempts(self.run.number))
        prompt = build_prompt(
            self.run,
            [attempt for attempt in earlier if attempt.fence < self.run.fence],
            role_text=role_text(self.run.task, self.around.settings, self.around.folder),
        )
        files.prompt.write_text(prompt, "utf-8", errors="replace")

    async def _launch(self, files: AttemptFiles) -> Handle:
        self.phase = AttemptState(ATTEMPT.target(self.phase, "launch"))
        crashpoint("before_launch")
        handle = await self.around.runtime.launch(
            Launch(
                run=self.run.number,
                run_id=self.run.id,
                fence=self.run.fence,
                agent=self.agent,
                folder=files.folder,
                cwd=self._cwd(),
                env=self._environment(files),
            )
        )
        crashpoint("after_launch")
        return handle

    def _cwd(self) -> Path:
        return self.around.folder if self.agent.cwd is None else self.around.folder / self.agent.cwd

    def _environment(self, files: AttemptFiles) -> dict[str, str]:
        return {
            **self.around.environment,
            **self.agent.env,
            **attempt_variables(files, number=self.run.number, run_id=self.run.id, fence=self.run.fence),
            "INTERLOCK_DATA": str(self.around.data),
            "INTERLOCK_DB": str(self.around.data / "interlock.db"),
        }

    # watching

    async def _see_through(self, handle: Handle, files: AttemptFiles) -> None:
        try:
            await self._confirm_start(handle)
            ending = await self._watch(handle)
            await self._end_tree(handle)
            if ending is None:
                with trio.move_on_after(1):
                    ending = await handle.wait()
            await self._conclude(ending or Ending(exit_status=None), files)
        finally:
            handle.close()

    async def _watch(self, handle: Handle) -> Ending | None:
        """Until the agent has ended by itself; None when it is to be stopped."""
        if self._stopping:
            return None
        stall_ms = await self._stall_ms()
        with trio.CancelScope() as self._watching:
            async with AsyncExitStack() as beside:
                if stall_ms is not None:
                    nursery = await beside.enter_async_context(trio.open_nursery())
                    nursery.start_soon(self._watch_for_stall, handle, stall_ms)
                    beside.callback(nursery.cancel_scope.cancel)
                ending = await handle.wait()
            if await self._current_stop() is None:
                # A stop that is asked for from here on finds an agent that has ended already.
                self._ended_first = True
            return ending
        return None

    async def _confirm_start(self, handle: Handle) -> None:
        if self.run.state is RunState.RUNNING or self._stopping:
            return
        with trio.move_on_after(QUICK_SECONDS):
            await handle.wait()
            self._was_quick = not self._stopping
        self._process = handle.identity
        if self._was_quick or self._stopping:
            return

        async def confirm() -> None:
            try:
                self.run = await self.around.service.write(self._record_start)
                self.phase = AttemptState.WORKING
            except StaleClaim:
                log.warning("run #%d: its claim is over", self.run.number)

        await persist("confirming a start", confirm)

    def _record_start(self, tx: Tx, ctx: Context) -> Run:
        run = start(tx, ctx, self.claim.run, self.claim.holder, self.claim.fence, self._process)
        if self.agent.name in tx.healths():
            # Nothing less than a start shows that an agent can be started.
            agent_started(tx, self.agent.name)
        return run

    async def _stall_ms(self) -> int | None:
        routes = {}
        if self.run.task.type is not None:
            routes = self.around.service.store.peek(lambda tx: tx.routes())
        return stall_limit_ms(self.run, self.agent, route_for(self.run.task.type, routes), self.around.settings)

    async def _watch_for_stall(self, handle: Handle, stall_ms: int) -> None:
        # By trio's clock: the other one follows the wall clock when somebody sets it.
        last, since = handle.activity(), trio.current_time()
        while True:
            await trio.sleep(min(30.0, max(0.05, stall_ms / 4000)))
            now = handle.activity()
            if now != last:
                last, since = now, trio.current_time()
            elif trio.current_time() - since >= stall_ms / 1000:
                message = f"neither output nor CPU time for {stall_ms / 1000:g} s"

                async def ask(message: str = message) -> None:
                    run = await self.around.service.request_stop(
                        self.run.number, StopKind.STALL, reason=str(Reason.STALLED), message=message, by="system"
                    )
                    if run.stop is not None:
                        self.ask_to_stop(run.stop)

                await persist("stopping a stalled agent", ask)
                return

    async def _end_tree(self, handle: Handle) -> None:
        grace = self.agent.grace_ms if self.agent.grace_ms is not None else self.around.settings.stop_grace_ms
        told = False
        while True:
            try:
                await handle.stop(grace)
            except TreeSurvives as error:
                log.exception("run #%d: its processes do not end; its slot stays taken", self.run.number)
                if not told:
                    await self._note(f"its processes do not end, its slot stays taken: {error}")
                    told = True
                await trio.sleep(CONFIRM_AGAIN_SECONDS)
            else:
                return

    # ending

    async def _conclude(self, ending: Ending | None, files: AttemptFiles) -> None:
        """Decide and record the outcome. ``ending`` None: the agent never ran."""
        # An intent that was committed before the end counts, also when nobody told us yet.
        stop = self.stop_intent
        if stop is None and not self._ended_first:
            stop = await self._current_stop()
        if ending is None and stop is None:
            message = "the dispatcher ended before it could start the agent"
            outcome = Outcome(kind=OutcomeKind.INTERRUPTED, reason=Reason.NOT_STARTED, message=message)
        else:
            outcome = self._outcome(stop, ending, files)
        crashpoint("before_finish")
        await self._finish(outcome)
        crashpoint("after_finish")

    def _outcome(self, stop: Stop | None, ending: Ending | None, files: AttemptFiles) -> Outcome:
        result, fault = load_result(files.result)

        def under(intent: Stop | None) -> Outcome:
            return decide(
                stop=intent,
                exit_status=None if ending is None else ending.exit_status,
                result=result,
                result_fault=fault,
                tail=read_tail(files.log),
            )

        if stop is not None and ending is not None and self._ended_before(stop, files):
            by_itself = under(None)
            if by_itself.kind is OutcomeKind.COMPLETED:
                return by_itself
        return under(stop)

    def _ended_before(self, stop: Stop, files: AttemptFiles) -> bool:
        """Whether the agent had ended by itself before the stop was asked for: work that was done counts as done."""
        if self._ended_first:
            return True
        try:
            # Seen later than it happened, or taken up after a restart: the exit file was written at the agent's end.
            return files.exit.stat().st_mtime * 1000 < stop.at_ms
        except OSError:
            return False

    async def _current_stop(self) -> Stop | None:
        found: list[Stop | None] = []

        async def look() -> None:
            run = self.around.service.store.peek(lambda tx: tx.run(self.run.number))
            found.append(None if run is None or run.fence != self.run.fence else run.stop)

        await persist("reading a run", look)
        return found[0]

    async def _finish(self, outcome: Outcome, *, unavailable: str | None = None) -> None:
        """Record the end of the attempt, and in the same transaction why its agent cannot be started, if so."""

        def record(tx: Tx, ctx: Context) -> Run:
            if self._was_quick:
                self._record_start(tx, ctx)
            run = finish(tx, ctx, self.claim.run, self.claim.holder, self.claim.fence, outcome)
            if unavailable is not None:
                agent_cannot_start(tx, ctx, self.agent.name, unavailable)
            return run

        async def end() -> None:
            try:
                self.run = await self._end(record)
            except StaleClaim as error:
                log.warning("run #%d: its end changes nothing: %s", self.run.number, error.message)

        await persist("recording the end of an attempt", end)

    async def _note(self, message: str) -> None:
        await persist(
            "writing a note",
            lambda: self.around.service.write(
                lambda tx, ctx: note(tx, ctx, tx.run(self.run.number) or self.run, message, by="system")
            ),
        )
