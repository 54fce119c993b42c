"""What a play showed: counts, the event log's fingerprint, and what was wrong, if anything."""

from __future__ import annotations

import msgspec

from interlock.testing.simulation.scenario import Scenario


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was at work when a rule was broken: the name of its task, and its attempt with the time when that began."""

    job: str
    fence: int
    since_ms: int


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that was broken. ``rule`` is a stable name, ``what`` a sentence, ``at_ms`` since the beginning of the simulation.

    ``run``: its number, ``job``: the name of its task; ``scenes``: what was going on; ``log``: the last lines of what happened
    before (its events, faults, deeds), one sentence each.
    """

    rule: str
    what: str
    at_ms: int
    run: int | None = None
    job: str | None = None
    scenes: tuple[Scene, ...] = ()
    log: tuple[str, ...] = ()


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation, from its beginning to its end.

    ``events``: lines of the event log by kind; ``faults``, ``deeds``, ``conducts``: what was done to Interlock, by kind;
    ``ends``: runs by the state in which they ended; ``left``: runs that had not ended, and ``waits``: what `why` says of
    them, by kind; ``checks``: how many times a rule was looked at. ``digest``: SHA-256 of the event log in its canonical form
    (hexadecimal); ``simulated_ms``: how long it took on the simulated clock.
    """

    scenario: Scenario
    failure: Failure | None
    digest: str
    events: dict[str, int]
    faults: dict[str, int]
    deeds: dict[str, int]
    conducts: dict[str, int]
    ends: dict[str, int]
    left: int
    waits: dict[str, int]
    checks: int
    simulated_ms: int

    @property
    def ok(self) -> bool:
        """Whether every rule held."""
        return self.failure is None
