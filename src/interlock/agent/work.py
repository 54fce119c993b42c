"""One claim of an agent from outside, from the start of its command until the server has the outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec
import trio

from interlock.actors.words import load_result, read_tail
from interlock.agent.link import Link
from interlock.agent.report import Output, report
from interlock.agent.spool import Ticket
from interlock.client import calls
from interlock.decide.outcome import Outcome, OutcomeKind, decide
from interlock.domain.attempt_files import attempt_variables
from interlock.domain.crashpoints import crashpoint
from interlock.domain.errors import InterlockError, NotFound, StaleClaim
from interlock.domain.settings import Agent
from interlock.domain.states import Reason
from interlock.ports.runtime import Alive, CannotStart, Ended, Ending, Handle, Launch, Runtime, TreeSurvives, Unknown
from interlock.wire import RunOut

QUICK_SECONDS = 0.05
"""A command that ends within so long needs no heartbeat."""
LONGEST_BETWEEN_HEARTBEATS_SECONDS = 15.0
"""A heartbeat is also how an agent learns that it is to stop: nobody should wait for that for the third of a long lease."""
LOOK_AT_OUTPUT_SECONDS = 0.5
STOP_AGAIN_SECONDS = 30.0
PARTING_SECONDS = 5.0
"""So long an outcome is tried to be told by an agent that is to end at once; then it is left to the next one."""


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person who watches wants a line for. ``event``: as in the event log of a run; empty: see ``message``."""

    event: str = ""
    number: int | None = None
    title: str = ""
    fence: int = 1
    message: str = ""
    took_seconds: float | None = None
    warning: bool = False


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What all claims of an agent share. ``lease_seconds``: None: as the server has it."""

    link: Link
    runtime: Runtime
    agent: Agent
    cwd: Path
    environment: Mapping[str, str]
    tell: Callable[[Happening], object]
    lease_seconds: float | None = None
    grace_ms: int = 10_000


class Halt(StrEnum):
    """Why a command is stopped: told by the server, its claim is over, or this agent is to end."""

    TOLD = "told"
    STALE = "stale"
    ENDING = "ending"


class Work:
    """Looks after one ticket that has a claim. ``unavailable`` afterwards: why the command could not be started, if so."""

    def __init__(self, around: Around, ticket: Ticket) -> None:
        assert ticket.taken is not None
        self._around = around
        self._ticket = ticket
        self.taken = ticket.taken
        self.unavailable: str | None = None
        self._output = Output(around.link, ticket)
        self._halt: Halt | None = None
        self._watching: trio.CancelScope | None = None
        self._delivering: trio.CancelScope | None = None
        self._ended_by_itself = False
        self._since = trio.current_time()

    def end(self) -> None:
        """Stop the command and give the run back; what cannot be told soon is left to the next agent."""
        self._stop(Halt.ENDING)
        if self._delivering is not None:
            self._delivering.deadline = trio.current_time() + PARTING_SECONDS

    async def execute(self) -> None:
        """Start the command of a fresh claim, and see it through."""
        self._tell("claim")
        try:
            handle = await self._launch()
        except CannotStart as error:
            self.unavailable = str(error)
            what = f"its command cannot be started: {error}"
            await self._settle(Outcome(kind=OutcomeKind.CANNOT_START, reason=Reason.AGENT_UNAVAILABLE, message=what))
            return
        self._tell("start")
        await self._see_through(handle)

    async def take_up(self) -> None:
        """Take up what an earlier agent left: a command that runs, one that has ended, or an outcome to be told."""
        if self._ticket.outcome is not None:
            await self._output.find_place()
            await self._deliver(self._ticket.outcome)
            return
        found = await self._around.runtime.recover(self._ticket.folder)
        if isinstance(found, Unknown):
            self._tell("", f"nobody can tell whether its command still runs: {found.why}", warning=True)
            return
        await self._output.find_place()
        if isinstance(found, Alive):
            self._tell("adopt")
            await self._see_through(found.handle)
        elif isinstance(found, Ended):
            self._ended_by_itself = True
            await self._settle(self._outcome(found.ending))
        else:
            what = "the agent ended before it could start its command"
            await self._settle(Outcome(kind=OutcomeKind.INTERRUPTED, reason=Reason.NOT_STARTED, message=what))

    # the command

    async def _launch(self) -> Handle:
        taken, files = self.taken, self._ticket.files
        variables = attempt_variables(files, number=taken.number, run_id=taken.run, fence=taken.fence)
        crashpoint("agent.launch")
        return await self._around.runtime.launch(
            Launch(
                run=taken.number,
                run_id=taken.run,
                fence=taken.fence,
                agent=self._around.agent,
                folder=self._ticket.folder,
                cwd=self._around.cwd,
                env={**self._around.environment, **self._around.agent.env, **variables},
            )
        )

    async def _see_through(self, handle: Handle) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._beat)
                nursery.start_soon(self._send_output)
                ending = await self._watch(handle)
                await self._end_tree(handle)
                if ending is None:
                    with trio.move_on_after(1):
                        ending = await handle.wait()
                nursery.cancel_scope.cancel()
        finally:
            handle.close()
        crashpoint("agent.ended")
        await self._settle(self._outcome(ending or Ending(exit_status=None)))

    async def _watch(self, handle: Handle) -> Ending | None:
        """Until the command has ended by itself; None when it is to be stopped."""
        with trio.CancelScope() as self._watching:
            if self._halt is None:
                ending = await handle.wait()
                self._ended_by_itself = True
                return ending
        return None

    def _stop(self, why: Halt) -> None:
        if self._halt is None:
            self._halt = why
        if self._watching is not None:
            self._watching.cancel()

    async def _end_tree(self, handle: Handle) -> None:
        told = False
        while True:
            try:
                await handle.stop(self._around.grace_ms)
            except TreeSurvives as error:
                if not told:
                    self._tell("", f"its processes do not end: {error}", warning=True)
                    told = True
                await trio.sleep(STOP_AGAIN_SECONDS)
            else:
                return

    async def _beat(self) -> None:
        pause = min(LONGEST_BETWEEN_HEARTBEATS_SECONDS, self.taken.heartbeat_seconds)
        await trio.sleep(QUICK_SECONDS)
        while True:
            try:
                beat = await self._around.link.send(
                    calls.heartbeat(self.taken.held, lease_seconds=self._around.lease_seconds)
                )
            except (StaleClaim, NotFound) as error:
                self._tell("stop", error.message)
                self._stop(Halt.STALE)
                return
            except InterlockError as error:
                self._tell("", f"its heartbeat is refused: {error}", warning=True)
            else:
                if not beat.go_on and self._halt is None:
                    self._tell("stop", beat.reason or "")
                    self._stop(Halt.TOLD)
            await trio.sleep(pause)

    async def _send_output(self) -> None:
        while True:
            if not await self._output.send_more():
                await trio.sleep(LOOK_AT_OUTPUT_SECONDS)

    # the outcome

    def _outcome(self, ending: Ending) -> Outcome:
        files = self._ticket.files
        result, fault = load_result(files.result)
        outcome = decide(
            stop=None, exit_status=ending.exit_status, result=result, result_fault=fault, tail=read_tail(files.log)
        )
        if self._halt is Halt.ENDING and not self._ended_by_itself and outcome.kind is not OutcomeKind.COMPLETED:
            what = "the agent was told to end"
            return Outcome(kind=OutcomeKind.INTERRUPTED, reason=Reason.INTERRUPTED, message=what)
        return outcome

    async def _settle(self, outcome: Outcome) -> None:
        if self._halt is Halt.STALE and not self._ended_by_itself:
            # Nobody waits for what was cut off.
            self._ticket.remove()
            return
        try:
            self._ticket.settle(outcome)
        except OSError as error:
            self._tell("", f"its outcome cannot be kept on disk: {error.strerror}", warning=True)
        crashpoint("agent.settled")
        await self._deliver(outcome)

    async def _deliver(self, outcome: Outcome) -> None:
        deadline = PARTING_SECONDS if self._halt is Halt.ENDING else float("inf")
        with trio.move_on_after(deadline) as self._delivering:
            await self._output.send_rest()
            crashpoint("agent.report")
            try:
                run = await report(self._around.link, self.taken.held, outcome)
            except InterlockError as refusal:
                self._tell("", f"{outcome.kind}, but the server takes it no more: {refusal.message}", warning=True)
            else:
                self._tell(_event(run, outcome), outcome.message, ended=True)
            crashpoint("agent.reported")
            self._ticket.remove()
            return
        self._tell("", f"{outcome.kind}; the next agent tells the server, which is away", warning=True)

    def _tell(self, event: str, message: str = "", *, warning: bool = False, ended: bool = False) -> None:
        self._around.tell(
            Happening(
                event=event,
                number=self.taken.number,
                title=self.taken.title,
                fence=self.taken.fence,
                message=message,
                took_seconds=trio.current_time() - self._since if ended else None,
                warning=warning,
            )
        )


def _event(run: RunOut, outcome: Outcome) -> str:
    """The event that the outcome came to."""
    if run.status == "queued" and outcome.kind is OutcomeKind.DEFERRED:
        return "defer"
    if run.status == "queued":
        return "retry" if outcome.kind is OutcomeKind.FAILED else "withdraw"
    return {
        "completed": "complete",
        "failed": "fail",
        "timed_out": "time_out",
        "cancelled": "cancel",
        "blocked": "block",
    }.get(run.status, "release")


def command_environment(environment: Mapping[str, str], **more: str) -> dict[str, str]:
    """The environment of commands: this process's, but for the token, which is the agent's and not theirs."""
    return {**{name: value for name, value in environment.items() if name != "INTERLOCK_TOKEN"}, **more}
