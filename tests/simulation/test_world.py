"""The world of paper: clocks, trees and the disk do what the real ones do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from interlock.domain.errors import Unavailable
from interlock.domain.states import RunEvent, StopKind
from interlock.ports.runtime import Alive, Ended, NeverStarted, TreeSurvives, Unknown
from interlock.testing.simulation.disk import Client, ClientStore, Disk
from interlock.testing.simulation.fates import fate_fits
from interlock.testing.simulation.machine import KILLED, TERM, Machine, SimulatedClock, Tree
from interlock.testing.simulation.paper import PaperHandle, PaperRuntime
from interlock.testing.simulation.scenario import Conduct, Plan


def under_a_mock_clock(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))


def a_machine() -> tuple[Machine, list[str]]:
    told: list[str] = []
    return Machine(lambda rule, _what, _run: told.append(rule)), told


def test_a_clock_follows_a_step_only_when_it_is_anchored_anew() -> None:
    async def test() -> None:
        machine, _ = a_machine()
        clock = SimulatedClock(machine)
        before = clock.now_ms()
        machine.step(-3_600_000)
        assert (clock.now_ms(), clock.step_ms()) == (before, -3_600_000)
        clock.reanchor()
        assert (clock.now_ms(), clock.step_ms()) == (before - 3_600_000, 0)
        boot = clock.epoch()
        machine.suspend(60_000)
        assert clock.now_ms() == before - 3_600_000 + 60_000
        assert clock.epoch() == boot, "a suspend sets no clock"
        wall = machine.wall_ms()
        machine.power_cut()
        assert SimulatedClock(machine).epoch()[0] != boot[0]
        assert (machine.boot_ms(), machine.wall_ms()) == (0, wall)

    under_a_mock_clock(test)


@pytest.mark.parametrize(
    ("plan", "status", "seconds"),
    [(Plan(conduct=Conduct.HANG), TERM, 0.2), (Plan(conduct=Conduct.HANG, deaf=True), KILLED, 5.2)],
)
def test_a_tree_is_stopped_with_time_to_end(plan: Plan, status: int, seconds: float, tmp_path: Path) -> None:
    async def test() -> None:
        machine, _ = a_machine()
        handle = PaperHandle(machine, machine.spawn(1, 1, plan, tmp_path))
        began = trio.current_time()
        await handle.stop(5000)
        assert trio.current_time() - began == pytest.approx(seconds)
        assert (await handle.wait()).exit_status == status

    under_a_mock_clock(test)


def test_a_stone_survives_and_is_gone_at_last(tmp_path: Path) -> None:
    async def test() -> None:
        machine, _ = a_machine()
        handle = PaperHandle(machine, machine.spawn(1, 1, Plan(conduct=Conduct.HANG, stone=1), tmp_path))
        with pytest.raises(TreeSurvives):
            await handle.stop(1000)
        await handle.stop(1000)
        assert machine.tree_of(1) is None

    under_a_mock_clock(test)


def test_two_trees_of_a_run_are_told(tmp_path: Path) -> None:
    async def test() -> None:
        machine, told = a_machine()
        machine.spawn(1, 1, Plan(ms=1000), tmp_path)
        machine.spawn(2, 1, Plan(ms=1000), tmp_path)
        await trio.sleep(2)
        machine.spawn(1, 2, Plan(ms=1000), tmp_path)
        assert told == []
        machine.spawn(1, 3, Plan(ms=1000), tmp_path)
        assert told == ["one_live_tree"]

    under_a_mock_clock(test)


def test_what_was_left_behind_is_found_again(tmp_path: Path) -> None:
    async def test() -> None:
        machine, _ = a_machine()
        runtime = PaperRuntime(machine, lambda _run, _fence: Plan(), {}, lambda: True)
        folder = tmp_path / "7.2.abc"
        folder.mkdir()
        assert isinstance(await runtime.recover(tmp_path / "7.1.abc"), NeverStarted)
        assert isinstance(await runtime.recover(tmp_path / "7.1.abc", started=True), Ended)
        machine.spawn(7, 2, Plan(ms=10_000, riddle=1, brood_ms=10_000), folder)
        assert isinstance(await runtime.recover(folder), Unknown)
        assert isinstance(await runtime.recover(folder), Alive)
        await trio.sleep(15)
        assert isinstance(await runtime.recover(folder), Alive), "what it left behind is alive"
        await trio.sleep(10)
        found = await runtime.recover(folder)
        assert isinstance(found, Ended)
        assert found.ending.exit_status == 0

    under_a_mock_clock(test)


def test_a_full_disk_refuses_by_itself_and_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        disk = Disk(tmp_path, Random(1), lambda _: None, lambda: None)
        store = ClientStore(disk, Client("somebody"))
        disk.fill()

        async def fill() -> None:
            for number in range(1000):
                await store.write(lambda tx, number=number: tx.set_meta(f"key{number}", "x" * 1000))  # type: ignore[misc]

        with pytest.raises(Unavailable, match="the disk is full"):
            await fill()
        disk.empty()
        await fill()
        disk.close()

    under_a_mock_clock(test)


def test_a_killed_process_hears_of_nothing_any_more(tmp_path: Path) -> None:
    async def test() -> None:
        disk = Disk(tmp_path, Random(1), lambda _: None, lambda: None)
        client = Client("somebody")
        store = ClientStore(disk, client)
        disk.slow = 1
        answered: list[int] = []

        async def write() -> None:
            answered.append(await store.write(lambda _: 1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            client.dead = True
            for crossing in list(client.crossings):
                crossing.cancel()
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        assert answered == []
        disk.close()

    under_a_mock_clock(test)


@pytest.mark.parametrize(
    ("plan", "stop", "event", "fits"),
    [
        (None, None, RunEvent.WITHDRAW, True),
        (None, None, RunEvent.COMPLETE, False),
        (Plan(), None, RunEvent.COMPLETE, True),
        (Plan(), None, RunEvent.RELEASE, False),
        (Plan(), StopKind.CANCEL, RunEvent.COMPLETE, True),
        (Plan(), StopKind.CANCEL, RunEvent.RETRY, False),
        (Plan(conduct=Conduct.VANISH), None, RunEvent.RELEASE, True),
        (Plan(conduct=Conduct.VANISH), None, RunEvent.COMPLETE, False),
        (Plan(conduct=Conduct.FAIL), StopKind.TIMEOUT, RunEvent.TIME_OUT, True),
        (Plan(conduct=Conduct.FAIL), StopKind.TIMEOUT, RunEvent.COMPLETE, False),
    ],
)
def test_what_may_become_of_a_run(
    plan: Plan | None, stop: StopKind | None, event: RunEvent, fits: bool, tmp_path: Path
) -> None:
    async def test() -> None:
        machine, _ = a_machine()
        tree: Tree | None = None if plan is None else machine.spawn(1, 1, plan, tmp_path)
        assert (fate_fits(tree, stop, event) is None) is fits

    under_a_mock_clock(test)


def test_a_signal_that_nobody_asked_for_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        machine, _ = a_machine()
        tree = machine.spawn(1, 1, Plan(), tmp_path)
        tree.strike(TERM)
        assert "a signal (15) that nobody asked for" in (fate_fits(tree, None, RunEvent.RETRY) or "")

    under_a_mock_clock(test)
