"""Draws tasks that fit the settings, and how their agents behave."""

from __future__ import annotations

from collections.abc import Sequence

from interlock.domain.run import Route
from interlock.domain.settings import MINUTE, SECOND, Mode, Settings
from interlock.domain.task import Task
from interlock.testing.simulation.chances import chance_of
from interlock.testing.simulation.scenario import Conduct, Job, Mishap, Plan

START_MS = 1_700_000_000_000
"""When simulations begin: Unix milliseconds."""

_BAD = (
    Conduct.FAIL,
    Conduct.FAIL,
    Conduct.FAIL,
    Conduct.FAIL_FOR_GOOD,
    Conduct.DEFER,
    Conduct.ASK,
    Conduct.HANG,
    Conduct.VANISH,
    Conduct.VANISH,
    Conduct.BABBLE,
)


class Workshop:
    """Makes jobs for one scenario. ``mean_ms``: how long an attempt works on average, so that limits are half used."""

    def __init__(
        self, settings: Settings, routes: Sequence[Route], seed: int, *, span_ms: int, runs: int, mischief: float
    ) -> None:
        self._pull = settings.mode is Mode.PULL
        self._chance = chance_of(seed, "jobs")
        self._mischief = mischief
        limits = settings.limits
        longest = max(10 * SECOND, settings.timeout_ms // 2)
        wanted = 0.5 * max(1, limits.total) * span_ms / max(1, runs)
        self.mean_ms = int(min(max(wanted, 5 * SECOND), longest, 30 * MINUTE))
        self._projects = [*limits.per_project, "elsewhere"]
        self._trackers = [*limits.per_tracker, "other"]
        self._roles = sorted({*limits.per_role, *settings.roles})
        self._tags = [*limits.per_tag, "free"]
        self._agents = sorted({*settings.agents})
        self._types = [route.workflow_type for route in routes]

    def jobs(self, count: int, at_ms: int) -> tuple[Job, ...]:
        """``count`` jobs that arrive at ``at_ms``, without names."""
        return tuple(self._job(at_ms) for _ in range(count))

    def _job(self, at_ms: int) -> Job:
        chance = self._chance
        rolled = chance.random()
        task = Task(
            title="",
            priority=chance.choice((0, 0, 0, -1, 2, 5)),
            project=self._maybe(0.6, self._projects),
            tracker=self._maybe(0.3, self._trackers),
            role=self._maybe(0.3, self._roles),
            type=self._maybe(0.3, self._types),
            agent=self._maybe(0.2, self._agents),
            tags=tuple(sorted(set(chance.sample(self._tags, min(len(self._tags), chance.choice((0, 0, 1, 2))))))),
            unique=f"u{chance.randrange(5)}" if rolled < 0.02 else None,
            timeout_ms=2 * self.mean_ms if 0.02 <= rolled < 0.02 + 0.2 * self._mischief else None,
            stall_ms=max(20_000, self.mean_ms // 2) if 0.1 <= rolled < 0.15 else None,
            not_before_ms=START_MS + at_ms + 5 * self.mean_ms if 0.15 <= rolled < 0.2 else None,
        )
        if chance.random() >= self._mischief:
            return Job(task=task, plans=(self._work(),))
        plans = [self._bad_plan() for _ in range(chance.choice((1, 1, 2, 3)))]
        # Most come round in the end; some never do. What costs a run nothing has an end, or the play had none.
        last = plans[-1]
        endless = (
            last.conduct is Conduct.ASK or last.mishap is not None or (self._pull and last.conduct is Conduct.BABBLE)
        )
        if endless or chance.random() < 0.8:
            plans.append(self._work())
        return Job(task=task, plans=tuple(plans), answer_ms=chance.choice((SECOND, 10 * MINUTE, 60 * MINUTE)))

    def _maybe(self, share: float, names: Sequence[str]) -> str | None:
        return self._chance.choice(names) if names and self._chance.random() < share else None

    def _length(self) -> int:
        chance = self._chance
        if chance.random() < 0.05:
            return chance.choice((1, 50, 1000))
        return max(1, int(self.mean_ms * min(4.0, chance.expovariate(1.0))))

    def _work(self) -> Plan:
        return Plan(ms=self._length())

    def _bad_plan(self) -> Plan:
        chance = self._chance
        conduct = chance.choice(_BAD) if chance.random() < 0.7 else Conduct.DONE
        rolled = chance.random()
        return Plan(
            conduct=conduct,
            ms=self._length(),
            launch_ms=chance.choice((0, 0, 20, 3000)),
            mishap=chance.choice(list(Mishap)) if rolled < 0.1 and not self._pull else None,
            deaf=0.1 <= rolled < 0.25,
            stone=chance.choice((1, 3)) if 0.25 <= rolled < 0.3 else 0,
            brood_ms=2 * self.mean_ms if 0.3 <= rolled < 0.4 else 0,
            quiet=0.4 <= rolled < 0.5,
            riddle=chance.choice((1, 4)) if 0.5 <= rolled < 0.6 else 0,
        )
