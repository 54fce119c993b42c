"""What the model takes for granted about the code around the commands that it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from interlock.domain.run import Claim
from interlock.domain.settings import Agent, Mode, Settings
from interlock.domain.states import RunState
from interlock.domain.task import Task
from interlock.service import Service
from interlock.store.sqlite import SqliteStore

DAY_MS = 86_400_000
THRESHOLD_MS = 12_000


class ClockSetByHand:
    """Time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.now

    def step_ms(self) -> int:
        return 0

    def epoch(self) -> tuple[str, int]:
        return "boot", 0

    def reanchor(self) -> None:
        """Nothing to follow."""

    async def sleep_until(self, at_ms: int) -> None:
        self.now = max(self.now, at_ms)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path, create=True, inline=True)
    yield opened
    opened.close()


async def _claimed(service: Service) -> Claim:
    run = (await service.submit(Task(title="t"))).run
    await service.dispatch(owner="d0")
    await service.offers(holder="x")
    return await service.claim(run, holder="x")


@pytest.mark.parametrize(
    "catches_up_first", [True, False], ids=["asleep before it catches up", "asleep between catching up and reaping"]
)
def test_the_reaper_takes_nothing_for_time_in_which_nobody_was_awake(
    store: SqliteStore, catches_up_first: bool
) -> None:
    """Rule REAP_AT_ONCE, which every world but one takes for granted."""
    assert trio.run(_state_after_a_night, store, catches_up_first) is RunState.CLAIMED


async def _state_after_a_night(store: SqliteStore, catches_up_first: bool) -> RunState:
    clock = ClockSetByHand()
    settings = Settings(mode=Mode.PULL, agents={"a": Agent(name="a", command="true")}, default_agent="a")
    service = Service(store, clock, settings)
    claim = await _claimed(service)
    await service.catch_up(THRESHOLD_MS)
    clock.now += DAY_MS
    if catches_up_first:
        await service.catch_up(THRESHOLD_MS)
    await service.reap()
    return (await service.get(claim.run)).state
