"""What one process knows by itself: its actors and its brakes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from interlock.actors.tracker import Tracker

MIB = 1024 * 1024


def actor(number: int, holder: str = "worker/1.1") -> Any:
    return SimpleNamespace(run=SimpleNamespace(number=number), claim=SimpleNamespace(holder=holder))


async def test_empty_waits_for_the_last_actor(autojump_clock: Any) -> None:
    tracker = Tracker(0, lambda: None)
    with trio.fail_after(1):
        await tracker.empty()
    first, second = actor(1), actor(2)
    tracker.add(first)
    tracker.add(second)

    async def leave() -> None:
        await trio.sleep(1)
        tracker.remove(first)
        await trio.sleep(1)
        tracker.remove(second)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        await tracker.empty()
        assert trio.current_time() == 2


async def test_empty_is_not_fooled_by_one_that_comes_as_the_last_goes(autojump_clock: Any) -> None:
    tracker = Tracker(0, lambda: None)
    first, second = actor(1), actor(2)
    tracker.add(first)

    async def replace() -> None:
        await trio.sleep(1)
        tracker.remove(first)
        tracker.add(second)
        await trio.sleep(1)
        tracker.remove(second)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(replace)
        await tracker.empty()
        assert trio.current_time() == 2


def test_an_actor_that_was_replaced_does_not_remove_its_successor() -> None:
    tracker = Tracker(0, lambda: None)
    old, new = actor(1), actor(1)
    tracker.add(old)
    tracker.add(new)
    tracker.remove(old)
    assert tracker.actors == {1: new}


def test_the_memory_floor() -> None:
    free: list[int | None] = [99 * MIB]
    tracker = Tracker(100 * MIB, lambda: free[0])
    assert tracker.hold_reason() == "memory: 99 MiB are free, under the floor of 100 MiB"
    for enough in (100 * MIB, None):
        free[0] = enough
        assert tracker.hold_reason() is None
    assert Tracker(0, lambda: 0).hold_reason() is None


def test_outages_hold_until_the_last_is_over() -> None:
    tracker = Tracker(0, lambda: None)
    tracker.outage("vigil", "the disk is full")
    tracker.outage("ears", "the disk is full")
    tracker.outage("vigil", None)
    assert tracker.hold_reason() == "store: the disk is full"
    tracker.outage("ears", None)
    tracker.outage("never", None)
    assert tracker.hold_reason() is None
