"""New runs: submit, retry, and the reconciliation of a batch with its backlog."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from interlock.decide.lanes import lane_key
from interlock.decide.readiness import derived
from interlock.decide.routing import route_for
from interlock.domain.errors import Conflict, InvalidInput, NotFound
from interlock.domain.run import Run
from interlock.domain.settings import OnNeedFailed
from interlock.domain.states import TERMINAL, RunEvent, RunState
from interlock.domain.task import PRIORITY_LIMIT, Task, UnreadableTask
from interlock.ports.store import Tx
from interlock.service.context import OPERATOR, Context, find_run, new_run_id
from interlock.service.filing import lane_of, lane_text, limited_now, note_keying
from interlock.service.moves import change, need_ended, record

LONGEST_MS = 10 * 366 * 86_400_000
"""A timeout beyond ten years is a slip of the pen, and would not fit beside a date."""
LATEST_MS = 253_402_300_799_000
"""Year 9999."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A task on its way in. ``key`` recognises it within its batch. ``message``: why it is held."""

    task: Task
    batch: str | None = None
    key: str | None = None
    retry_of: int | None = None
    held: bool = False
    message: str | None = None


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an item: a new run, or the unfinished one that has its unique key already."""

    run: Run
    created: bool


def submit(tx: Tx, ctx: Context, items: Sequence[Item], *, by: str = OPERATOR) -> list[Submitted]:
    """Queue ``items``, all or none. ``needs`` may name ids of the same call or batch, run ids, or ``#numbers``.

    Raises :class:`InvalidInput` for a need on nothing, a cycle or a number out of range, :class:`Conflict` for a doubled id.
    """
    ids: dict[str, int] = {}
    for index, item in enumerate(items):
        _refuse_impossible(item.task)
        if item.task.id is not None and ids.setdefault(item.task.id, index) != index:
            raise Conflict(f"the id '{item.task.id}' is given twice", hint="ids are unique within a backlog")
    _refuse_cycles([item.task for item in items], ids)
    note_keying(tx, ctx)
    by_lane = limited_now(tx, ctx)
    routes = tx.routes()
    lanes: dict[str, int] = {}
    done: list[Submitted] = []
    for item in items:
        task = item.task
        if task.unique is not None and (twin := tx.run_by_unique_key(task.unique)) is not None:
            done.append(Submitted(run=twin, created=False))
            continue
        lane = lane_text(lane_key(task, item.batch, by_lane))
        if lane not in lanes:
            lanes[lane] = tx.lane(lane)
        route = route_for(task.type, routes)
        run = Run(
            number=0,
            id=new_run_id(ctx.rng),
            state=RunState.QUEUED,
            task=task,
            content_hash=task.content_hash(),
            batch=item.batch,
            task_key=item.key,
            unique_key=task.unique,
            retry_of=item.retry_of,
            base_priority=task.priority,
            priority=task.priority + (route.priority if route is not None else 0),
            lane=lanes[lane],
            held=item.held,
            message=item.message,
            needs_left=len(dict.fromkeys(task.needs)),
            not_before_ms=task.not_before_ms,
            created_ms=ctx.now_ms,
        )
        run = tx.add_run(derived(run, ctx.now_ms, ctx.settings))
        data = None if item.retry_of is None else {"retry_of": item.retry_of}
        record(tx, ctx, run, RunEvent.SUBMIT, by=by, before=None, message=item.message, data=data)
        done.append(Submitted(run=run, created=True))
    for index, item in enumerate(items):
        if done[index].created and item.task.needs:
            run = _tie(tx, ctx, item, done[index].run, ids, done)
            done[index] = Submitted(run=run, created=True)
    if any(item.task.needs for item in items):
        # A need that had failed already may have ended others of this call.
        done = [Submitted(run=tx.run(made.run.number) or made.run, created=made.created) for made in done]
    return done


ANSWERS_KEPT_MS = 48 * 3600 * 1000


def submit_once(tx: Tx, ctx: Context, items: Sequence[Item], *, key: str, digest: str, by: str) -> list[Submitted]:
    """The same as :func:`submit`; the same ``key`` again is answered with the same runs, and creates none, for two days.

    ``digest`` tells whether it is the same submit. Raises Conflict when it is another one.
    """
    known = tx.submission(key)
    if known is not None:
        if known[0] != digest:
            raise Conflict(f"the key {key} was used for another submit", hint="take a new key for another submit")
        runs = [tx.run(number) for number in known[1]]
        return [Submitted(run=run, created=False) for run in runs if run is not None]
    done = submit(tx, ctx, items, by=by)
    tx.drop_submissions(ctx.now_ms - ANSWERS_KEPT_MS, 100)
    tx.add_submission(key, digest, [made.run.number for made in done], ctx.now_ms)
    return done


def _refuse_impossible(task: Task) -> None:
    """One number that the database or the clock cannot hold would stop every later round of dispatching."""
    if not task.title.strip():
        raise InvalidInput("a task needs a title", hint="say in a line what is to be done")
    for what, value, low, high in (
        ("priority", task.priority, -PRIORITY_LIMIT, PRIORITY_LIMIT),
        ("timeout_ms", task.timeout_ms, 1, LONGEST_MS),
        ("stall_ms", task.stall_ms, 1, LONGEST_MS),
        ("not_before_ms", task.not_before_ms, 0, LATEST_MS),
    ):
        if value is not None and not low <= value <= high:
            raise InvalidInput(
                f"task '{task.title}': {what} is {value}, out of range",
                hint=f"give a number between {low} and {high}, or leave it out",
            )


def _tie(tx: Tx, ctx: Context, item: Item, run: Run, ids: dict[str, int], done: Sequence[Submitted]) -> Run:
    targets: dict[int, Run] = {}
    for name in dict.fromkeys(item.task.needs):
        need = _resolve(tx, item, name, ids, done)
        if need.number == run.number:
            raise InvalidInput(f"task '{item.task.title}' needs itself", hint="take it out of its needs")
        targets[need.number] = need
    if len(targets) != run.needs_left:
        run = change(tx, ctx, run, needs_left=len(targets))
    for need in targets.values():
        tx.add_need(run.number, need.number, met=False)
    for need in targets.values():
        latest = tx.run(need.number)
        if latest is not None and latest.state in TERMINAL and not run.terminal:
            run = need_ended(tx, ctx, run, latest)
    return run


def _resolve(tx: Tx, item: Item, name: str, ids: dict[str, int], done: Sequence[Submitted]) -> Run:
    if name in ids:
        return done[ids[name]].run
    if item.batch is not None:
        known = tx.batch_latest(item.batch, f"id:{name}")
        if known is not None:
            return known
    try:
        if item.batch is not None and not name.startswith("#"):
            # In a file a bare word is the id of a task; one that is misspelt must not meet some run by its beginning.
            whole = tx.run_by_id(name)
            if whole is not None:
                return whole
            raise NotFound(name)
        return find_run(tx, name)
    except NotFound as error:
        raise InvalidInput(
            f"task '{item.task.title}' needs '{name}', which is no task of this backlog and no run",
            hint="write the id of a task, a run id or #NUMBER",
        ) from error


def _refuse_cycles(tasks: Sequence[Task], given: dict[str, int]) -> None:
    """Depth-first over the needs among ``tasks``; what is there already cannot point at what is new."""
    # The later ones of a unique key become the run of the first.
    first: dict[str, int] = {}
    ids = {
        name: index if (key := tasks[index].unique) is None else first.setdefault(key, index)
        for name, index in sorted(given.items(), key=lambda entry: entry[1])
    }
    state: dict[int, int] = {}
    for start in range(len(tasks)):
        if state.get(start):
            continue
        stack = [(start, iter(tasks[start].needs))]
        state[start] = 1
        while stack:
            node, rest = stack[-1]
            following = next((ids[name] for name in rest if name in ids), None)
            if following is None:
                state[node] = 2
                stack.pop()
            elif state.get(following) == 1:
                path = [index for index, _ in stack]
                circle = [*path[path.index(following) :], following]
                names = " -> ".join(str(tasks[index].id) for index in circle)
                raise InvalidInput(f"these tasks need each other in a circle: {names}", hint="break the circle")
            elif not state.get(following):
                state[following] = 1
                stack.append((following, iter(tasks[following].needs)))


def retry(tx: Tx, ctx: Context, run: Run, *, by: str = OPERATOR) -> Run:
    """A new run of the task of a terminal one. Raises :class:`Conflict` when it has not ended."""
    if not run.terminal:
        raise Conflict(
            f"run #{run.number} is {run.state}, not ended",
            hint=f"it goes on by itself; `interlock why {run.number}` says what it waits for",
        )
    needs = tuple(f"#{need.number}" for need in _needs_of_a_retry(tx, ctx, run))
    task = msgspec.structs.replace(run.task, needs=needs, not_before_ms=None, priority=run.base_priority)
    item = Item(task=task, batch=run.batch, key=run.task_key, retry_of=run.number)
    made = submit(tx, ctx, [item], by=by)[0]
    if not made.created:
        raise Conflict(
            f"run #{made.run.number} has the unique key '{task.unique}' already",
            hint=f"it does the same work: wait for it, or `interlock cancel {made.run.number}` first",
        )
    return made.run


def _needs_of_a_retry(tx: Tx, ctx: Context, run: Run) -> list[Run]:
    """What a new run of ``run``'s task has to wait for: the newest run of each need, unless that is met."""
    waits_for = []
    for number, _ in tx.needs_of(run.number):
        need = _newest(tx, number)
        if need is None or need.state is RunState.COMPLETED:
            continue
        if not need.terminal:
            waits_for.append(need)
        elif ctx.settings.on_need_failed is not OnNeedFailed.RUN:
            raise Conflict(
                f"run #{run.number} needs #{need.number} ({need.task.title}), which ended {need.state}",
                hint=f"`interlock retry {need.number}` first, or `interlock retry --failed` for all of them",
            )
    return waits_for


def _newest(tx: Tx, number: int) -> Run | None:
    """The run that stands for a task now: itself, or the last of its retries."""
    run = tx.run(number)
    while run is not None and (later := tx.retried_as(run.number)) is not None:
        run = tx.run(later)
    return run


def needs_first(tx: Tx, numbers: Sequence[int]) -> list[int]:
    """``numbers`` in an order in which runs come before those that need them: the order to retry them in."""
    among = dict.fromkeys(numbers)
    placed: dict[int, None] = {}
    stack = [(number, False) for number in reversed(among)]
    while stack:
        number, needs_placed = stack.pop()
        if number in placed:
            continue
        if needs_placed:
            placed[number] = None
        else:
            stack.append((number, True))
            stack.extend((need, False) for need, _ in tx.needs_of(number) if need in among)
    return list(placed)


class Standing(StrEnum):
    """How a task of a backlog stands when the backlog is run (again)."""

    NEW = "new"
    GOING_ON = "going_on"
    DONE = "done"
    CHANGED = "changed"
    FAILED = "failed"
    RETRIED = "retried"
    TWIN = "twin"
    AGAIN = "again"


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a backlog and the run that stands for it."""

    standing: Standing
    run: Run


def reconcile_batch(
    tx: Tx,
    ctx: Context,
    batch: str,
    tasks: Sequence[tuple[str, Task]],
    *,
    retry_failed: bool,
    again: bool,
    by: str = OPERATOR,
) -> list[Planned]:
    """Bring the runs of a batch up to its backlog: new tasks are queued, known ones are recognised by their key.

    ``tasks``: (key, task) in the order of the backlog. Nothing is run twice unless it was asked for.
    """
    standings: list[tuple[Standing, Run | None]] = []
    for key, task in tasks:
        known = tx.batch_latest(batch, key)
        standings.append((_standing(known, task, retry_failed=retry_failed, again=again), known))
    fresh = [
        Item(
            task=task,
            batch=batch,
            key=key,
            retry_of=known.number if known is not None else None,
        )
        for (key, task), (standing, known) in zip(tasks, standings, strict=True)
        if standing in (Standing.NEW, Standing.RETRIED, Standing.AGAIN)
    ]
    made = iter(submit(tx, ctx, fresh, by=by))
    planned: list[Planned] = []
    for (_, task), (standing, known) in zip(tasks, standings, strict=True):
        if standing in (Standing.NEW, Standing.RETRIED, Standing.AGAIN):
            new = next(made)
            planned.append(Planned(standing=standing if new.created else Standing.TWIN, run=new.run))
        else:
            assert known is not None
            if standing is Standing.GOING_ON and known.state is RunState.QUEUED:
                planned.append(Planned(standing=standing, run=reassign(tx, ctx, known, task)))
            else:
                planned.append(Planned(standing=standing, run=known))
    return planned


def _standing(known: Run | None, task: Task, *, retry_failed: bool, again: bool) -> Standing:
    if known is None:
        return Standing.NEW
    if not known.terminal:
        return Standing.GOING_ON
    if again:
        return Standing.AGAIN
    if known.state is RunState.COMPLETED:
        return Standing.DONE if known.content_hash == task.content_hash() else Standing.CHANGED
    return Standing.RETRIED if retry_failed else Standing.FAILED


def reassign(tx: Tx, ctx: Context, run: Run, wanted: Task) -> Run:
    """Give a queued run the agent and the timeout of ``wanted``: who runs a backlog again may have named others."""
    if isinstance(run.task, UnreadableTask):
        return run
    task = msgspec.structs.replace(run.task, agent=wanted.agent, timeout_ms=wanted.timeout_ms)
    if task == run.task:
        return run
    tx.hint()
    return change(tx, ctx, run, task=task, lane=lane_of(tx, ctx, task, run.batch))
