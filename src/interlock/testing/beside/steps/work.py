"""What comes in and goes out again: submit, retry, prune; and what is set of a run that waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from interlock.domain.errors import Conflict, InvalidInput
from interlock.domain.run import Run
from interlock.domain.task import Task
from interlock.service import operating, submitting
from interlock.testing.beside import values
from interlock.testing.beside.drawing import PICK, any_run, mostly, step
from interlock.testing.promises import must

if TYPE_CHECKING:
    from interlock.testing.beside.beside import Beside

NEEDS: list[tuple[int, ...]] = [()] * 150 + [(a,) for a in range(30)] + [(a, b) for a in range(8) for b in range(8)]
_ARROWS = [(a, b) for a in "abc" for b in "abc"]
EDGES: list[tuple[tuple[str, str], ...]] = [(), *combinations(_ARROWS, 1), *combinations(_ARROWS, 3)]


@step(
    weight=6,
    task=lambda beside: beside.names.task(),
    needs=NEEDS,
    delay=mostly(None, 20_000),
    batch=[None, None, "B"],
    held=mostly(False, False, True),
)
def submit(
    beside: Beside, *, task: dict[str, Any], needs: Sequence[int], delay: int | None, batch: str | None, held: bool
) -> None:
    """A task, which may need runs that are there."""
    world = beside.world
    numbers = [beside.a_run(pick).number for pick in needs] if world.runs else []
    not_before = None if delay is None else beside.now + delay
    fields = {name: value for name, value in task.items() if value not in (None, ())}
    made = Task(
        title=f"task {len(world.runs) + 1}", needs=tuple(f"#{n}" for n in numbers), not_before_ms=not_before, **fields
    )
    said = [f"{name} {_shown(value)}" for name, value in fields.items() if value]
    said += [f"needs {_shown(numbers)}"] * bool(numbers) + [f"in {delay} ms"] * bool(delay)
    said += [f"batch {batch}"] * bool(batch) + ["on hold"] * held
    beside.tell(f"submit a task ({', '.join(said) or 'nothing special'})")
    (done,) = beside.write(submitting.submit, [submitting.Item(task=made, batch=batch, held=held)])
    beside.add(f": #{done.run.number}")
    twin = next(
        (run for run in world.runs.values() if run.unique and run.unique == made.unique and not run.ended), None
    )
    must(done.created == (twin is None), f"#{done.run.number} was{'' if done.created else ' not'} made anew")
    if twin is not None:
        must(done.run.number == twin.number, f"#{twin.number} has the unique key, and #{done.run.number} came back")
        beside.unchanged()
        return
    entered = _entered(done.run, held=held, needs=numbers)
    world.submit(entered)
    must(str(done.run.state) == entered.state, f"it is {done.run.state} at once and should be {entered.state}")


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _entered(run: Run, *, held: bool = False, needs: Sequence[int] = ()) -> values.Run:
    task = run.task
    return values.Run(
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
        needs=dict.fromkeys(needs, False),
    )


@step(weight=2, edges=EDGES, pick=PICK)
def submit_several(beside: Beside, *, edges: Sequence[tuple[str, str]], pick: int) -> None:
    """Three tasks that need each other, in circles too."""
    world = beside.world
    wants: dict[str, list[str]] = {name: [] for name in "abc"}
    for name, need in edges:
        wants[name].append(need)
    outside = [f"#{beside.a_run(pick).number}"] if world.runs and pick % 3 == 0 else []
    items = [
        submitting.Item(task=Task(title=name, id=name, needs=(*needs, *(outside if name == "c" else []))))
        for name, needs in wants.items()
    ]
    arrows = ", ".join(f"{name} needs {need}" for name, need in edges)
    beside.tell(f"submit a, b and c ({arrows or 'no needs'}{', c needs ' + outside[0] if outside else ''})")
    if has_circle(edges):
        with beside.refused(InvalidInput):
            beside.write(submitting.submit, items)
        return
    done = [made.run for made in beside.write(submitting.submit, items)]
    numbers = dict(zip("abc", (run.number for run in done), strict=True))
    beside.add(f": {', '.join(f'#{number}' for number in numbers.values())}")
    entered = [_entered(run, needs=[numbers[n] for n in wants[run.task.title]]) for run in done]
    for name in outside:
        entered[2].needs[int(name[1:])] = False
    for run in entered:
        world.runs[run.number] = run
    for run in entered:
        world.submit(run)
    states = [str(run.state) for run in done]
    must(states == [run.state for run in entered], f"they are {states} and should be {[r.state for r in entered]}")


def has_circle(edges: Sequence[tuple[str, str]]) -> bool:
    """Whether following the arrows leads back to where one began."""
    reach = set(edges)
    while True:
        more = {(a, d) for a, b in reach for c, d in reach if b == c} - reach
        if not more:
            return any(a == b for a, b in reach)
        reach |= more


@step(weight=2, when=any_run, pick=PICK)
def retry(beside: Beside, *, pick: int) -> None:
    """A new run of one that has ended."""
    world, run = beside.world, beside.a_run(pick, *values.ENDED)
    beside.tell(f"retry #{run.number}")
    twin = run.unique and any(other.unique == run.unique and not other.ended for other in world.runs.values())
    failed = world.rules.need_failed != "run" and any(need.ended for need in world.needs_of_a_retry(run))
    if not run.ended or twin or failed:
        with beside.refused(Conflict):
            beside.on(run, submitting.retry)
        return
    made = beside.on(run, submitting.retry)
    beside.add(f": #{made.number}")
    must(made.retry_of == run.number, f"#{made.number} says that it tries #{made.retry_of} again")
    world.submit(world.again(run, made.number, made.id))


@step(weight=1, when=lambda beside: any(run.ended for run in beside.world.runs.values()), bound=range(1, 4))
def prune(beside: Beside, *, bound: int) -> None:
    """Ended runs are deleted."""
    beside.tell(f"delete up to {bound} ended runs")
    gone = [number for number, _ in beside.write(lambda tx, _: operating.prune(tx, beside.now, bound))]
    beside.add(f": {gone}")
    for number in gone:
        must(beside.world.runs.pop(number).ended, f"#{number} had not ended and was deleted")
        beside.finals.pop(number)
        beside.fences.pop(number, None)
        beside.replayed.pop(number)
        for run in beside.world.runs.values():
            run.needs.pop(number, None)
    beside.in_use = beside.world.used()


@step(weight=2, when=any_run, pick=PICK)
def hold(beside: Beside, *, pick: int) -> None:
    """An operator puts a run on hold."""
    _hold(beside, beside.a_run(pick), held=True)


@step(weight=5, when=lambda beside: any(run.held for run in beside.world.runs.values()), pick=PICK)
def unhold(beside: Beside, *, pick: int) -> None:
    """An operator lets a run go on."""
    held = [run for run in beside.world.runs.values() if run.held]
    _hold(beside, held[pick % len(held)] if pick % 5 else beside.a_run(pick), held=False)


def _hold(beside: Beside, run: values.Run, *, held: bool) -> None:
    beside.tell(f"{'hold' if held else 'unhold'} #{run.number}")
    command: Callable[..., Any] = operating.hold if held else operating.unhold
    if run.ended:
        with beside.refused(Conflict):
            beside.on(run, command)
        return
    beside.on(run, command)
    if run.held == held:
        beside.unchanged()
    elif held and run.state == "dispatched":
        beside.world.withdraw(run)
    run.held = held


@step(weight=3, when=any_run, pick=PICK, priority=range(-2, 6))
def set_priority(beside: Beside, *, pick: int, priority: int) -> None:
    """An operator changes a priority."""
    run = beside.a_run(pick)
    beside.tell(f"set the priority of #{run.number} to {priority}")
    if run.ended:
        with beside.refused(Conflict):
            beside.on(run, operating.set_priority, priority)
        return
    beside.on(run, operating.set_priority, priority)
    run.own_priority = priority
