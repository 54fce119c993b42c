"""Makes a failing scenario smaller: leaves things out, plays again, and keeps what still breaks the same rule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from interlock.testing.simulation.playing import play
from interlock.testing.simulation.scenario import Arrival, Conduct, Deed, Entry, Fault, Job, Plan, Scenario
from interlock.testing.simulation.story import Story

Part = Entry
"""What can be left out: an entry, an arrival being taken apart into one for each of its jobs."""

replace = msgspec.structs.replace


def shrink(story: Story, *, seconds: float = 60.0, progress: Callable[[Story], None] | None = None) -> Story:
    """The smallest failing story that is found within ``seconds`` of real time; ``story`` itself if it does not fail.

    ``progress`` is told of every smaller one. What is left breaks the same rule, and can be kept: see :func:`encode`.
    """
    if story.failure is None:
        return story
    return _Shrinker(story, seconds, progress).shrink()


class _Shrinker:
    def __init__(self, story: Story, seconds: float, progress: Callable[[Story], None] | None) -> None:
        assert story.failure is not None
        self._best = story
        self._rule = story.failure.rule
        self._until = time.monotonic() + seconds
        self._progress = progress

    @property
    def _out_of_time(self) -> bool:
        return time.monotonic() > self._until

    def shrink(self) -> Story:
        """One kind of step after the other, until none helps."""
        self._forget_what_came_after()
        size = -1
        while size != self._size() and not self._out_of_time:
            size = self._size()
            self._leave_out()
            self._simplify()
        return self._best

    def _size(self) -> int:
        return len(msgspec.json.encode(self._best.scenario.entries))

    def _try(self, scenario: Scenario) -> bool:
        if self._out_of_time:
            return False
        story = play(scenario)
        if story.failure is None or story.failure.rule != self._rule:
            return False
        self._best = story
        if self._progress is not None:
            self._progress(story)
        return True

    def _forget_what_came_after(self) -> None:
        failure, scenario = self._best.failure, self._best.scenario
        assert failure is not None
        parts = [part for part in _parts(scenario.entries) if part.at_ms <= failure.at_ms]
        self._try(_without(scenario, parts)) or self._try(replace(scenario, entries=_whole(parts)))

    def _leave_out(self) -> None:
        """Halves, quarters, ... single parts."""
        parts = _parts(self._best.scenario.entries)
        chunk = max(1, len(parts) // 2)
        while not self._out_of_time:
            start = 0
            while start < len(parts) and not self._out_of_time:
                left = parts[:start] + parts[start + chunk :]
                if self._try(_without(self._best.scenario, left)):
                    parts = left
                else:
                    start += chunk
            if chunk == 1:
                return
            chunk //= 2

    def _simplify(self) -> None:
        for scenario in _simpler(self._best.scenario):
            if self._out_of_time:
                return
            self._try(scenario)
        for index in range(len(self._best.scenario.entries)):
            for entry in _simpler_entry(self._best.scenario.entries[index]):
                entries = list(self._best.scenario.entries)
                entries[index] = entry
                self._try(replace(self._best.scenario, entries=tuple(entries)))


def _parts(entries: Iterable[Entry]) -> list[Part]:
    parts: list[Part] = []
    for entry in entries:
        if isinstance(entry, Arrival):
            parts += [replace(entry, jobs=(job,)) for job in entry.jobs]
        else:
            parts.append(entry)
    return parts


def _whole(parts: Iterable[Part]) -> tuple[Entry, ...]:
    """Put arrivals together again, as their jobs may need each other."""
    entries: list[Entry] = []
    for part in parts:
        last = entries[-1] if entries else None
        if isinstance(part, Arrival) and isinstance(last, Arrival) and last.at_ms == part.at_ms:
            entries[-1] = replace(last, jobs=(*last.jobs, *part.jobs))
        else:
            entries.append(part)
    return tuple(entries)


def _without(scenario: Scenario, parts: Sequence[Part]) -> Scenario:
    """Only ``parts``: what refers to a task that is left out does so no more."""
    there = {job.name for part in parts if isinstance(part, Arrival) for job in part.jobs}
    kept: list[Part] = []
    for part in parts:
        if isinstance(part, Arrival):
            kept.append(replace(part, jobs=tuple(_with_needs(job, there) for job in part.jobs)))
        elif not isinstance(part, Deed) or part.job is None or part.job in there:
            kept.append(part)
    return replace(scenario, entries=_whole(kept))


def _with_needs(job: Job, there: set[str]) -> Job:
    needs = tuple(name for name in job.task.needs if name in there)
    after = tuple(name for name in job.after if name in there)
    return replace(job, task=replace(job.task, needs=needs), after=after)


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    if scenario.dispatchers > 1:
        whom = [part for part in scenario.entries if not isinstance(part, (Fault, Deed)) or part.who == 0]
        yield replace(scenario, dispatchers=1, entries=tuple(whom))
    yield replace(scenario, entries=tuple(replace(entry, at_ms=entry.at_ms // 2) for entry in scenario.entries))


def _simpler_entry(entry: Entry) -> Iterator[Entry]:
    if isinstance(entry, Fault) and entry.ms > 1000:
        yield replace(entry, ms=1000)
    if isinstance(entry, Arrival):
        for index, job in enumerate(entry.jobs):
            for simpler in _simpler_job(job):
                yield replace(entry, jobs=(*entry.jobs[:index], simpler, *entry.jobs[index + 1 :]))


def _simpler_job(job: Job) -> Iterator[Job]:
    task = job.task
    yield replace(job, task=type(task)(title=task.title, id=task.id, needs=task.needs))
    yield replace(job, plans=(Plan(),))
    if len(job.plans) > 1:
        yield replace(job, plans=job.plans[:1])
    first = job.plans[0]
    plain = Plan(conduct=first.conduct, ms=first.ms)
    if first != plain and first.conduct is not Conduct.DONE:
        yield replace(job, plans=(plain, *job.plans[1:]))
