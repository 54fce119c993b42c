"""The desk: every request of the API as one call on trio's loop, from plain values to what goes over the wire."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

import msgspec
import trio

from interlock import wire
from interlock.api.asking import refusal
from interlock.decide.outcome import Outcome, OutcomeKind
from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.errors import AlreadyClaimed, Conflict, InvalidInput, NotFound, StaleClaim, Unavailable
from interlock.domain.puller import Puller
from interlock.domain.run import Attempt, Claim, Route, Run, Usage
from interlock.domain.states import Reason, RunState
from interlock.domain.task import Task
from interlock.ports.store import Tx
from interlock.prompts import build_prompt, role_text
from interlock.service import Service
from interlock.service.claims import checked, claim_of
from interlock.service.context import find_run
from interlock.service.reads import Filter, Stats
from interlock.service.templating import check, fill, parameters, template_of
from interlock.store.disk import trouble

BY = "api"
LOG_LIMIT = 64 * 1024 * 1024
"""So many bytes a remote attempt may write to its log."""
PAGE_LIMIT = 1000


class Dispatching(Protocol):
    """What the desk asks of the dispatcher of this process."""

    @property
    def draining(self) -> bool:
        """Whether it is ending."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it serves: it has taken up what was left, and the store can be written to."""
        ...

    def drain(self) -> None:
        """Let it end: nothing new starts, what runs is waited for."""
        ...


class Desk:
    """One for a daemon. ``folder``: where the files that the configuration names are looked for."""

    def __init__(self, service: Service, dispatcher: Dispatching, *, data: Path, folder: Path, version: str) -> None:
        self.service = service
        self.dispatcher = dispatcher
        self.version = version
        self._data = data
        self._folder = folder
        self._writing: WeakValueDictionary[tuple[int, int], trio.Lock] = WeakValueDictionary()

    # runs

    async def runs(self, by: Filter) -> wire.Runs:
        """A page of runs, the newest first."""
        found = await self.service.find(msgspec.structs.replace(by, limit=by.limit + 1))
        page = found[: by.limit]
        more = str(page[-1].number) if len(found) > by.limit else None
        return wire.Runs(runs=list(map(wire.run_out, page)), next_cursor=more)

    async def submit(self, given: Sequence[wire.Submission], key: str | None) -> wire.Submitted:
        """Accept tasks, all or none. ``key``: the same submit again with it is answered the same."""
        if not given:
            raise InvalidInput("there is no task in the list", hint="give at least one")
        held = {each.held for each in given}
        if len(held) > 1:
            raise InvalidInput("some tasks of the list are to be held, others not", hint="submit them apart")
        hold = held.pop()
        names = {each.template for each in given if each.template is not None}
        configured = self.service.settings.templates
        templates = self.service.store.peek(
            lambda tx: {name: template_of(tx, configured, name) for name in sorted(names)}
        )
        tasks = _tasks(given, templates)
        if key is None:
            done = await self.service.submit_all(tasks, held=hold, by=BY)
        else:
            digest = hashlib.sha256(msgspec.json.encode([tasks, hold], order="deterministic")).hexdigest()
            done = await self.service.submit_once(tasks, key=key, digest=digest, held=hold, by=BY)
        return wire.Submitted(runs=[wire.run_out(made.run) for made in done], created=[made.created for made in done])

    async def story(self, ref: str) -> wire.Story:
        """A run with all that is known of it."""
        story = await self.service.story(ref)
        return wire.Story(
            run=wire.run_out(story.run),
            task=story.run.task,
            attempts=list(map(wire.attempt_out, story.attempts)),
            needs=[need.number for need in story.needs],
            needed_by=story.dependants,
        )

    async def events_of(self, ref: str, after: int) -> wire.Events:
        """What happened to a run, behind sequence number ``after``."""
        run = await self.service.get(ref)
        found = await self.service.store.read(lambda tx: tx.events_of(run.number, after, PAGE_LIMIT))
        return wire.Events(events=list(map(wire.event_out, found)))

    async def last_seq(self) -> int:
        """Where the event log ends."""
        return self.service.store.peek(lambda tx: tx.last_seq())

    async def events(self, after: int) -> list[wire.EventOut]:
        """A page of the event log."""
        return list(map(wire.event_out, await self.service.events(after, PAGE_LIMIT)))

    async def answer(self, ref: str, text: str) -> wire.RunOut:
        """Answer the question of a blocked run."""
        return wire.run_out(await self.service.answer(ref, text, by=BY))

    async def cancel(self, ref: str, message: str) -> wire.RunOut:
        """Cancel a run. One that was cancelled already stays so."""
        run = await self.service.get(ref)
        if run.state is RunState.CANCELLED:
            return wire.run_out(run)
        return wire.run_out(await self.service.cancel(ref, by=BY, message=message))

    # offers and claims

    async def offers(self, puller: Puller, limit: int) -> wire.Offers:
        """Offers for an agent."""
        found = await self.service.offers(
            holder=puller.holder, agent=puller.agent, types=puller.types, role=puller.role, limit=limit
        )
        return wire.Offers(runs=list(map(wire.run_out, found)))

    async def claim(self, ref: str, asked: wire.ClaimRequest) -> wire.Claimed:
        """Claim a run. Asked again by the same session, or with the same request id: the same claim."""
        try:
            run = await self.service.claim_run(
                ref,
                holder=asked.agent_session,
                agent=asked.agent_id,
                request_id=asked.request_id,
                lease_ms=wire.ms_of(asked.lease_seconds),
                offer=asked.offer,
            )
        except AlreadyClaimed as error:
            if asked.request_id is not None or error.details.get("holder") != asked.agent_session:
                raise
            run = await self.service.get(ref)
        return await self._claimed(run, asked.lease_seconds)

    async def claim_next(self, puller: Puller, asked: wire.NextRequest) -> wire.Claimed | None:
        """Claim the next offer that fits; None when there is none."""
        run = await self.service.claim_next(
            puller, request_id=asked.request_id, lease_ms=wire.ms_of(asked.lease_seconds)
        )
        return None if run is None else await self._claimed(run, asked.lease_seconds)

    async def _claimed(self, run: Run, lease_seconds: float | None) -> wire.Claimed:
        claim = claim_of(run)
        earlier = self.service.store.peek(lambda tx: tx.attempts(run.number)) if run.fence > 1 else []
        try:
            role = role_text(run.task, self.service.settings, self._folder)
        except OSError as error:
            await self.service.release(claim, f"its prompt cannot be made: {error.strerror}")
            raise Unavailable(f"the prompt of run #{run.number} cannot be made: {error.strerror}") from error
        before = [attempt for attempt in earlier if attempt.fence < claim.fence]
        lease = lease_seconds or self.service.settings.leases.remote_ms / 1000
        return wire.Claimed(
            run=wire.run_out(run),
            prompt=build_prompt(run, before, role_text=role),
            agent_session=claim.holder,
            fence=claim.fence,
            lease_expires_at=wire.time_of(claim.lease_expires_ms),
            heartbeat_seconds=lease / 3,
        )

    # under a claim

    async def start(self, ref: str, under: wire.Under) -> wire.RunOut:
        """The agent works."""
        return wire.run_out(await self.service.start(self._claim(ref, under)))

    async def heartbeat(self, ref: str, beat: wire.HeartbeatRequest) -> wire.HeartbeatOut:
        """It still does; whether it is to go on."""
        answer = await self.service.renew(self._claim(ref, beat), wire.ms_of(beat.lease_seconds))
        return wire.HeartbeatOut(
            go_on=answer.go_on, reason=answer.reason, lease_expires_at=wire.time_of(answer.lease_expires_ms)
        )

    async def complete(self, ref: str, said: wire.CompleteRequest) -> wire.RunOut:
        """Done."""
        outcome = Outcome(
            kind=OutcomeKind.COMPLETED,
            reason=Reason.DONE,
            message=said.message,
            result=said.result,
            usage=None if said.usage is None else said.usage.usage(),
        )
        return await self._finish(ref, said, outcome)

    async def fail(self, ref: str, said: wire.FailRequest) -> wire.RunOut:
        """The attempt failed."""
        outcome = Outcome(
            kind=OutcomeKind.FAILED,
            reason=Reason.PERMANENT_FAILURE if said.permanent else Reason.AGENT_FAILED,
            message=said.message,
            permanent=said.permanent,
            result=said.result,
            exit_status=said.exit_status,
            usage=None if said.usage is None else said.usage.usage(),
        )
        return await self._finish(ref, said, outcome)

    async def release(self, ref: str, said: wire.ReleaseRequest) -> wire.RunOut:
        """Given back."""
        outcome = Outcome(kind=OutcomeKind.RETURNED, reason=Reason.GIVEN_BACK, message=said.message)
        return await self._finish(ref, said, outcome)

    async def defer(self, ref: str, said: wire.DeferRequest) -> wire.RunOut:
        """Not now."""
        outcome = Outcome(
            kind=OutcomeKind.DEFERRED,
            reason=Reason.DEFERRED,
            message=said.message,
            delay_ms=wire.ms_of(said.delay_seconds),
        )
        return await self._finish(ref, said, outcome)

    async def block(self, ref: str, said: wire.BlockRequest) -> wire.RunOut:
        """A person has to answer first."""
        outcome = Outcome(
            kind=OutcomeKind.BLOCKED, reason=Reason.HELP_NEEDED, message=said.question, question=said.question
        )
        return await self._finish(ref, said, outcome)

    async def usage(self, ref: str, said: wire.UsageRequest) -> None:
        """What was used so far."""
        usage = Usage(input_tokens=said.input_tokens, output_tokens=said.output_tokens, cost_usd=said.cost_usd)
        await self.service.report_usage(self._claim(ref, said), usage)

    async def _finish(self, ref: str, under: wire.Under, outcome: Outcome) -> wire.RunOut:
        claim = self._claim(ref, under)
        try:
            return wire.run_out(await self.service.finish(claim, outcome))
        except StaleClaim:
            if outcome.kind in (OutcomeKind.COMPLETED, OutcomeKind.FAILED):
                await self.service.keep_late_result(claim, outcome)
            raise

    def _claim(self, ref: str, under: wire.Under) -> Claim:
        # At once: whether it is the live one is looked at under it.
        run = self.service.store.peek(lambda tx: find_run(tx, ref))
        return Claim(run=run.number, run_id=run.id, holder=under.agent_session, fence=under.fence, lease_expires_ms=0)

    # logs

    async def append(self, ref: str, said: wire.LogRequest) -> wire.LogOut:
        """Add output of an attempt, from an offset on: what is there already is passed over, a gap is refused."""
        content = _content(said)
        if said.offset + len(content) > LOG_LIMIT:
            raise Conflict(f"the log of an attempt holds {LOG_LIMIT} bytes at most", hint="leave the rest out")
        claim = self._claim(ref, said)
        attempt = await self.service.write(lambda tx, _: _live(tx, claim))
        path = AttemptFiles(self._data / str(attempt.folder)).log
        lock = self._writing.setdefault((claim.run, claim.fence), trio.Lock())
        async with lock:
            size = await trio.to_thread.run_sync(partial(_append, path, said.offset, content))
        return wire.LogOut(size=size)

    async def log(self, ref: str, fence: int | None, offset: int, limit: int) -> tuple[bytes, int]:
        """Output of an attempt (None: of the latest), and where it goes on."""
        story = await self.service.story(ref)
        attempts = [each for each in story.attempts if fence is None or each.fence == fence]
        if not attempts:
            what = "no attempt yet" if fence is None else f"no attempt {fence}"
            raise NotFound(f"run #{story.run.number} has {what}", hint="ask again when it was started")
        folder = attempts[-1].folder
        if folder is None:
            return b"", offset
        content = await trio.to_thread.run_sync(partial(_read, AttemptFiles(self._data / folder).log, offset, limit))
        return content, offset + len(content)

    # routes, limits, dispatcher

    async def routes(self) -> wire.Routes:
        """All routes."""
        found = self.service.store.peek(lambda tx: tx.routes())
        return wire.Routes(routes=list(map(wire.route_out, found.values())))

    async def route(self, workflow_type: str) -> wire.RouteOut:
        """One route."""
        found = self.service.store.peek(lambda tx: tx.routes())
        if workflow_type not in found:
            raise NotFound(f"there is no route for '{workflow_type}'", hint=f"routes: {', '.join(found) or 'none'}")
        return wire.route_out(found[workflow_type])

    async def put_route(self, workflow_type: str, said: wire.RouteIn) -> wire.RouteOut:
        """Add or change a route; in force at the next decision."""
        route = Route(
            workflow_type=workflow_type,
            agent_id=said.agent_id,
            priority=said.priority,
            max_concurrent=said.max_concurrent,
            timeout_minutes=said.timeout_minutes,
            stall_minutes=said.stall_minutes,
        )
        return wire.route_out(await self.service.put_route(route))

    async def delete_route(self, workflow_type: str) -> None:
        """Remove a route."""
        await self.service.delete_route(workflow_type)

    async def templates(self) -> wire.Templates:
        """All templates."""
        return wire.Templates(templates=list(map(wire.template_out, await self.service.templates())))

    async def template(self, name: str) -> wire.TemplateOut:
        """One template."""
        return wire.template_out(await self.service.template(name))

    async def put_template(self, name: str, task: Mapping[str, Any]) -> wire.TemplateOut:
        """Add or change a template. What needs no parameters has to be right now."""
        check(name, task)
        try:
            msgspec.convert({key: each for key, each in task.items() if not parameters(each)}, wire.Submission)
        except msgspec.ValidationError as error:
            fault = refusal(str(error), wire.Submission)
            raise InvalidInput(f"template '{name}': {fault.message}", hint=fault.hint, details=fault.details) from None
        return wire.template_out(await self.service.put_template(name, task))

    async def delete_template(self, name: str) -> None:
        """Remove a template."""
        await self.service.delete_template(name)

    async def limits(self) -> wire.LimitsOut:
        """Limits and their use."""
        return wire.LimitsOut(
            limits=[
                wire.LimitOut(key=use.key, used=use.used, cap=use.cap, runs=[number for number, _ in use.holders])
                for use in await self.service.limits()
            ]
        )

    async def stats(self, window_ms: int) -> Stats:
        """Numbers over the last ``window_ms``."""
        return await self.service.stats(window_ms)

    async def pause(self, message: str) -> wire.Dispatching:
        """Dispatch nothing until resumed."""
        pause = await self.service.pause(message=message, by=BY)
        return wire.Dispatching(paused=True, draining=self.dispatcher.draining, message=pause.message)

    async def resume(self) -> wire.Dispatching:
        """Dispatch again."""
        await self.service.resume()
        return wire.Dispatching(paused=False, draining=self.dispatcher.draining, message=None)

    async def drain(self) -> wire.Dispatching:
        """Let the daemon end: nothing new starts, what runs is waited for."""
        self.dispatcher.drain()
        paused = self.service.outlook().paused
        return wire.Dispatching(paused=paused, draining=True, message=None)

    async def ready(self) -> wire.Health:
        """Raises Unavailable while this daemon cannot serve."""
        if not self.dispatcher.ready:
            raise Unavailable("the dispatcher is not serving", hint="`interlock ps` says what it waits for")
        if (what := trouble(self._data)) is not None:
            raise Unavailable(what, hint="Interlock goes on by itself when that is mended")
        return wire.Health(status="ready", version=self.version)


def _tasks(given: Sequence[wire.Submission], templates: Mapping[str, Mapping[str, Any]]) -> list[Task]:
    tasks = []
    for at, each in enumerate(given):
        place = f"task {at + 1} of {len(given)}: " if len(given) > 1 else ""
        if each.title is None and each.template is None:
            raise InvalidInput(f"{place}it has no title", hint="give it one, or name a template")
        if each.params and each.template is None:
            raise InvalidInput(f"{place}params are for a template", hint="name the template, or leave params out")
        tasks.append(_filled(each, templates).task())
    return tasks


def _filled(each: wire.Submission, templates: Mapping[str, Mapping[str, Any]]) -> wire.Submission:
    if each.template is None:
        return each
    task = fill(each.template, templates[each.template], each.params)
    beside = {
        name: value
        for name in each.__struct_fields__
        if name not in ("template", "params", "held") and (value := getattr(each, name)) is not None
    }
    try:
        made = msgspec.convert({**task, **msgspec.to_builtins(beside)}, wire.Submission)
    except msgspec.ValidationError as error:
        fault = refusal(str(error), wire.Submission)
        what = f"template '{each.template}' makes no task: {fault.message}"
        raise type(fault)(what, hint=fault.hint, details=fault.details) from None
    if made.title is None:
        raise InvalidInput(
            f"template '{each.template}' makes no task: it has no title", hint="give it one: `interlock template show`"
        )
    return made


def _content(said: wire.LogRequest) -> bytes:
    if (said.text is None) == (said.base64 is None):
        raise InvalidInput("a log entry has either text or base64", hint="give one of the two")
    if said.text is not None:
        return said.text.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(said.base64 or "", validate=True)
    except binascii.Error as error:
        raise InvalidInput(f"base64 cannot be decoded: {error}", hint="encode the bytes by RFC 4648") from error


def _live(tx: Tx, claim: Claim) -> Attempt:
    return checked(tx, claim.run, claim.holder, claim.fence)[1]


def _append(path: Path, offset: int, content: bytes) -> int:
    """Write what is new of ``content`` at ``offset``: the size of the file then. Raises Conflict where there would be a gap."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(fd).st_size
        if offset > size:
            raise Conflict(
                f"the log has {size} bytes, and this begins at {offset}",
                hint="send it from there on",
                details={"size": size},
            )
        rest = memoryview(content)[size - offset :]
        while rest:
            rest = rest[os.write(fd, rest) :]
        return max(size, offset + len(content))
    except OSError as error:
        raise Unavailable(f"the log cannot be written: {error.strerror}", hint="try again later") from error
    finally:
        os.close(fd)


def _read(path: Path, offset: int, limit: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, limit, offset)
    finally:
        os.close(fd)
