"""A seeded scheduler: the one place that reaches into trio.

Three things that trio does not offer are needed, and all three are here.

* The order of runnable tasks is drawn from a seed. Trio keeps them in ``runner.runq`` and turns each batch around by chance; here
  the queue itself hands out a batch sorted by age and shuffled by our own generator, and trio's chance is switched off.
* Tasks of a process that is stopped (SIGSTOP) do not run, while their timers go on to expire: what becomes runnable of
  it is kept aside until it is woken. Which process a task belongs to is in its context (:data:`PROCESS`), which tasks inherit
  from whoever starts them.
* Scheduling does not depend on what else is loaded: pytest-trio makes trio sort its batches once Hypothesis is there. Nor
  on signals that the process is sent: the task with which trio hears of them takes no part in the draw.

Known to work with trio 0.30 to 0.35; :class:`SchedulerUnknown` is raised where these parts are not found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from random import Random
from typing import Any, Protocol, cast

import trio


class SchedulerUnknown(RuntimeError):
    """This version of trio keeps its runnable tasks in another way."""


class Stoppable(Protocol):
    """A process of the simulation as the scheduler sees it."""

    stopped: bool
    kept: list[trio.lowlevel.Task]


PROCESS: ContextVar[Stoppable | None] = ContextVar("interlock_simulated_process", default=None)
"""The simulated process that a task belongs to; None: the world itself."""


class _Queue(deque[trio.lowlevel.Task]):
    """Trio's queue of runnable tasks, in an order of ours."""

    def __init__(
        self, tasks: Iterable[trio.lowlevel.Task], chance: Random, apart: frozenset[trio.lowlevel.Task] = frozenset()
    ) -> None:
        super().__init__(tasks)
        self._chance = chance
        self._apart = apart

    def append(self, task: trio.lowlevel.Task, /) -> None:
        process = task.context.get(PROCESS)
        if process is not None and process.stopped:
            process.kept.append(task)
        else:
            super().append(task)

    def __iter__(self) -> Iterator[trio.lowlevel.Task]:
        tasks = list(super().__iter__())
        if len(tasks) > 1:
            apart = [task for task in tasks if task in self._apart]
            if apart:
                tasks = [task for task in tasks if task not in self._apart]
            tasks.sort(key=_age)
            self._chance.shuffle(tasks)
            tasks += apart
        return iter(tasks)


class _NoChance(Random):
    """Never turns a batch around."""

    def random(self) -> float:
        return 0.75


def _age(task: trio.lowlevel.Task) -> int:
    return cast("Any", task)._counter  # type: ignore[no-any-return]  # noqa: SLF001


def _internals() -> Any:
    module = trio.lowlevel.current_task.__globals__
    if "_r" not in module or "_ALLOW_DETERMINISTIC_SCHEDULING" not in module:
        raise SchedulerUnknown(f"the scheduler of trio {trio.__version__} is not known here")
    return module


@contextmanager
def fair_trio() -> Iterator[None]:
    """Around ``trio.run``: switches off trio's own chance and what plugins made of it. One at a time in a process."""
    module = _internals()
    before = {name: module[name] for name in ("_r", "_ALLOW_DETERMINISTIC_SCHEDULING")}
    module.update(_r=_NoChance(0), _ALLOW_DETERMINISTIC_SCHEDULING=False)
    try:
        yield
    finally:
        module.update(before)


def take_over(chance: Random) -> None:
    """From here on the tasks of this loop run in the order that ``chance`` gives. Call it first, from within the loop."""
    runner = getattr(_internals().get("GLOBAL_RUN_CONTEXT"), "runner", None)
    if not isinstance(getattr(runner, "runq", None), deque):
        raise SchedulerUnknown(f"the scheduler of trio {trio.__version__} is not known here")
    hearing = cast("Any", runner).entry_queue.task.__code__
    system = [task for nursery in cast("Any", runner).init_task.child_nurseries for task in nursery.child_tasks]
    apart = frozenset(task for task in system if task.coro.cr_code is hearing)
    if not apart:
        raise SchedulerUnknown(f"where trio {trio.__version__} hears of signals is not known here")
    cast("Any", runner).runq = _Queue(cast("Any", runner).runq, chance, apart)


def stop_tasks(process: Stoppable) -> None:
    """No task of ``process`` runs until :func:`wake_tasks`."""
    process.stopped = True
    queue = cast("Any", _internals()["GLOBAL_RUN_CONTEXT"]).runner.runq
    ours = [task for task in queue if task.context.get(PROCESS) is process]
    for task in ours:
        queue.remove(task)
    process.kept.extend(sorted(ours, key=_age))


def wake_tasks(process: Stoppable) -> None:
    """Let ``process`` go on: what became runnable meanwhile runs now."""
    process.stopped = False
    queue = cast("Any", _internals()["GLOBAL_RUN_CONTEXT"]).runner.runq
    kept, process.kept = process.kept, []
    queue.extend(kept)
