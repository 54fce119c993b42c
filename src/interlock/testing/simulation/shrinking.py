"""Makes a failing scenario smaller: leaves things out, plays again, and keeps what still breaks the same rule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from interlock.testing.simulation.playing import play
from interlock.testing.simulation.scenario import Arrival, Conduct, Deed, Entry, Fault, Job, Plan, Scenario
from interlock.testing.simulation.story import Scene, Story

AFTERWARDS_MS = 30 * 60 * 1000
BEFOREHAND_MS = 60 * 1000
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
        self._leave_out_much()
        size = -1
        while size != self._size() and not self._out_of_time:
            size = self._size()
            self._leave_out_kinds()
            self._leave_out_parts()
            self._simplify()
        return self._best

    @property
    def _scenario(self) -> Scenario:
        return self._best.scenario

    def _size(self) -> int:
        return len(msgspec.json.encode(self._scenario.entries))

    def _try(self, scenario: Scenario) -> bool:
        if self._out_of_time:
            return False
        assert self._best.failure is not None
        # Whatever is left out, it happens at about the same time, or not at all.
        story = play(scenario, until_ms=self._best.failure.at_ms + AFTERWARDS_MS)
        if story.failure is None or story.failure.rule != self._rule:
            return False
        self._best = story
        if self._progress is not None:
            self._progress(story)
        return True

    def _keep(self, keep: Callable[[Part], bool]) -> bool:
        """Leave out what is not to be kept. False when there is no such thing, or it is needed."""
        parts = _parts(self._scenario.entries)
        kept = [part for part in parts if keep(part)]
        return len(kept) < len(parts) and self._try(_without(self._scenario, kept))

    def _leave_out_much(self) -> None:
        """What came after, and all tasks but the one whose run it was, or but the last ones."""
        failure = self._best.failure
        assert failure is not None
        for scenes in (tuple(one for one in failure.scenes if one.job == failure.job), failure.scenes):
            for before_ms in (BEFOREHAND_MS, failure.at_ms):
                staged = _staged(self._scenario, scenes, failure.at_ms, before_ms)
                if staged is not None and self._try(staged):
                    return
        self._keep(lambda part: part.at_ms <= failure.at_ms)
        if self._keep(lambda part: not isinstance(part, Arrival) or part.jobs[0].name == failure.job):
            return
        for hours in (0.1, 0.5, 1):
            since_ms = failure.at_ms - hours * 3_600_000
            if self._keep(lambda part, since_ms=since_ms: part.at_ms >= since_ms):  # type: ignore[misc]
                return

    def _leave_out_kinds(self) -> None:
        self._keep(lambda part: not isinstance(part, Deed))
        self._keep(lambda part: not isinstance(part, Fault))
        kinds = {part.kind for part in self._scenario.entries if isinstance(part, (Fault, Deed))}
        for kind in sorted(kinds):
            self._keep(lambda part, kind=kind: isinstance(part, Arrival) or part.kind != kind)  # type: ignore[misc]

    def _leave_out_parts(self) -> None:
        """Halves, quarters, ... single parts."""
        parts = _parts(self._scenario.entries)
        chunk = max(1, len(parts) // 2)
        while parts and not self._out_of_time:
            start = 0
            while start < len(parts) and not self._out_of_time:
                left = parts[:start] + parts[start + chunk :]
                if self._try(_without(self._scenario, left)):
                    parts = left
                else:
                    start += chunk
            if chunk == 1:
                return
            chunk //= 2

    def _simplify(self) -> None:
        for scenario in _simpler(self._scenario):
            if self._out_of_time:
                return
            self._try(scenario)
        for index in range(len(self._scenario.entries)):
            for entry in _simpler_entry(self._scenario.entries[index]):
                entries = list(self._scenario.entries)
                entries[index] = entry
                self._try(replace(self._scenario, entries=tuple(entries)))


def _staged(scenario: Scenario, scenes: Sequence[Scene], end_ms: int, before_ms: int) -> Scenario | None:
    """Only what was going on at the end, as if it had just begun, and only what happened ``before_ms`` before it or later."""
    if not scenes:
        return None
    begin_ms = max(0, min(scene.since_ms for scene in scenes) - before_ms)
    jobs = {job.name: job for entry in scenario.entries if isinstance(entry, Arrival) for job in entry.jobs}
    parts: list[Part] = []
    for scene in scenes:
        job = jobs[scene.job]
        plans = job.plans[min(scene.fence, len(job.plans)) - 1 :]
        parts.append(Arrival(at_ms=scene.since_ms, jobs=(replace(job, plans=plans, after=()),)))
    parts += [
        entry for entry in scenario.entries if not isinstance(entry, Arrival) and begin_ms <= entry.at_ms <= end_ms
    ]
    parts.sort(key=lambda part: part.at_ms)
    return _without(scenario, [replace(part, at_ms=max(0, part.at_ms - begin_ms)) for part in parts])


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
