"""The clocks: wall time that does not jump, and one that stands still until a test moves it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio

from interlock.store.clock import SystemClock, TrioClock


class Hands:
    """The system's two clocks, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.boot, self.wall = 5_000, 1_700_000_000_000
        monkeypatch.setattr(SystemClock, "_boot_ns", staticmethod(lambda: self.boot * 1_000_000))
        monkeypatch.setattr(SystemClock, "_wall_ns", staticmethod(lambda: self.wall * 1_000_000))

    def pass_time(self, ms: int) -> None:
        """Both go on."""
        self.boot += ms
        self.wall += ms


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    """Two clocks."""
    return Hands(monkeypatch)


def test_it_tells_the_time() -> None:
    clock = SystemClock()
    before = time.time_ns() // 1_000_000
    assert abs(clock.now_ms() - before) < 10_000
    assert abs(clock.step_ms()) < 1_000


def test_it_never_goes_back() -> None:
    clock = SystemClock()
    seen = [clock.now_ms() for _ in range(1000)]
    assert seen == sorted(seen)


def test_it_knows_which_boot_it_is() -> None:
    boot, offset = SystemClock().epoch()
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert abs(offset - (time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1_000_000) < 1_000


def test_a_step_of_the_wall_clock_is_seen_but_not_followed(hands: Hands) -> None:
    clock = SystemClock()
    assert (clock.now_ms(), clock.step_ms()) == (hands.wall, 0)
    hands.pass_time(1_000)
    told, epoch = hands.wall, clock.epoch()
    hands.wall += 3_600_000
    assert (clock.now_ms(), clock.step_ms()) == (told, 3_600_000)
    hands.wall -= 7_200_000
    assert (clock.now_ms(), clock.step_ms()) == (told, -3_600_000)
    assert clock.epoch() == (epoch[0], epoch[1] - 3_600_000)
    clock.reanchor()
    assert (clock.now_ms(), clock.step_ms()) == (hands.wall, 0)


def test_a_suspend_counts(hands: Hands) -> None:
    clock = SystemClock()
    before, epoch = clock.now_ms(), clock.epoch()
    hands.pass_time(86_400_000)
    assert clock.now_ms() == before + 86_400_000
    assert clock.step_ms() == 0
    assert clock.epoch() == epoch


async def test_it_sleeps_until_a_time_in_pieces(hands: Hands, autojump_clock: trio.testing.MockClock) -> None:
    clock = SystemClock()
    until = clock.now_ms() + 600_000
    start = trio.current_time()
    async with trio.open_nursery() as nursery:

        async def move() -> None:
            while True:
                await trio.sleep(1)
                hands.pass_time(1_000)

        nursery.start_soon(move)
        await clock.sleep_until(until)
        assert 600 <= trio.current_time() - start <= 661
        assert clock.now_ms() >= until
        nursery.cancel_scope.cancel()


async def test_a_suspend_shortens_what_is_left_to_sleep(hands: Hands, autojump_clock: trio.testing.MockClock) -> None:
    clock = SystemClock()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clock.sleep_until, clock.now_ms() + 36_000_000)
        await trio.sleep(1)
        hands.pass_time(36_000_000)  # trio's own clock stood still meanwhile
    assert trio.current_time() < autojump_clock.current_time() + 61


@pytest.mark.parametrize("past", [0, 1, 10**12])
async def test_what_is_past_is_not_waited_for(past: int) -> None:
    for clock in (SystemClock(), TrioClock()):
        with trio.fail_after(5):
            await clock.sleep_until(clock.now_ms() - past)


async def test_trios_clock_moves_with_the_loop(autojump_clock: trio.testing.MockClock) -> None:
    clock = TrioClock(start_ms=1_000)
    start = clock.now_ms()
    await clock.sleep_until(start + 90_061)
    assert start + 90_061 <= clock.now_ms() <= start + 90_062
    assert (clock.step_ms(), clock.epoch()) == (0, ("trio", 0))
    clock.reanchor()
    assert clock.now_ms() >= start + 90_061
