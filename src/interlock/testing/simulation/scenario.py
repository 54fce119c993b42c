"""A scenario: everything that will happen to a simulated Interlock from outside, as values that can be kept in a file.

A scenario is drawn from a seed (:mod:`interlock.testing.simulation.drawing`) and played
(:mod:`interlock.testing.simulation.playing`). It names what comes from outside and when: tasks and how their agents will
behave, faults, and what people do. What Interlock makes of it is the story. All times are milliseconds since the beginning
of the simulation, on a clock that nobody sets.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from interlock.domain.run import Route
from interlock.domain.settings import Settings
from interlock.domain.task import Task


class Conduct(StrEnum):
    """What an agent does with its attempt."""

    DONE = "done"
    FAIL = "fail"
    FAIL_FOR_GOOD = "fail_for_good"
    DEFER = "defer"
    ASK = "ask"
    HANG = "hang"
    VANISH = "vanish"
    BABBLE = "babble"


class Mishap(StrEnum):
    """What goes wrong around the start of an agent."""

    BEFORE_SPAWN = "before_spawn"
    AFTER_SPAWN = "after_spawn"


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt as its agent will live it.

    ``ms``: how long it works (``hang``: for ever). ``launch_ms``: how long the system takes to start it. ``mishap``: the launch
    raises an error that proves nothing. ``deaf``: it ignores TERM. ``stone``: how many times stopping it fails although
    KILL was sent. ``brood_ms``: how long processes that it left behind outlive it. ``quiet``: no sign of life while it works.
    ``riddle``: how many times nobody can tell whether it lives when it is looked for after a restart.
    """

    conduct: Conduct = Conduct.DONE
    ms: int = 60_000
    launch_ms: int = 0
    mishap: Mishap | None = None
    deaf: bool = False
    stone: int = 0
    brood_ms: int = 0
    quiet: bool = False
    riddle: int = 0


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task, and how its agents behave: a plan for each attempt, the last one for all further ones. ``task.id`` is its name.

    ``after``: names of tasks of earlier arrivals that it needs; those that never came are passed over. ``answer_ms``: how long a
    person takes to answer its questions.
    """

    task: Task
    plans: tuple[Plan, ...] = (Plan(),)
    after: tuple[str, ...] = ()
    held: bool = False
    answer_ms: int = 600_000

    @property
    def name(self) -> str:
        """How deeds refer to it."""
        assert self.task.id is not None
        return self.task.id


class Arrival(msgspec.Struct, frozen=True, kw_only=True, tag="arrival"):
    """Tasks that are submitted in one call."""

    at_ms: int
    jobs: tuple[Job, ...]


class FaultKind(StrEnum):
    """What goes wrong."""

    KILL = "kill"
    FREEZE = "freeze"
    POWER_CUT = "power_cut"
    SUSPEND = "suspend"
    CLOCK_STEP = "clock_step"
    DISK_FULL = "disk_full"
    OUTAGE = "outage"
    SLOW_DISK = "slow_disk"
    DEAFNESS = "deafness"
    BROKEN_AGENT = "broken_agent"
    LOW_MEMORY = "low_memory"


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="fault"):
    """Something goes wrong at ``at_ms``, for ``ms`` milliseconds.

    ``who``: which dispatcher (0, 1, ...), for kill and freeze. ``agent``: which agent cannot be started, and ``seen``: whether a
    look without starting it shows that. ``step_ms``: by how much the wall clock is set forward (back, if negative).
    """

    at_ms: int
    kind: FaultKind
    ms: int = 0
    who: int = 0
    step_ms: int = 0
    agent: str | None = None
    seen: bool = True


class DeedKind(StrEnum):
    """What people do."""

    CANCEL = "cancel"
    CLOSE = "close"
    RETRY = "retry"
    HOLD = "hold"
    UNHOLD = "unhold"
    PRIORITY = "priority"
    PAUSE = "pause"
    RESUME = "resume"
    ROUTE = "route"
    LIMIT = "limit"
    DRAIN = "drain"
    STOP = "stop"
    DETACH = "detach"
    PRUNE = "prune"


class Deed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="deed"):
    """Something that a person does.

    ``job``: the name of the task whose newest run it is done to; ``at_work``: not before its agent works.
    ``number``: a priority, or the new total limit. ``ms``: how long
    a dispatcher stays away after it was ended; for ``prune`` how old a run has to be.
    """

    at_ms: int
    kind: DeedKind
    job: str | None = None
    at_work: bool = False
    number: int = 0
    who: int = 0
    ms: int = 0
    route: Route | None = None


Entry = Arrival | Fault | Deed


class Scenario(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What will happen, in order. ``seed``: chance in everything that the scenario leaves open (order of tasks, ids, jitter).

    ``hours`` is how long faults and deeds go on at most; the play ends when everything has come to its end.
    """

    seed: int
    settings: Settings
    hours: float
    dispatchers: int = 1
    pullers: int = 0
    routes: tuple[Route, ...] = ()
    entries: tuple[Entry, ...] = ()

    @property
    def jobs(self) -> int:
        """How many tasks arrive."""
        return sum(len(entry.jobs) for entry in self.entries if isinstance(entry, Arrival))


def encode(scenario: Scenario) -> bytes:
    """A scenario as JSON."""
    return msgspec.json.encode(scenario, order="deterministic")


def decode(data: bytes) -> Scenario:
    """A scenario from JSON. Raises :class:`msgspec.DecodeError` when it is none."""
    return msgspec.json.decode(data, type=Scenario)
