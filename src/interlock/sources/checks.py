"""What only shows when the tasks of a backlog are looked at together: doubled ids, needs without a task,
cycles.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import msgspec

from interlock.domain.task import Task
from interlock.sources.faults import Faults, both_lines, nearest, shown

# a run in the database, by number or by its whole id; whether it is there is for the service to say
_RUN_NUMBER = re.compile(r"#[0-9]+")
_RUN_ID = re.compile(r"r[0-9a-z]{12}")


class PlacedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task, the line that it starts on, and its path in the file (``tasks[3]``; empty where lines say it
    all).
    """

    task: Task
    line: int
    path: str = ""


def names_a_run(need: str) -> bool:
    """Whether a need may be a run in the database (``#42``, ``r...``) rather than a task of the backlog."""
    return bool(_RUN_NUMBER.fullmatch(need) or _RUN_ID.fullmatch(need))


def check_ids(tasks: Sequence[PlacedTask], done: dict[str, int], faults: Faults) -> None:
    """Ids are unique, those of the done items (id -> line) among them."""
    lines = dict(done)
    for placed in tasks:
        name = placed.task.id
        if name is None:
            continue
        if name in lines:
            problem = f"{shown(name)} is there twice, {both_lines(lines[name], placed.line)}"
            _fault(faults, placed, "id", problem, "every id names one task: rename one of them")
        else:
            lines[name] = placed.line


def check_needs(tasks: Sequence[PlacedTask], done: Collection[str], faults: Faults) -> None:
    """Needs name other tasks of the backlog, done items or runs, and do not run in a circle."""
    by_id = {placed.task.id: placed for placed in tasks if placed.task.id is not None}
    for placed in tasks:
        for need in placed.task.needs:
            if need == placed.task.id:
                _fault(faults, placed, "needs", f"{shown(need)} needs itself", "remove the need")
            elif need not in by_id and need not in done and not names_a_run(need):
                near = nearest(need, by_id)
                known = f"did you mean {near}?" if near else "give the other task this `id`"
                _fault(faults, placed, "needs", f"{shown(need)} is no id in this backlog", known)
    for cycle in _cycles({name: [n for n in placed.task.needs if n != name] for name, placed in by_id.items()}):
        words = " -> ".join([*cycle[:10], *(["..."] if len(cycle) > 10 else []), cycle[0]])
        _fault(faults, by_id[cycle[0]], "needs", f"the needs run in a circle: {words}", "remove one of them")


def _cycles(needs: dict[str, list[str]]) -> list[list[str]]:
    """One cycle for each knot, from its first task in the order of the file.

    Iterative: chains may be long.
    """
    order = {name: at for at, name in enumerate(needs)}
    finished: set[str] = set()
    found = []
    for first, first_needs in needs.items():
        if first in finished:
            continue
        path = [first]
        on_path = {first: 0}
        stack = [(first, iter(first_needs))]
        while stack:
            name, left = stack[-1]
            step = next(left, None)
            if step is None:
                stack.pop()
                path.pop()
                del on_path[name]
                finished.add(name)
            elif step in on_path:
                cycle = path[on_path[step] :]
                first_at = cycle.index(min(cycle, key=order.__getitem__))
                found.append(cycle[first_at:] + cycle[:first_at])
                finished.update(cycle)  # one word about a knot is enough
            elif step in needs and step not in finished:
                on_path[step] = len(path)
                path.append(step)
                stack.append((step, iter(needs[step])))
    return found


def _fault(faults: Faults, placed: PlacedTask, field: str, problem: str, hint: str) -> None:
    faults.add(placed.line, 1, f"{placed.path}.{field}" if placed.path else field, problem, hint)
