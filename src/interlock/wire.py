"""What goes over the wire, as values: requests (unknown fields are refused) and answers. Times are RFC 3339 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from interlock.domain.run import Attempt, Event, Route, Run, Usage
from interlock.domain.settings import LONGEST_LEASE_MS
from interlock.domain.task import PRIORITY_LIMIT, Task, TaskContext
from interlock.domain.template import TaskTemplate

_CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
LINE = rf"^[^{_CONTROL}]*[^\s{_CONTROL}][^{_CONTROL}]*$(?!\n)"
"""One line, not blank."""
NAME = rf"^[^\s{_CONTROL}](?:[^{_CONTROL}]*[^\s{_CONTROL}])?$(?!\n)"
"""The same without blanks around it."""
TEXT = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]*$"
"""Any number of lines; tabs, and no other control characters."""
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=NAME)]
Line = Annotated[str, Meta(min_length=1, max_length=1_000, pattern=LINE)]
Text = Annotated[str, Meta(max_length=1_000_000, pattern=TEXT)]
Words = Annotated[str, Meta(max_length=1_000_000)]
"""What an agent has to say, as it comes: an end is not refused for a colour code in its message."""
Names = Annotated[tuple[Name, ...], Meta(max_length=100)]
Seconds = Annotated[float, Meta(gt=0, le=10 * 366 * 86_400)]
LeaseSeconds = Annotated[float, Meta(ge=0.001, le=LONGEST_LEASE_MS // 1000)]
Fence = Annotated[int, Meta(ge=1, le=2**31)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Priority = Annotated[int, Meta(ge=-PRIORITY_LIMIT, le=PRIORITY_LIMIT)]
Time = Annotated[datetime, Meta(tz=True)]


def time_of(ms: int | None) -> datetime | None:
    """Unix milliseconds as a time in UTC."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def ms_of(seconds: float | None) -> int | None:
    """Seconds as whole milliseconds, at least one."""
    return None if seconds is None else max(1, round(seconds * 1000))


# requests


class ContextIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent needs to know beside the title."""

    description: Text | None = None
    files: Annotated[tuple[Line, ...], Meta(max_length=1_000)] = ()
    related: Annotated[tuple[Line, ...], Meta(max_length=1_000)] = ()
    criteria: Annotated[tuple[Text, ...], Meta(max_length=1_000)] = ()
    labels: Names = ()
    source_url: Line | None = None
    extra: dict[str, Any] = {}


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task to be run: by itself, or from a ``template``, of which any field given here beside it takes the place.

    ``id`` is the author's own name for the task; ``needs`` lists such ids of the same request, or ids of runs. ``unique``: at
    most one unfinished run has the same key.
    """

    title: Line | None = None
    template: Name | None = None
    params: dict[str, str | int | float | bool] = {}
    id: Name | None = None
    content: Text | None = None
    context: ContextIn | None = None
    priority: Priority | None = None
    tags: Names | None = None
    project: Name | None = None
    tracker: Name | None = None
    role: Name | None = None
    workflow_type: Name | None = None
    agent: Name | None = None
    needs: Annotated[tuple[Name, ...], Meta(max_length=10_000)] | None = None
    timeout_seconds: Seconds | None = None
    stall_seconds: Seconds | None = None
    not_before: Time | None = None
    unique: Name | None = None
    metadata: dict[str, Any] | None = None
    held: bool = False

    def task(self) -> Task:
        """As the service knows it."""
        context = self.context or ContextIn()
        return Task(
            title=self.title or "",
            id=self.id,
            content=self.content or "",
            context=TaskContext(
                description=context.description,
                files=context.files,
                related=context.related,
                criteria=context.criteria,
                labels=context.labels,
                source_url=context.source_url,
                extra=context.extra,
            ),
            priority=self.priority or 0,
            tags=self.tags or (),
            project=self.project,
            tracker=self.tracker,
            role=self.role,
            type=self.workflow_type,
            agent=self.agent,
            needs=self.needs or (),
            timeout_ms=ms_of(self.timeout_seconds),
            stall_ms=ms_of(self.stall_seconds),
            not_before_ms=None if self.not_before is None else max(0, round(self.not_before.timestamp() * 1000)),
            unique=self.unique,
            metadata=self.metadata or {},
        )


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Claim this run. ``agent_session``: the name that the claim is under. ``request_id``: the same one again gets the same claim.

    ``offer``: the ``dispatch_count`` of the offer that is meant.
    """

    agent_session: Name
    agent_id: Name | None = None
    lease_seconds: LeaseSeconds | None = None
    request_id: Name | None = None
    offer: Count | None = None


class NextRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Claim the next offer that fits. ``wait``: seconds to wait, if there is none. ``types`` may hold patterns (``review.*``)."""

    agent_session: Name
    agent_id: Name | None = None
    role: Name | None = None
    types: Names = ()
    lease_seconds: LeaseSeconds | None = None
    request_id: Name | None = None
    wait: Annotated[float, Meta(ge=0, le=60)] = 0


class Under(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Under a claim: whose it is, and its fence."""

    agent_session: Name
    fence: Fence


class StartRequest(Under, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent works."""


class HeartbeatRequest(Under, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """It still does. ``lease_seconds``: for so long without another heartbeat."""

    lease_seconds: LeaseSeconds | None = None


class UsageIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the attempt used so far, all in all."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cost_usd: Annotated[float, Meta(ge=0, le=1e9)] | None = None

    def usage(self) -> Usage:
        """As the service knows it."""
        return Usage(input_tokens=self.input_tokens, output_tokens=self.output_tokens, cost_usd=self.cost_usd)


class CompleteRequest(Under, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Done."""

    result: Any = None
    message: Words = "done"
    usage: UsageIn | None = None


class FailRequest(Under, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """It failed. It is tried again while retries are left, unless ``permanent``."""

    message: Words
    permanent: bool = False
    result: Any = None
    exit_status: Annotated[int, Meta(ge=0, le=255)] | None = None
    usage: UsageIn | None = None


class ReleaseRequest(Under, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Given back untouched."""

    message: Words = "given back"


class DeferRequest(Under, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Not now: again in so many seconds."""

    message: Words = "deferred"
    delay_seconds: Seconds | None = None


class BlockRequest(Under, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person has to answer first."""

    question: Annotated[str, Meta(min_length=1, max_length=100_000)]


class UsageRequest(Under, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the attempt used so far, all in all."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cost_usd: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class LogRequest(Under, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Output of the agent, from byte ``offset`` of its log on. ``text``, or ``base64`` for what is no text."""

    offset: Count
    text: Annotated[str, Meta(max_length=1_000_000)] | None = None
    base64: Annotated[str, Meta(max_length=1_400_000)] | None = None


class AnswerRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to the question of a blocked run."""

    text: Annotated[str, Meta(min_length=1, max_length=100_000, pattern=TEXT)]


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why it is cancelled."""

    message: Line = "cancelled over the API"


class RouteIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where runs of a workflow type go. ``priority`` is added to the task's. None: not limited, or as configured."""

    agent_id: Name
    priority: Priority = 0
    max_concurrent: Annotated[int, Meta(ge=0, le=1_000_000)] | None = 1
    timeout_minutes: Annotated[int, Meta(ge=1, le=5_000_000)] | None = 60
    stall_minutes: Annotated[int, Meta(ge=1, le=5_000_000)] | None = None


class TemplateIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task with ``${name}`` in its texts, where a submit's ``params`` go. Its fields are those of a submit."""

    task: dict[str, Any]


class PauseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why nothing is to be dispatched."""

    message: Annotated[str, Meta(max_length=1_000, pattern=TEXT)] = ""


# answers


class RunOut(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is."""

    number: int
    id: str
    status: str
    title: str
    workflow_type: str | None
    project: str | None
    tracker: str | None
    role: str | None
    tags: tuple[str, ...]
    batch: str | None
    priority: int
    held: bool
    stopping: bool
    agent_id: str | None
    agent_session: str | None
    fence: int
    lease_expires_at: datetime | None
    dispatch_count: int
    dispatched_at: datetime | None
    not_before: datetime | None
    question: str | None
    answer: str | None
    reason: str | None
    message: str | None
    result: Any
    created_at: datetime | None
    updated_at: datetime | None
    ended_at: datetime | None


def run_out(run: Run) -> RunOut:
    """A run for the wire."""
    task = run.task
    return RunOut(
        number=run.number,
        id=run.id,
        status=str(run.state),
        title=task.title,
        workflow_type=task.type,
        project=task.project,
        tracker=task.tracker,
        role=task.role,
        tags=task.tags,
        batch=run.batch,
        priority=run.priority,
        held=run.held,
        stopping=run.stop is not None,
        agent_id=run.agent,
        agent_session=run.holder,
        fence=run.fence,
        lease_expires_at=time_of(run.lease_expires_ms),
        dispatch_count=run.dispatch_count,
        dispatched_at=time_of(run.offered_ms),
        not_before=time_of(run.not_before_ms),
        question=run.question,
        answer=run.answer,
        reason=run.reason,
        message=run.message,
        result=run.result,
        created_at=time_of(run.created_ms),
        updated_at=time_of(run.updated_ms),
        ended_at=time_of(run.ended_ms),
    )


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """A page of runs; ``next_cursor`` asks for the next one, None when this is the last."""

    runs: list[RunOut]
    next_cursor: str | None


class Offers(msgspec.Struct, frozen=True, kw_only=True):
    """Offers, the most urgent first."""

    runs: list[RunOut]


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """Runs as they were accepted, in the order of the request. ``created``: whether each is new."""

    runs: list[RunOut]
    created: list[bool]


class AttemptOut(msgspec.Struct, frozen=True, kw_only=True):
    """One try."""

    fence: int
    status: str
    agent_id: str | None
    agent_session: str
    claimed_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    reason: str | None
    message: str | None
    exit_status: int | None
    usage: Usage | None
    result: Any


def attempt_out(attempt: Attempt) -> AttemptOut:
    """An attempt for the wire."""
    return AttemptOut(
        fence=attempt.fence,
        status=str(attempt.state),
        agent_id=attempt.agent,
        agent_session=attempt.holder,
        claimed_at=time_of(attempt.claimed_ms),
        started_at=time_of(attempt.started_ms),
        ended_at=time_of(attempt.ended_ms),
        reason=attempt.reason,
        message=attempt.message,
        exit_status=attempt.exit_status,
        usage=attempt.usage,
        result=attempt.result,
    )


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """A run, its task as it was given, its attempts, and the numbers of runs that it needs and that need it."""

    run: RunOut
    task: Task
    attempts: list[AttemptOut]
    needs: list[int]
    needed_by: list[int]


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A claim. Everything that is said under it says its ``agent_session`` and ``fence``."""

    run: RunOut
    prompt: str
    agent_session: str
    fence: int
    lease_expires_at: datetime | None
    heartbeat_seconds: float


class HeartbeatOut(msgspec.Struct, frozen=True, kw_only=True, rename={"go_on": "continue"}):
    """Whether to go on (``continue``). When not: stop, and say so by ending the claim."""

    go_on: bool
    reason: str | None
    lease_expires_at: datetime | None


class EventOut(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the event log; ``seq`` grows."""

    seq: int
    run: int
    event: str
    from_status: str | None
    to_status: str | None
    at: datetime | None
    by: str
    fence: int | None
    reason: str | None
    message: str | None
    data: dict[str, Any] | None


def event_out(event: Event) -> EventOut:
    """An event for the wire."""
    return EventOut(
        seq=event.seq,
        run=event.run,
        event=event.event,
        from_status=event.from_state,
        to_status=event.to_state,
        at=time_of(event.at_ms),
        by=event.by,
        fence=event.fence,
        reason=event.reason,
        message=event.message,
        data=event.data,
    )


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a run, the oldest first."""

    events: list[EventOut]


class LogOut(msgspec.Struct, frozen=True, kw_only=True):
    """How many bytes the log of the attempt has now: the next ``offset``."""

    size: int


class RouteOut(msgspec.Struct, frozen=True, kw_only=True):
    """Where runs of a workflow type go."""

    workflow_type: str
    agent_id: str
    priority: int
    max_concurrent: int | None
    timeout_minutes: int | None
    stall_minutes: int | None
    created_at: datetime | None


def route_out(route: Route) -> RouteOut:
    """A route for the wire."""
    return RouteOut(
        workflow_type=route.workflow_type,
        agent_id=route.agent_id,
        priority=route.priority,
        max_concurrent=route.max_concurrent,
        timeout_minutes=route.timeout_minutes,
        stall_minutes=route.stall_minutes,
        created_at=time_of(route.created_at),
    )


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """All routes."""

    routes: list[RouteOut]


class TemplateOut(msgspec.Struct, frozen=True, kw_only=True):
    """A template of tasks; ``parameters``: what it asks for. ``configured``: by interlock.yaml, where alone it is changed."""

    name: str
    task: dict[str, Any]
    parameters: list[str]
    configured: bool


def template_out(known: TaskTemplate) -> TemplateOut:
    """A template for the wire."""
    return TemplateOut(name=known.name, task=known.task, parameters=known.parameters, configured=known.configured)


class Templates(msgspec.Struct, frozen=True, kw_only=True):
    """All templates."""

    templates: list[TemplateOut]


class LimitOut(msgspec.Struct, frozen=True, kw_only=True):
    """A limit, or a key that has runs: how many are active, how many may be (None: not limited), and some of them."""

    key: str
    used: int
    cap: int | None
    runs: list[int]


class LimitsOut(msgspec.Struct, frozen=True, kw_only=True):
    """Every limit, and every key that has active runs."""

    limits: list[LimitOut]


class Dispatching(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the dispatcher dispatches."""

    paused: bool
    draining: bool
    message: str | None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """That somebody is there."""

    status: str
    version: str


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, where, and what to do."""

    code: str
    message: str
    hint: str | None
    details: dict[str, Any]


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """Every refusal looks like this."""

    error: Fault
