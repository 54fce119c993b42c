"""What only shows when the tasks of a backlog are looked at together: doubled ids and keys, needs without a
task, circles.

Looked at are the tasks that did read. Of the others no more is known than what they may be called; nothing is
said that could stop being true once they are mended.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator

import msgspec

from interlock.domain.task import Task
from interlock.sources.faults import SHOWN_FAULTS, Faults, both_lines, nearest, shown
from interlock.sources.placed import Node

# a run in the database, by number or by its whole id; whether it is there is for the service to say
_RUN_NUMBER = re.compile(r"#[0-9]+")
_RUN_ID = re.compile(r"r[0-9a-z]{12}")
_EARLIER = "for a task that is no longer in this file write its run id or #NUMBER"


class PlacedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task, the line that it starts on, and its path in the file (``tasks[3]``; empty where lines say it
    all).
    """

    task: Task
    line: int
    path: str = ""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A task that did read, what it was read from, and the ``defaults`` that it started from."""

    task: Task
    node: Node
    defaults: Node | None = None

    def field(self, key: str) -> Node:
        """Where the value of a field was written; the task itself when that cannot be told."""
        own = self.node.field(key)
        if own is None and self.defaults is not None:
            own = self.defaults.field(key)
        return own or self.node

    def inherits(self, key: str) -> bool:
        """Whether the value of a field is that of the defaults."""
        return self.defaults is not None and self.node.field(key) is None

    def need(self, name: str) -> Node:
        """Where a need was written: the entry of the list, where it has a place of its own."""
        field = self.field("needs")
        for entry in field.items():
            own_place = (entry.raw.line, entry.raw.column) != (field.raw.line, field.raw.column)
            # an alias stands where it is used, its entries where the anchor is
            if own_place and entry.line >= field.line and entry.scalar and entry.raw.text.rstrip("\n") == name:
                return entry
        return field


class Reading(msgspec.Struct, kw_only=True):
    """What came of the items of a file.

    ``unread``: ids of those that did not read. ``unnamed``: there may be others, of ids that cannot be told.
    """

    open: list[Member] = []
    done: list[Member] = []
    unread: set[str] = set()
    unnamed: bool = False

    def lost(self, node: Node, known: Collection[str]) -> None:
        """Notes an item that did not read. ``known``: the keys that an item may have."""
        if node.scalar and not node.absent:
            return  # a title alone has no id
        if not node.is_mapping:
            self.unnamed = True
            return
        for key, value in node.raw.entries:
            if key.text not in known:
                self.unnamed = True  # it may be a misspelt `id`
            elif key.text == "id" and not value.absent:
                name = value.text.strip()
                if value.scalar and name and name.isprintable():
                    self.unread.add(name)
                else:
                    self.unnamed = True


def names_a_run(need: str) -> bool:
    """Whether a need may be a run in the database (``#42``, ``r...``) rather than a task of the backlog."""
    return bool(_RUN_NUMBER.fullmatch(need) or _RUN_ID.fullmatch(need))


def check_together(reading: Reading, faults: Faults) -> None:
    """Ids and keys are there once; needs name other tasks, done items or runs, and run in no circle."""
    _check_ids(reading)
    _check_keys(reading)
    _check_needs(reading, faults)


def _check_ids(reading: Reading) -> None:
    lines = {member.task.id: member.field("id").line for member in reading.done if member.task.id is not None}
    for member in reading.open:
        name = member.task.id
        if name is None:
            continue
        field = member.field("id")
        if name in lines:
            problem = f"{shown(name)} is there twice, {both_lines(lines[name], field.line)}"
            field.fault(problem, "every id names one task: rename one of them")
        else:
            lines[name] = field.line


def _check_keys(reading: Reading) -> None:
    """Of two tasks with one ``unique`` key the second would be taken for the first, and never run."""
    lines: dict[str, int] = {}
    for member in reading.open:
        key = member.task.unique
        if key is None:
            continue
        field = member.field("unique")
        if key in lines:
            problem = f"{shown(key)} is the key of two tasks, {both_lines(lines[key], field.line)}"
            field.fault(problem, "only one of them would run: give each its own key, or remove one")
        else:
            lines[key] = field.line


def _check_needs(reading: Reading, faults: Faults) -> None:
    ids = Counter(member.task.id for member in (*reading.open, *reading.done) if member.task.id is not None)
    names = ids.keys() | reading.unread
    # which task a doubled id means is not known before it is mended
    sure = {name for name, count in ids.items() if count == 1 and name not in reading.unread}
    by_id = {member.task.id: member for member in reading.open if member.task.id in sure and member.task.id}
    told: set[str] = set()  # of the defaults, once for all tasks
    for member, need in _all_needs(reading.open):
        if need == member.task.id:
            if need in sure:
                hint = "remove the need"
                if member.inherits("needs"):
                    hint = "it has this from the defaults: give the task its own `needs: []`"
                member.need(need).fault(f"{shown(need)} needs itself", hint)
        elif not (need in names or names_a_run(need) or reading.unnamed):
            if member.inherits("needs"):
                if need in told:
                    continue
                told.add(need)
            # looking through a million names takes its time, for a fault that is only counted
            near = nearest(need, names) if len(faults.kept) < SHOWN_FAULTS else None
            hint = f"did you mean {near}?" if near else "give the other task this `id`;"
            member.need(need).fault(f"{shown(need)} is no id in this backlog", f"{hint} {_EARLIER}")
    for cycle in _cycles({name: [n for n in member.task.needs if n != name] for name, member in by_id.items()}):
        words = " -> ".join([*cycle[:10], *(["..."] if len(cycle) > 10 else []), cycle[0]])
        by_id[cycle[0]].field("needs").fault(f"the needs run in a circle: {words}", "remove one of them")


def _all_needs(members: list[Member]) -> Iterator[tuple[Member, str]]:
    return ((member, need) for member in members for need in member.task.needs)


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
