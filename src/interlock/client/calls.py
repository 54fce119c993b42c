"""Every call of the API as a function: from arguments to a :class:`Request`, which says what is sent and how the answer is read.

No I/O here. The clients are made of these functions, and send what they return. A request carries what makes it safe to be
sent again (its request id, its Idempotency-Key, offsets, the fence of a claim): sending the same value twice does it once.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import quote
from uuid import uuid4

import msgspec

from interlock import wire

T = TypeVar("T")
RUNS = "/api/workflow-runs"
Ref = str | int | wire.RunOut
"""A run: its number, id, the beginning of an id, or itself."""


class Request(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One call. ``wait``: seconds that the server may take before it answers. ``repeatable``: False when it may be sent again
    only as long as it is certain that the server has not had it.
    """

    method: str
    path: str
    read: Callable[[bytes, Mapping[str, str]], T]
    params: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    wait: float = 0
    repeatable: bool = True


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A claim, as far as it has to be told with all that is said under it."""

    run: str
    agent_session: str
    fence: int


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of an attempt's output. ``next_offset``: where to go on."""

    content: bytes
    next_offset: int


Claim = Held | wire.Claimed


def held(claim: Claim) -> Held:
    """What is told of a claim."""
    if isinstance(claim, Held):
        return claim
    return Held(run=claim.run.id, agent_session=claim.agent_session, fence=claim.fence)


def new_id() -> str:
    """A name that nobody else has."""
    return uuid4().hex


# runs


def list_runs(
    *,
    status: Iterable[str] = (),
    workflow_type: str | None = None,
    tag: str | None = None,
    project: str | None = None,
    batch: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Request[wire.Runs]:
    """A page of runs, the newest first. ``cursor``: the ``next_cursor`` of the page before."""
    params = _params(
        status=status,
        workflow_type=workflow_type,
        tag=tag,
        project=project,
        batch=batch,
        limit=limit,
        cursor=cursor,
    )
    return Request(method="GET", path=RUNS, params=params, read=_runs)


def submit(
    tasks: wire.Submission | Sequence[wire.Submission], *, idempotency_key: str | None = None
) -> Request[wire.Submitted]:
    """Submit a task or several, all or none. The key is made here if none is given; with the same one they are accepted once."""
    key = ("Idempotency-Key", idempotency_key or new_id())
    return Request(method="POST", path=RUNS, body=msgspec.json.encode(tasks), headers=(key,), read=_submitted)


def get_run(run: Ref) -> Request[wire.Story]:
    """A run with its task and attempts."""
    return Request(method="GET", path=_path(run), read=_story)


def run_events(run: Ref, *, after: int = 0) -> Request[wire.Events]:
    """What happened to a run behind sequence number ``after``: up to 1,000 events, the oldest first."""
    return Request(method="GET", path=_path(run, "events"), params=_params(after=after), read=_events)


def run_logs(run: Ref, *, fence: int | None = None, offset: int = 0) -> Request[Log]:
    """Output of an attempt (without ``fence``: of the latest) from byte ``offset`` on, about a megabyte at a time."""
    return Request(method="GET", path=_path(run, "logs"), params=_params(fence=fence, offset=offset), read=_log)


def answer(run: Ref, text: str) -> Request[wire.RunOut]:
    """Answer the question of a blocked run."""
    # Sent twice it could answer the next question.
    return _post(_path(run, "answer"), wire.AnswerRequest(text=text), _run, repeatable=False)


def cancel(run: Ref, message: str = "cancelled over the API") -> Request[wire.RunOut]:
    """Cancel a run: at once, or as soon as its agent is gone."""
    return _post(_path(run, "cancel"), wire.CancelRequest(message=message), _run)


# offers and claims


def pending(
    *,
    agent_session: str | None = None,
    agent_id: str | None = None,
    role: str | None = None,
    types: Iterable[str] = (),
    limit: int = 10,
    wait: float = 0,
) -> Request[wire.Offers]:
    """Offers that an agent may claim. ``wait``: seconds to wait for one, at most 60."""
    params = _params(
        agent_session=agent_session, agent_id=agent_id, role=role, types=types, limit=limit, wait=wait or None
    )
    return Request(method="GET", path=f"{RUNS}/pending", params=params, read=_offers, wait=wait)


def claim(
    run: Ref,
    agent_session: str,
    *,
    agent_id: str | None = None,
    lease_seconds: float | None = None,
    offer: int | None = None,
    request_id: str | None = None,
) -> Request[wire.Claimed]:
    """Claim an offer. Raises AlreadyClaimed when somebody was faster."""
    asked = wire.ClaimRequest(
        agent_session=agent_session,
        agent_id=agent_id,
        lease_seconds=lease_seconds,
        offer=offer,
        request_id=request_id or new_id(),
    )
    return _post(_path(run, "claim"), asked, _claimed)


def claim_next(
    agent_session: str,
    *,
    agent_id: str | None = None,
    role: str | None = None,
    types: Iterable[str] = (),
    lease_seconds: float | None = None,
    wait: float = 0,
    request_id: str | None = None,
) -> Request[wire.Claimed | None]:
    """Claim the next offer that fits; None when there is none within ``wait`` seconds (at most 60)."""
    asked = wire.NextRequest(
        agent_session=agent_session,
        agent_id=agent_id,
        role=role,
        types=tuple(types),
        lease_seconds=lease_seconds,
        wait=wait,
        request_id=request_id or new_id(),
    )
    return _post(f"{RUNS}/claim-next", asked, _perhaps_claimed, wait=wait)


# under a claim: StaleClaim is raised once it is over, and nothing changes


def start(claim: Claim) -> Request[wire.RunOut]:
    """The agent works. The first heartbeat says so, too."""
    return _under(claim, "start", wire.StartRequest, _run)


def heartbeat(claim: Claim, *, lease_seconds: float | None = None) -> Request[wire.HeartbeatOut]:
    """It still does. ``go_on`` False: stop, and end the claim."""
    return _under(claim, "heartbeat", wire.HeartbeatRequest, _beat, lease_seconds=lease_seconds)


def complete(
    claim: Claim, *, result: Any = None, message: str = "done", usage: wire.UsageIn | None = None
) -> Request[wire.RunOut]:
    """Done. ``result``: anything that JSON can say."""
    return _under(claim, "complete", wire.CompleteRequest, _run, result=result, message=message, usage=usage)


def fail(
    claim: Claim,
    message: str,
    *,
    permanent: bool = False,
    result: Any = None,
    exit_status: int | None = None,
    usage: wire.UsageIn | None = None,
) -> Request[wire.RunOut]:
    """It failed: it is tried again while retries are left, unless ``permanent``."""
    return _under(
        claim,
        "fail",
        wire.FailRequest,
        _run,
        message=message,
        permanent=permanent,
        result=result,
        exit_status=exit_status,
        usage=usage,
    )


def release(claim: Claim, message: str = "given back") -> Request[wire.RunOut]:
    """Given back untouched: offered again."""
    return _under(claim, "release", wire.ReleaseRequest, _run, message=message)


def defer(claim: Claim, *, delay_seconds: float | None = None, message: str = "deferred") -> Request[wire.RunOut]:
    """Not now: queued again, for later."""
    return _under(claim, "defer", wire.DeferRequest, _run, delay_seconds=delay_seconds, message=message)


def block(claim: Claim, question: str) -> Request[wire.RunOut]:
    """A person has to answer first; the prompt of the next attempt has the answer."""
    return _under(claim, "block", wire.BlockRequest, _run, question=question)


def append_log(claim: Claim, offset: int, content: bytes) -> Request[wire.LogOut]:
    """Output from byte ``offset`` on, up to 1 MB. What is there already is passed over; a gap is a Conflict, whose details say
    the ``size`` from where to go on.
    """
    said = base64.b64encode(content).decode("ascii")
    return _under(claim, "log", wire.LogRequest, _log_size, offset=offset, base64=said)


def report_usage(claim: Claim, usage: wire.UsageIn) -> Request[None]:
    """What the attempt used so far, all in all."""
    return _under(claim, "usage", wire.UsageRequest, _nothing, **msgspec.structs.asdict(usage))


# operating


def stats(*, window_seconds: int = 86_400) -> Request[dict[str, Any]]:
    """Numbers: runs by state now; waits, durations (milliseconds) and failures over the window."""
    return Request(
        method="GET",
        path=f"{RUNS}/dispatcher/stats",
        params=_params(window_seconds=window_seconds),
        read=_object,
    )


def list_routes() -> Request[wire.Routes]:
    """All routes."""
    return Request(method="GET", path="/api/routing", read=_routes)


def get_route(workflow_type: str) -> Request[wire.RouteOut]:
    """The route of exactly this type or pattern."""
    return Request(method="GET", path=_route_path(workflow_type), read=_route)


def put_route(workflow_type: str, route: wire.RouteIn) -> Request[wire.RouteOut]:
    """Add or change a route; in force at the next decision."""
    return Request(method="PUT", path=_route_path(workflow_type), body=msgspec.json.encode(route), read=_route)


def delete_route(workflow_type: str) -> Request[None]:
    """Remove a route."""
    # Sent twice it would not be found.
    return Request(method="DELETE", path=_route_path(workflow_type), read=_nothing, repeatable=False)


def list_templates() -> Request[wire.Templates]:
    """All templates of tasks."""
    return Request(method="GET", path="/api/templates", read=_templates)


def get_template(name: str) -> Request[wire.TemplateOut]:
    """A template, with the names that it asks for."""
    return Request(method="GET", path=_template_path(name), read=_template)


def put_template(name: str, task: Mapping[str, Any]) -> Request[wire.TemplateOut]:
    """Add or change a template: a task with ``${name}`` in its texts."""
    body = msgspec.json.encode(wire.TemplateIn(task=dict(task)))
    return Request(method="PUT", path=_template_path(name), body=body, read=_template)


def delete_template(name: str) -> Request[None]:
    """Remove a template."""
    # Sent twice it would not be found.
    return Request(method="DELETE", path=_template_path(name), read=_nothing, repeatable=False)


def limits() -> Request[wire.LimitsOut]:
    """Every limit, and every key that has active runs."""
    return Request(method="GET", path="/api/limits", read=_limits)


def pause(message: str = "") -> Request[wire.Dispatching]:
    """Dispatch nothing; what runs goes on."""
    return _post("/api/dispatcher/pause", wire.PauseRequest(message=message), _dispatching)


def resume() -> Request[wire.Dispatching]:
    """Dispatch again."""
    return Request(method="POST", path="/api/dispatcher/resume", read=_dispatching)


def drain() -> Request[wire.Dispatching]:
    """Let the daemon end: nothing new starts, and it ends when its local agents have."""
    return Request(method="POST", path="/api/dispatcher/drain", read=_dispatching)


def health() -> Request[wire.Health]:
    """That the daemon is there."""
    return Request(method="GET", path="/healthz", read=_health)


def ready() -> Request[wire.Health]:
    """That the daemon can work; Unavailable while it cannot."""
    return Request(method="GET", path="/readyz", read=_health)


# how requests are made


def _path(run: Ref, what: str | None = None) -> str:
    ref = run.id if isinstance(run, wire.RunOut) else str(run)
    return f"{RUNS}/{quote(ref, safe='')}" + (f"/{what}" if what else "")


def _route_path(workflow_type: str) -> str:
    return f"/api/routing/{quote(workflow_type, safe='')}"


def _template_path(name: str) -> str:
    return f"/api/templates/{quote(name, safe='')}"


def _params(**given: Any) -> tuple[tuple[str, str], ...]:
    params: list[tuple[str, str]] = []
    for name, value in given.items():
        if isinstance(value, str | int | float):
            params.append((name, str(value)))
        elif value is not None:
            params += [(name, str(each)) for each in value]
    return tuple(params)


def _post(
    path: str,
    body: msgspec.Struct,
    read: Callable[[bytes, Mapping[str, str]], T],
    *,
    wait: float = 0,
    repeatable: bool = True,
) -> Request[T]:
    return Request(
        method="POST", path=path, body=msgspec.json.encode(body), read=read, wait=wait, repeatable=repeatable
    )


def _under(
    claim: Claim,
    what: str,
    shape: Callable[..., msgspec.Struct],
    read: Callable[[bytes, Mapping[str, str]], T],
    **said: Any,
) -> Request[T]:
    under = held(claim)
    return _post(_path(under.run, what), shape(agent_session=under.agent_session, fence=under.fence, **said), read)


# how answers are read


def _json(shape: type[T]) -> Callable[[bytes, Mapping[str, str]], T]:
    decoder = msgspec.json.Decoder(shape)
    return lambda body, _: decoder.decode(body)


_run = _json(wire.RunOut)
_runs = _json(wire.Runs)
_submitted = _json(wire.Submitted)
_story = _json(wire.Story)
_events = _json(wire.Events)
_offers = _json(wire.Offers)
_claimed = _json(wire.Claimed)
_beat = _json(wire.HeartbeatOut)
_log_size = _json(wire.LogOut)
_routes = _json(wire.Routes)
_route = _json(wire.RouteOut)
_templates = _json(wire.Templates)
_template = _json(wire.TemplateOut)
_limits = _json(wire.LimitsOut)
_dispatching = _json(wire.Dispatching)
_health = _json(wire.Health)
_object = _json(dict[str, Any])


def _perhaps_claimed(body: bytes, headers: Mapping[str, str]) -> wire.Claimed | None:
    return None if not body or body == b"null" else _claimed(body, headers)


def _log(body: bytes, headers: Mapping[str, str]) -> Log:
    return Log(content=body, next_offset=int(headers["x-next-offset"]))


def _nothing(_body: bytes, _headers: Mapping[str, str]) -> None:
    return None
