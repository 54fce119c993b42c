"""Loops that crash, and stores that cannot serve."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio

from interlock.actors.supervision import CRASHES, WITHIN_SECONDS, keep_running, persist
from interlock.domain.errors import Unavailable


async def test_a_crashed_loop_is_started_again_after_a_growing_wait(autojump_clock: Any) -> None:
    starts: list[float] = []

    async def loop() -> None:
        starts.append(trio.current_time())
        if len(starts) < CRASHES:
            raise RuntimeError("a bug")

    await keep_running("loop", loop)
    waits = [after - before for before, after in itertools.pairwise(starts)]
    assert len(starts) == CRASHES
    assert [round(wait, 3) for wait in waits] == sorted(round(wait, 3) for wait in waits)
    assert waits[0] >= 0.1
    assert waits[-1] > waits[0]


async def test_a_crash_loop_ends_with_the_error(autojump_clock: Any) -> None:
    count = 0

    async def loop() -> None:
        nonlocal count
        count += 1
        raise RuntimeError(f"bug {count}")

    with pytest.raises(RuntimeError, match=f"bug {CRASHES}"):
        await keep_running("loop", loop)
    assert trio.current_time() < WITHIN_SECONDS


async def test_rare_crashes_never_end_it(autojump_clock: Any) -> None:
    count = 0

    async def loop() -> None:
        nonlocal count
        count += 1
        await trio.sleep(WITHIN_SECONDS)
        if count < 4 * CRASHES:
            raise RuntimeError("now and then")

    await keep_running("loop", loop)
    assert count == 4 * CRASHES


async def test_an_outage_is_no_crash_and_is_told(autojump_clock: Any) -> None:
    told: list[str | None] = []
    starts: list[float] = []

    async def loop() -> None:
        starts.append(trio.current_time())
        if len(starts) <= 10 * CRASHES:
            raise Unavailable("the disk is full")

    await keep_running("loop", loop, outage=told.append)
    assert len(starts) == 10 * CRASHES + 1
    assert told[:2] == ["the disk is full", None]
    assert told[-1] is None
    waits = [after - before for before, after in itertools.pairwise(starts)]
    assert waits[0] < 1
    assert max(waits) <= 10.001


async def test_a_short_outage_after_a_long_quiet_is_met_with_a_short_wait(autojump_clock: Any) -> None:
    ends: list[float] = []
    begins: list[float] = []

    async def loop() -> None:
        begins.append(trio.current_time())
        if len(begins) > 8:
            if len(begins) == 10:
                return
            await trio.sleep(10 * WITHIN_SECONDS)
        ends.append(trio.current_time())
        raise Unavailable("busy")

    await keep_running("loop", loop)
    assert begins[9] - ends[8] < 1


async def test_a_cancelled_loop_is_not_started_again(autojump_clock: Any) -> None:
    count = 0

    async def loop() -> None:
        nonlocal count
        count += 1
        await trio.sleep_forever()

    with trio.move_on_after(100) as scope:
        await keep_running("loop", loop)
    assert scope.cancelled_caught
    assert count == 1


async def test_persist_repeats_until_the_store_serves(autojump_clock: Any) -> None:
    tries: list[float] = []

    async def act() -> None:
        tries.append(trio.current_time())
        if len(tries) <= 20:
            raise Unavailable("busy")

    await persist("it", act)
    waits = [after - before for before, after in itertools.pairwise(tries)]
    assert max(waits) <= 10.001
    assert [round(wait, 3) for wait in waits] == sorted(round(wait, 3) for wait in waits)


async def test_persist_lets_everything_else_out(autojump_clock: Any) -> None:
    async def act() -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        await persist("it", act)


async def test_an_outage_is_over_when_a_write_has_gone_through(autojump_clock: Any) -> None:
    told: list[str | None] = []
    tries = 0

    async def loop() -> None:
        if not tries:
            raise Unavailable("the disk is full")

    async def probe() -> None:
        nonlocal tries
        assert told == ["the disk is full"], "not said to be over before it is"
        tries += 1
        if tries < 4:
            raise Unavailable("still full")

    await keep_running("loop", loop, outage=told.append, probe=probe)
    assert (told, tries) == (["the disk is full", None], 4)
