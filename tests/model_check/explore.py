"""Breadth-first search over every reachable state, with the shortest way to whatever goes wrong.

A state is one integer: the shared part and a number for each run's own part. Steps of a run's own part are worked out once
for each (own part, shared part, room) and remembered as lists of numbers, so that a state costs microseconds.

Two reductions, both sound because nothing in the model tells apart what they exchange: runs are interchangeable (each may be
dispatched at any moment, so that numbers and ages decide nothing), and so are the two dispatchers. Of the states that
only differ by such an exchange one is visited.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from run_model import RunModel
from setting import PAUSE, Setting
from story import describe, replay
from world import Around, Fault, Shared, Step, Up, at_work, bad, first, is_done, swapped, with_agents_in_order

from interlock.domain.states import RunState

WIDTH = 24
MASK = (1 << WIDTH) - 1


class Found(NamedTuple):
    """What a search came to. ``trace``: a line for each step to the fault, the shortest there is."""

    setting: Setting
    states: int
    steps: int
    own_parts: int
    depth: int
    fault: str | None
    trace: tuple[str, ...]

    def told(self) -> str:
        """For people."""
        head = f"{self.setting.name}: {self.states} states, {self.fault or 'nothing wrong'}"
        return "\n".join([head, *(f"{number:3} {line}" for number, line in enumerate(self.trace))])


class Targets(NamedTuple):
    """What a run's own part may become next: all, those by fair steps, and whether one of the steps is a fault."""

    all: tuple[int, ...]
    fair: tuple[int, ...]
    faulty: bool


class Explorer:
    """The search in one setting. ``only``: the faults to look for, all if None."""

    def __init__(self, setting: Setting, *, only: frozenset[str] | None = None) -> None:
        self.setting = setting
        self.model = RunModel(setting)
        self._only = only
        self._arounds: list[Around] = []
        self._numbers: dict[Around, int] = {}
        self._uses: list[int] = []
        self._works: list[int] = []
        self._open: list[bool] = []
        self._bad: list[tuple[str, ...]] = []
        self._done: list[bool] = []
        self._swaps: list[int] = []
        self._shareds = [
            Shared(tuple(dispatchers), paused)
            for dispatchers in product(Up, repeat=setting.dispatchers)
            for paused in (False, True)
        ]
        self._shared_numbers = {shared: number for number, shared in enumerate(self._shareds)}
        self._shared_swaps = [
            self._shared_numbers[shared._replace(dispatchers=shared.dispatchers[::-1])] for shared in self._shareds
        ]
        self._targets: dict[int, Targets] = {}
        self._targets_of_parts: dict[int, Targets] = {}
        self._parts: dict[int, list[tuple[int, Callable[[Around], Iterator[Step]]]]] = {}
        self._part_numbers: dict[Hashable, int] = {}
        self._all_at_once: dict[tuple[str, int], int] = {}
        self.counted = 0
        self.parents: dict[int, int] = {}
        """Every state that was visited, and the one from which it was first reached."""

    # numbers

    def number(self, around: Around) -> int:
        """The number of a run's own part."""
        known = self._numbers.get(around)
        if known is not None:
            return known
        number = self._numbers[around] = len(self._arounds)
        self._arounds.append(around)
        self._uses.append(int(around.record.slots))
        self._works.append(at_work(around))
        self._open.append(around.record.state is RunState.DISPATCHED)
        self._bad.append(bad(around))
        self._done.append(is_done(around, self.setting))
        self._swaps.append(-1)
        return number

    def _swap(self, number: int) -> int:
        if self._swaps[number] < 0:
            other = self.number(swapped(self._arounds[number]))
            self._swaps[number], self._swaps[other] = other, number
        return self._swaps[number]

    def _unpack(self, key: int) -> tuple[int, tuple[int, ...]]:
        if self.setting.runs == 1:
            return key >> WIDTH, (key & MASK,)
        return key >> 2 * WIDTH, (key >> WIDTH & MASK, key & MASK)

    def canonical(self, shared: int, own: tuple[int, ...]) -> int:
        """The key of the state that stands for this one and its mirror images."""
        key = self._sorted_key(shared, own)
        if self.setting.dispatchers == 1:
            return key
        swaps = self._swaps
        turned = [swaps[number] if swaps[number] >= 0 else self._swap(number) for number in own]
        return min(key, self._sorted_key(self._shared_swaps[shared], turned))

    def _sorted_key(self, shared: int, own: Sequence[int]) -> int:
        if self.setting.runs == 1:
            return shared << WIDTH | own[0]
        a, b = own
        return (shared << WIDTH | a) << WIDTH | b if a <= b else (shared << WIDTH | b) << WIDTH | a

    # steps

    def steps_of(self, number: int, shared: int, *, room: bool) -> Iterator[Step]:
        """Steps of one run's own part."""
        for _, part in self._parts_of(shared, room=room):
            yield from self.model.steps(self._arounds[number], part)

    def _parts_of(self, shared: int, *, room: bool) -> list[tuple[int, Callable[[Around], Iterator[Step]]]]:
        key = shared << 1 | room
        if key not in self._parts:
            named = self.model.parts(self._shareds[shared], room=room)
            self._parts[key] = [
                (self._part_numbers.setdefault(name, len(self._part_numbers)), part) for name, part in named
            ]
        return self._parts[key]

    def _relevant(self, fault: str | None) -> str | None:
        return fault if self._only is None or fault in self._only else None

    def _targets_of(self, number: int, shared: int, *, room: bool) -> Targets:
        """Numbers that one run's own part may become."""
        key = (number << 6 | shared) << 1 | room
        known = self._targets.get(key)
        if known is None:
            parts = [self._targets_of_part(number, name, part) for name, part in self._parts_of(shared, room=room)]
            known = self._targets[key] = Targets(
                tuple(dict.fromkeys(target for part in parts for target in part.all)),
                tuple(dict.fromkeys(target for part in parts for target in part.fair)),
                any(part.faulty for part in parts),
            )
        return known

    def _targets_of_part(self, number: int, name: int, part: Callable[[Around], Iterator[Step]]) -> Targets:
        key = number << 12 | name
        known = self._targets_of_parts.get(key)
        if known is None:
            steps = list(self.model.steps(self._arounds[number], part))
            known = self._targets_of_parts[key] = Targets(
                tuple(self.number(step.to) for step in steps),
                tuple(self.number(step.to) for step in steps if step.fair),
                any(self._relevant(step.fault) for step in steps),
            )
        return known

    def _of_all(self, what: str, work: Callable[[Around], Around], own: tuple[int, ...]) -> tuple[int, ...]:
        done = []
        for number in own:
            key = what, number
            if key not in self._all_at_once:
                self._all_at_once[key] = self.number(work(self._arounds[number]))
            done.append(self._all_at_once[key])
        return tuple(done)

    def shared_steps(self, shared: int, own: tuple[int, ...]) -> Iterator[tuple[str, int, tuple[int, ...], bool]]:
        """Steps that all runs take part in: (label, shared part, own parts, whether it is fair)."""
        now = self._shareds[shared]
        for d, up in enumerate(now.dispatchers):

            def become(new: Up, d: int = d) -> int:
                dispatchers = (*now.dispatchers[:d], new, *now.dispatchers[d + 1 :])
                return self._shared_numbers[now._replace(dispatchers=dispatchers)]

            if up is Up.DEAD:
                yield f"d{d} is started", become(Up.UP), own, True
                continue
            killed = self._of_all(f"kill{d}", lambda around, d=d: self.model.killed(around, d), own)  # type: ignore[misc]
            yield f"d{d} is killed", become(Up.DEAD), killed, False
            if up is Up.STOPPED:
                yield f"d{d}: SIGCONT", become(Up.UP), own, True
            elif self.setting.stops:
                yield f"d{d}: SIGSTOP", become(Up.STOPPED), own, False
        if now.paused:
            yield "operator: resumes", self._shared_numbers[now._replace(paused=False)], own, True
        elif PAUSE in self.setting.operator:
            withdrawn = self._of_all("pause", self.model.paused, own)
            yield "operator: pauses", self._shared_numbers[now._replace(paused=True)], withdrawn, False

    def _room(self, own: tuple[int, ...], index: int) -> bool:
        return sum(self._uses[number] for one, number in enumerate(own) if one != index) < self.setting.limit

    def moves(self, shared: int, own: tuple[int, ...]) -> Iterator[tuple[str, int, tuple[int, ...], str | None, bool]]:
        """Every step of the whole, with its label: (label, shared part, own parts, fault, whether it is fair)."""
        for index, number in enumerate(own):
            for step in self.steps_of(number, shared, room=self._room(own, index)):
                to = (*own[:index], self.number(step.to), *own[index + 1 :])
                label = step.label if len(own) == 1 else f"r{index} {step.label}"
                yield label, shared, to, self._relevant(step.fault), step.fair
        for label, new, to, fair in self.shared_steps(shared, own):
            yield label, new, to, None, fair

    def _wrong(self, shared: int, own: tuple[int, ...]) -> str | None:
        for number in own:
            for fault in self._bad[number]:
                if self._relevant(fault):
                    return fault
        if sum(self._uses[number] for number in own) > self.setting.limit and self._relevant(Fault.LIMIT):
            return Fault.LIMIT
        if sum(self._works[number] for number in own) > self.setting.limit and self._relevant(Fault.LIMIT_ALIVE):
            return Fault.LIMIT_ALIVE
        if self._shareds[shared].paused and any(self._open[number] for number in own) and self._relevant(Fault.OPEN):
            return Fault.OPEN
        return None

    # the search

    def start(self) -> tuple[int, tuple[int, ...]]:
        """One dispatcher up, every run queued."""
        dispatchers = (Up.UP, *(Up.DEAD,) * (self.setting.dispatchers - 1))
        shared = self._shared_numbers[Shared(dispatchers)]
        return shared, (self.number(first(self.setting)),) * self.setting.runs

    def search(self) -> Found:
        """Visit everything. Ends at the first fault, which no shorter way leads to."""
        root = self.canonical(*self.start())
        parents = self.parents = {root: -1}
        layer, depth = [root], 0
        while layer:
            following: list[int] = []
            for key in layer:
                shared, own = self._unpack(key)
                news = self._successors(shared, own)
                self.counted += len(news or ())
                if news is None:
                    return self.report(key, depth + 1, at_step=True)
                for new in news:
                    if new not in parents:
                        parents[new] = key
                        following.append(new)
                        if self._wrong(*self._unpack(new)) is not None:
                            return self.report(new, depth + 1, at_step=False)
            layer = following
            depth += 1
        return Found(self.setting, len(parents), self.counted, len(self._arounds), depth, None, ())

    def _successors(self, shared: int, own: tuple[int, ...]) -> list[int] | None:
        """Keys of what comes next; None when a step is a fault."""
        canonical = self.canonical
        news = []
        for index, number in enumerate(own):
            if index and number == own[0]:
                break
            targets = self._targets_of(number, shared, room=self._room(own, index))
            if targets.faulty:
                return None
            before, behind = own[:index], own[index + 1 :]
            news += [canonical(shared, (*before, target, *behind)) for target in targets.all]
        news += [canonical(new, to) for _, new, to, _ in self.shared_steps(shared, own)]
        return news

    def report(self, key: int, depth: int, *, at_step: bool, fault: str | None = None) -> Found:
        """The way from the start to ``key``; ``at_step``: and to the step from there that is the fault."""
        lines, last = replay(self, key, at_step=at_step)
        return Found(
            self.setting, len(self.parents), self.counted, len(self._arounds), depth, fault or last, tuple(lines)
        )

    def wrong(self, shared: int, own: tuple[int, ...]) -> str | None:
        """The fault of a state."""
        return self._wrong(shared, own)

    # for fairness

    def ends(self, key: int) -> bool:
        """Whether every run of this state is done, or one of them is and keeps the slot that it has to the end of the model."""
        own = self._unpack(key)[1]
        return all(self._done[number] for number in own) or any(
            self._done[number] and self._uses[number] for number in own
        )

    def fair_successors(self, key: int) -> Iterator[int]:
        """Keys of what comes next by fair steps."""
        shared, own = self._unpack(key)
        for index, number in enumerate(own):
            before, behind = own[:index], own[index + 1 :]
            for target in self._targets_of(number, shared, room=self._room(own, index)).fair:
                yield self.canonical(shared, (*before, target, *behind))
        for _, new, to, fair in self.shared_steps(shared, own):
            if fair:
                yield self.canonical(new, to)

    # for the story

    def begin_replay(self) -> None:
        """From here on names are kept."""
        self.model.renames = False
        self._all_at_once.clear()

    def renamed(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Own parts under the names that the search gave them."""
        return tuple(self.number(with_agents_in_order(self._arounds[number])) for number in own)

    def described(self, shared: int, own: tuple[int, ...]) -> str:
        """A state in words."""
        return describe(self._shareds[shared], [self._arounds[number] for number in own])
