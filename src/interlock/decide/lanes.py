"""Lanes: the queued runs that share the values of every limited dimension.

Runs of one lane start and wait together, so only the head of a lane has to be looked at. A lane's key holds what can
make two runs differ in *whether* they may start: batch, agent, type and role as they are, project, tracker and tags
only where a limit speaks of that value. Everything else (title, age, ...) decides *which* goes first.
"""

from __future__ import annotations

import msgspec

from interlock.domain.settings import Limits
from interlock.domain.task import Task


class Limited(msgspec.Struct, frozen=True, kw_only=True):
    """The values that limits speak of, sorted: what lane keys depend on beside the task."""

    projects: tuple[str, ...] = ()
    trackers: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


class LaneKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the runs of one lane have in common. ``batch`` is there so that a batch can be dispatched alone."""

    batch: str | None = None
    agent: str | None = None
    type: str | None = None
    role: str | None = None
    project: str | None = None
    tracker: str | None = None
    tags: tuple[str, ...] = ()

    def as_task(self) -> Task:
        """A task that stands for every run of the lane when limits are looked at."""
        return Task(
            title="",
            agent=self.agent,
            type=self.type,
            role=self.role,
            project=self.project,
            tracker=self.tracker,
            tags=self.tags,
        )


def limited(limits: Limits) -> Limited:
    """The values that ``limits`` speak of."""
    return Limited(
        projects=tuple(sorted(limits.per_project)),
        trackers=tuple(sorted(limits.per_tracker)),
        tags=tuple(sorted(limits.per_tag)),
    )


def lane_key(task: Task, batch: str | None, by: Limited) -> LaneKey:
    """The lane of a queued run."""
    return LaneKey(
        batch=batch,
        agent=task.agent,
        type=task.type,
        role=task.role,
        project=task.project if task.project in by.projects else None,
        tracker=task.tracker if task.tracker in by.trackers else None,
        tags=tuple(sorted({tag for tag in task.tags if tag in by.tags})),
    )
