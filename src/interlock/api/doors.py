"""The doors: every path of the API. What a handler takes and gives is in :mod:`interlock.wire`; what it does, in the desk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, delete, get, post, put
from litestar.datastructures import State
from litestar.params import HeaderParameter, JSONBody, PathParameter, QueryParameter
from litestar.response import Stream

from interlock import wire
from interlock.api.page import page
from interlock.domain.puller import Puller
from interlock.domain.states import RunState
from interlock.service.reads import Filter, Stats

Asked = Request[Any, Any, Any]
Limit = Annotated[int, QueryParameter(ge=1, le=1000)]
Wait = Annotated[float, QueryParameter(ge=0, le=60, description="seconds to wait for an offer, if there is none")]
Word = Annotated[str | None, QueryParameter(min_length=1, max_length=200)]
Cursor = Annotated[
    str | None, QueryParameter(pattern=r"^[0-9]{1,17}$", description="the next_cursor of the page before")
]
Words = Annotated[
    list[Annotated[str, QueryParameter(min_length=1, max_length=200)]] | None, QueryParameter(max_items=100)
]
Ref = Annotated[str, PathParameter(min_length=1, max_length=100)]
Type = Annotated[str, PathParameter(min_length=1, max_length=200)]
Key = Annotated[str | None, HeaderParameter(name="Idempotency-Key", min_length=1, max_length=200)]
LOG_PAGE = 1_000_000
PING_SECONDS = 15.0


class Runs(Controller):
    """Runs: listed, submitted, shown."""

    path = "/api/workflow-runs"
    tags = ("runs",)

    @get(summary="Runs, the newest first", operation_id="list_runs")
    async def list_runs(
        self,
        state: State,
        status: Annotated[list[RunState] | None, QueryParameter(max_items=20)] = None,
        workflow_type: Word = None,
        tag: Word = None,
        project: Word = None,
        batch: Word = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> wire.Runs:
        """``next_cursor`` of a page asks for the one behind it."""
        by = Filter(
            states=[str(each) for each in status or ()],
            batch=batch,
            project=project,
            tag=tag,
            type=workflow_type,
            before=None if cursor is None else int(cursor),
            limit=limit,
        )
        found: wire.Runs = await state.gateway.call(state.desk.runs, by)
        return found

    @post(summary="Submit a task, or a list of tasks", operation_id="submit", status_code=201)
    async def submit(
        self, state: State, data: JSONBody[wire.Submission | list[wire.Submission]], key: Key = None
    ) -> wire.Submitted:
        """All are accepted, or none. With an ``Idempotency-Key`` the same request again is answered with the same runs."""
        given = data if isinstance(data, list) else [data]
        done: wire.Submitted = await state.gateway.call(state.desk.submit, given, key)
        return done

    @get("/pending", summary="Offers that an agent may claim", operation_id="pending")
    async def pending(
        self,
        request: Asked,
        state: State,
        agent_session: Word = None,
        agent_id: Word = None,
        role: Word = None,
        types: Words = None,
        limit: Limit = 10,
        wait: Wait = 0,
    ) -> wire.Offers:
        """The most urgent first. With ``wait`` an empty answer comes only after so many seconds."""
        session = agent_session or agent_id or "somebody"
        puller = Puller(holder=session, agent=agent_id, role=role, types=tuple(types or ()))
        seat = state.lobby.enter(puller, claims=False)
        until = asyncio.get_running_loop().time() + wait
        try:
            while True:
                found: wire.Offers = await state.gateway.call(state.desk.offers, puller, limit)
                left = until - asyncio.get_running_loop().time()
                if found.runs or left <= 0 or not await seat.wait(left, request.receive):
                    return found
        finally:
            seat.leave()

    @post("/claim-next", summary="Claim the next offer that fits", operation_id="claim_next", status_code=200)
    async def claim_next(self, request: Asked, state: State, data: JSONBody[wire.NextRequest]) -> wire.Claimed | None:
        """``null`` when there is none. Of many that wait for one offer, each is claimed by one."""
        puller = Puller(holder=data.agent_session, agent=data.agent_id, role=data.role, types=data.types)
        seat = state.lobby.enter(puller, claims=True)
        until = asyncio.get_running_loop().time() + data.wait
        try:
            while True:
                claimed: wire.Claimed | None = await state.gateway.call(state.desk.claim_next, puller, data)
                left = until - asyncio.get_running_loop().time()
                if claimed is not None or left <= 0 or not await seat.wait(left, request.receive):
                    return claimed
        finally:
            seat.leave()

    @get("/dispatcher/stats", summary="Numbers", operation_id="stats")
    async def stats(
        self, state: State, window_seconds: Annotated[int, QueryParameter(ge=1, le=366 * 86_400)] = 86_400
    ) -> Stats:
        """Runs by state now; waits, durations and failures over the last ``window_seconds``. Times are milliseconds."""
        found: Stats = await state.gateway.call(state.desk.stats, window_seconds * 1000)
        return found

    @get("/{ref:str}", summary="A run with its task and attempts", operation_id="get_run")
    async def story(self, state: State, ref: Ref) -> wire.Story:
        """``ref``: number, id, or a beginning of the id that is unique."""
        found: wire.Story = await state.gateway.call(state.desk.story, ref)
        return found

    @get("/{ref:str}/events", summary="What happened to a run", operation_id="run_events")
    async def events(
        self, state: State, ref: Ref, after: Annotated[int, QueryParameter(ge=0, le=2**53)] = 0
    ) -> wire.Events:
        """The oldest first, up to 1,000 behind sequence number ``after``."""
        found: wire.Events = await state.gateway.call(state.desk.events_of, ref, after)
        return found

    @get("/{ref:str}/logs", summary="Output of an attempt", operation_id="run_logs", media_type="text/plain")
    async def logs(
        self,
        state: State,
        ref: Ref,
        fence: Annotated[int | None, QueryParameter(ge=1, le=2**31)] = None,
        offset: Annotated[int, QueryParameter(ge=0, le=2**53)] = 0,
    ) -> Response[bytes]:
        """From byte ``offset`` on; where to go on is in ``X-Next-Offset``. Without ``fence``: of the latest attempt."""
        content, after = await state.gateway.call(state.desk.log, ref, fence, offset, LOG_PAGE)
        headers = {"X-Next-Offset": str(after)}
        return Response(content, media_type="text/plain; charset=utf-8", headers=headers)

    @post("/{ref:str}/answer", summary="Answer the question of a blocked run", operation_id="answer", status_code=200)
    async def answer(self, state: State, ref: Ref, data: JSONBody[wire.AnswerRequest]) -> wire.RunOut:
        """It is queued again, and its next prompt has question and answer."""
        run: wire.RunOut = await state.gateway.call(state.desk.answer, ref, data.text)
        return run

    @post("/{ref:str}/cancel", summary="Cancel a run", operation_id="cancel", status_code=200)
    async def cancel(self, state: State, ref: Ref, data: JSONBody[wire.CancelRequest | None] = None) -> wire.RunOut:
        """At once, or as soon as its agent is gone (``stopping``)."""
        message = (data or wire.CancelRequest()).message
        run: wire.RunOut = await state.gateway.call(state.desk.cancel, ref, message)
        return run


class Claims(Controller):
    """A claim and what is said under it. A claim that is over is refused with ``stale_claim``, and nothing changes."""

    path = "/api/workflow-runs/{ref:str}"
    tags = ("claims",)

    @post("/claim", summary="Claim an offer", operation_id="claim", status_code=200)
    async def claim(self, state: State, ref: Ref, data: JSONBody[wire.ClaimRequest]) -> wire.Claimed:
        """Whoever comes too late is told who has it (409 ``already_claimed``)."""
        done: wire.Claimed = await state.gateway.call(state.desk.claim, ref, data)
        return done

    @post("/start", summary="The agent works", operation_id="start", status_code=200)
    async def start(self, state: State, ref: Ref, data: JSONBody[wire.StartRequest]) -> wire.RunOut:
        """The first heartbeat says so as well."""
        run: wire.RunOut = await state.gateway.call(state.desk.start, ref, data)
        return run

    @post("/heartbeat", summary="It still works; is it to go on?", operation_id="heartbeat", status_code=200)
    async def heartbeat(self, state: State, ref: Ref, data: JSONBody[wire.HeartbeatRequest]) -> wire.HeartbeatOut:
        """Without one the claim lapses at ``lease_expires_at``."""
        beat: wire.HeartbeatOut = await state.gateway.call(state.desk.heartbeat, ref, data)
        return beat

    @post("/complete", summary="Done", operation_id="complete", status_code=200)
    async def complete(self, state: State, ref: Ref, data: JSONBody[wire.CompleteRequest]) -> wire.RunOut:
        """The same call again gets the same answer. A result that comes too late is kept as a note."""
        run: wire.RunOut = await state.gateway.call(state.desk.complete, ref, data)
        return run

    @post("/fail", summary="It failed", operation_id="fail", status_code=200)
    async def fail(self, state: State, ref: Ref, data: JSONBody[wire.FailRequest]) -> wire.RunOut:
        """It is tried again after a wait, while retries are left."""
        run: wire.RunOut = await state.gateway.call(state.desk.fail, ref, data)
        return run

    @post("/release", summary="Given back untouched", operation_id="release", status_code=200)
    async def release(self, state: State, ref: Ref, data: JSONBody[wire.ReleaseRequest]) -> wire.RunOut:
        """Offered again."""
        run: wire.RunOut = await state.gateway.call(state.desk.release, ref, data)
        return run

    @post("/defer", summary="Not now", operation_id="defer", status_code=200)
    async def defer(self, state: State, ref: Ref, data: JSONBody[wire.DeferRequest]) -> wire.RunOut:
        """Queued again, for later."""
        run: wire.RunOut = await state.gateway.call(state.desk.defer, ref, data)
        return run

    @post("/block", summary="A person has to answer first", operation_id="block", status_code=200)
    async def block(self, state: State, ref: Ref, data: JSONBody[wire.BlockRequest]) -> wire.RunOut:
        """The claim is over; the next attempt has the answer."""
        run: wire.RunOut = await state.gateway.call(state.desk.block, ref, data)
        return run

    @post("/log", summary="Output of the agent", operation_id="append_log", status_code=200)
    async def log(self, state: State, ref: Ref, data: JSONBody[wire.LogRequest]) -> wire.LogOut:
        """Appended by byte offset: what is there already is passed over, so that a repeated call is harmless."""
        done: wire.LogOut = await state.gateway.call(state.desk.append, ref, data)
        return done

    @post("/usage", summary="What was used so far", operation_id="report_usage", status_code=204)
    async def usage(self, state: State, ref: Ref, data: JSONBody[wire.UsageRequest]) -> None:
        """Absolutes: a repeated report changes nothing."""
        await state.gateway.call(state.desk.usage, ref, data)


class Templates(Controller):
    """Templates of tasks, for submits that name one. Those of interlock.yaml go before those that are kept here."""

    path = "/api/templates"
    tags = ("templates",)

    @get(summary="All templates", operation_id="list_templates")
    async def templates(self, state: State) -> wire.Templates:
        """By name, with what each asks for."""
        found: wire.Templates = await state.gateway.call(state.desk.templates)
        return found

    @get("/{name:str}", summary="A template", operation_id="get_template")
    async def template(self, state: State, name: Type) -> wire.TemplateOut:
        """With the names that it asks for."""
        found: wire.TemplateOut = await state.gateway.call(state.desk.template, name)
        return found

    @put("/{name:str}", summary="Add or change a template", operation_id="put_template")
    async def put_template(self, state: State, name: Type, data: JSONBody[wire.TemplateIn]) -> wire.TemplateOut:
        """Runs that were made of it stay as they are. One of interlock.yaml is changed there alone (409)."""
        done: wire.TemplateOut = await state.gateway.call(state.desk.put_template, name, data.task)
        return done

    @delete("/{name:str}", summary="Remove a template", operation_id="delete_template")
    async def delete_template(self, state: State, name: Type) -> None:
        """Runs that were made of it stay as they are."""
        await state.gateway.call(state.desk.delete_template, name)


class Operating(Controller):
    """Routes, limits, and the dispatcher as a whole."""

    path = "/api"
    tags = ("operating",)

    @get("/routing", summary="All routes", operation_id="list_routes")
    async def routes(self, state: State) -> wire.Routes:
        """Where workflow types go."""
        found: wire.Routes = await state.gateway.call(state.desk.routes)
        return found

    @get("/routing/{workflow_type:str}", summary="A route", operation_id="get_route")
    async def route(self, state: State, workflow_type: Type) -> wire.RouteOut:
        """Of exactly this type or pattern."""
        found: wire.RouteOut = await state.gateway.call(state.desk.route, workflow_type)
        return found

    @put("/routing/{workflow_type:str}", summary="Add or change a route", operation_id="put_route")
    async def put_route(self, state: State, workflow_type: Type, data: JSONBody[wire.RouteIn]) -> wire.RouteOut:
        """In force at the next decision. ``review.*`` is for every type that begins so; the most specific wins."""
        done: wire.RouteOut = await state.gateway.call(state.desk.put_route, workflow_type, data)
        return done

    @delete("/routing/{workflow_type:str}", summary="Remove a route", operation_id="delete_route")
    async def delete_route(self, state: State, workflow_type: Type) -> None:
        """In force at the next decision."""
        await state.gateway.call(state.desk.delete_route, workflow_type)

    @get("/limits", summary="Limits and their use", operation_id="limits")
    async def limits(self, state: State) -> wire.LimitsOut:
        """Every limit, and every key that has active runs."""
        found: wire.LimitsOut = await state.gateway.call(state.desk.limits)
        return found

    @post("/dispatcher/pause", summary="Dispatch nothing", operation_id="pause", status_code=200)
    async def pause(self, state: State, data: JSONBody[wire.PauseRequest | None] = None) -> wire.Dispatching:
        """Open offers go back to the queue; what runs goes on."""
        message = (data or wire.PauseRequest()).message
        done: wire.Dispatching = await state.gateway.call(state.desk.pause, message)
        return done

    @post("/dispatcher/resume", summary="Dispatch again", operation_id="resume", status_code=200)
    async def resume(self, state: State) -> wire.Dispatching:
        """After a pause."""
        done: wire.Dispatching = await state.gateway.call(state.desk.resume)
        return done

    @post("/dispatcher/drain", summary="Let the daemon end", operation_id="drain", status_code=200)
    async def drain(self, state: State) -> wire.Dispatching:
        """Nothing new starts; it ends when its local agents have."""
        done: wire.Dispatching = await state.gateway.call(state.desk.drain)
        return done

    @get("/events", summary="Every event as it happens (server-sent events)", operation_id="stream_events")
    async def stream(
        self,
        state: State,
        after: Annotated[int | None, QueryParameter(ge=0, le=2**53)] = None,
        last: Annotated[str | None, HeaderParameter(name="Last-Event-ID", pattern=r"^[0-9]{1,15}$")] = None,
    ) -> Stream:
        """From now on; behind ``Last-Event-ID`` (or ``after``) without a gap. A comment every 15 seconds while nothing happens."""
        begin = int(last) if last is not None else after
        if begin is None:
            begin = await state.gateway.call(state.desk.last_seq)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return Stream(_events(state, begin), media_type="text/event-stream", headers=headers)


async def _events(state: State, after: int) -> AsyncIterator[bytes]:
    # The stream begins at once, though nothing may happen for a while.
    yield b":\n\n"
    while not state.gateway.ending:
        found = await state.gateway.call(state.desk.events, after)
        for event in found:
            after = event.seq
            yield b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.event.encode(), msgspec.json.encode(event))
        if not found:
            await state.lobby.event(after, PING_SECONDS)
            yield b":\n\n"


class Health(Controller):
    """For whoever watches the daemon."""

    tags = ("health",)

    @get("/metrics", summary="Numbers for Prometheus", operation_id="metrics", media_type="text/plain")
    async def metrics(self, state: State) -> Response[bytes]:
        """Counters since the daemon was started, and how things stand now."""
        text: bytes = await state.gateway.call(state.gateway.metrics)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @get("/openapi.json", include_in_schema=False)
    async def schema(self, state: State) -> Response[bytes]:
        """The description of this API."""
        return Response(state.gateway.description, media_type="application/json")

    @get("/docs", include_in_schema=False)
    async def docs(self) -> Response[bytes]:
        """The same for people."""
        return page()

    @get("/healthz", summary="That the daemon is there", operation_id="healthz")
    async def health(self, state: State) -> wire.Health:
        """Says nothing of whether it can work."""
        return wire.Health(status="alive", version=state.desk.version)

    @get("/readyz", summary="Whether the daemon can work", operation_id="readyz")
    async def ready(self, state: State) -> wire.Health:
        """503 while it cannot: it is starting or ending, or the store cannot be written."""
        found: wire.Health = await state.gateway.call(state.desk.ready)
        return found
