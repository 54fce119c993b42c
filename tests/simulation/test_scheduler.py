"""The seeded scheduler: what trio leaves to chance is drawn, and a process that is stopped does not run."""

from __future__ import annotations

from random import Random

import pytest
import trio
import trio.testing

from interlock.testing.simulation import scheduler
from interlock.testing.simulation.scheduler import (
    PROCESS,
    SchedulerUnknown,
    fair_trio,
    stop_tasks,
    take_over,
    wake_tasks,
)


class Process:
    def __init__(self) -> None:
        self.stopped = False
        self.kept: list[trio.lowlevel.Task] = []


def order_of(seed: int) -> list[int]:
    async def main() -> list[int]:
        take_over(Random(seed))
        seen: list[int] = []

        async def step(number: int) -> None:
            for _ in range(3):
                await trio.lowlevel.checkpoint()
                seen.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(step, number)
        return seen

    with fair_trio():
        return trio.run(main)


def test_the_order_of_tasks_is_drawn_from_the_seed() -> None:
    assert order_of(1) == order_of(1)
    assert len({tuple(order_of(seed)) for seed in range(8)}) > 5


def test_a_stopped_process_does_not_run_and_its_timers_go_on() -> None:
    async def main() -> None:
        take_over(Random(1))
        process, seen = Process(), list[float]()

        async def life() -> None:
            PROCESS.set(process)
            for _ in range(3):
                await trio.sleep(10)
                seen.append(trio.current_time() - began)

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life)
            await trio.sleep(12)
            assert seen == [10]
            stop_tasks(process)
            await trio.sleep(100)
            assert seen == [10], "its timer has expired, and it does not run"
            wake_tasks(process)
            await trio.testing.wait_all_tasks_blocked()
            assert seen == [10, 112]
            await trio.sleep(20)
            assert seen == [10, 112, 122]

    with fair_trio():
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_trio_is_left_as_it_was() -> None:
    module = scheduler._internals()
    before = module["_r"], module["_ALLOW_DETERMINISTIC_SCHEDULING"]
    order_of(1)

    assert (module["_r"], module["_ALLOW_DETERMINISTIC_SCHEDULING"]) == before


def test_another_trio_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(scheduler._internals(), "_r")

    with pytest.raises(SchedulerUnknown, match="the scheduler of trio"), fair_trio():
        raise AssertionError("not reached")
