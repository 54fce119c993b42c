"""The machine that everything runs on: its clocks, its boot, its agents' process trees. It outlives every dispatcher.

Three clocks, as on Linux. What trio tells is CLOCK_MONOTONIC: agents work by it, and it stands still in a suspend. CLOCK_BOOTTIME
is that plus all suspends. The wall clock is CLOCK_BOOTTIME plus an offset, which people and NTP set.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

from interlock.domain.run import ProcessIdentity
from interlock.testing.simulation.drawing_jobs import START_MS
from interlock.testing.simulation.scenario import Conduct, Plan

TERM = 143
KILLED = 137
_STATUS = {
    Conduct.DONE: 0,
    Conduct.FAIL: 1,
    Conduct.FAIL_FOR_GOOD: 2,
    Conduct.DEFER: 75,
    Conduct.ASK: 0,
    Conduct.BABBLE: 0,
    Conduct.VANISH: None,
}


class Tree:
    """The process tree of one attempt. Its life is laid down when it starts; stopping it shortens that life.

    ``ends_at``: when the agent itself ends (trio's time, seconds), None: never by itself. ``gone_at``: when the last process of the
    tree ends. ``status``: what its exit file says, None: there is none. ``of_itself``: whether nobody had a hand in its end.
    """

    def __init__(self, run: int, fence: int, plan: Plan, folder: Path, identity: ProcessIdentity) -> None:
        now = trio.current_time()
        self.run = run
        self.fence = fence
        self.plan = plan
        self.folder = folder
        self.identity = identity
        self.started_at = now
        self.ends_at = None if plan.conduct is Conduct.HANG else now + plan.ms / 1000
        self.gone_at = None if self.ends_at is None else self.ends_at + plan.brood_ms / 1000
        self.status: int | None = _STATUS.get(plan.conduct)
        self.of_itself = True
        self.stones = plan.stone
        self.riddles = plan.riddle
        self.written = False
        self.changed = trio.Event()

    @property
    def ended(self) -> bool:
        """Whether the agent itself has ended."""
        return self.ends_at is not None and self.ends_at <= trio.current_time()

    @property
    def alive(self) -> bool:
        """Whether any of its processes lives."""
        return self.gone_at is None or self.gone_at > trio.current_time()

    def strike(self, status: int | None, *, after_seconds: float = 0.0) -> None:
        """End the whole tree by a signal, soon."""
        at = trio.current_time() + after_seconds
        if self.ends_at is None or self.ends_at > at:
            self.ends_at, self.status, self.of_itself = at, status, False
        if self.gone_at is None or self.gone_at > at:
            self.gone_at = max(at, self.ends_at)
        changed, self.changed = self.changed, trio.Event()
        changed.set()


class Machine:
    """Clocks, boots and trees. ``broken`` is told of two trees at once. Processes look at it by :class:`SimulatedClock`."""

    def __init__(self, broken: Callable[[str, str, int], None]) -> None:
        self._broken = broken
        self._began = trio.current_time()
        self._boots = 1
        self._pids = 100
        self._ahead_ms = 0
        self._offset_ms = START_MS
        self.trees: dict[tuple[int, int], Tree] = {}
        self.live: dict[int, Tree] = {}
        self._fences: dict[int, list[int]] = {}
        self.void: set[Path] = set()

    # clocks

    def elapsed_ms(self) -> int:
        """Since the beginning, on the clock that nobody sets and nothing stops (the scenario's)."""
        return round((trio.current_time() - self._began) * 1000)

    def boot_ms(self) -> int:
        """CLOCK_BOOTTIME."""
        return self.elapsed_ms() + self._ahead_ms

    def wall_ms(self) -> int:
        """The system's wall clock."""
        return self.boot_ms() + self._offset_ms

    def wall_at(self, seconds: float) -> float:
        """What the wall clock would call a moment of trio's time, in seconds."""
        return (self.wall_ms() + (seconds - trio.current_time()) * 1000) / 1000

    @property
    def boot_id(self) -> str:
        """Changes with every boot."""
        return f"boot-{self._boots}"

    def step(self, by_ms: int) -> None:
        """Somebody sets the wall clock."""
        self._offset_ms += by_ms

    def suspend(self, for_ms: int) -> None:
        """The lid is closed and opened again: nobody noticed anything but the clocks."""
        self._ahead_ms += for_ms

    def new_pid(self) -> int:
        """A pid that was not used before."""
        self._pids += 1
        return self._pids

    # trees

    def tree_of(self, run: int) -> Tree | None:
        """The live tree of a run."""
        tree = self.live.get(run)
        if tree is not None and not tree.alive:
            del self.live[run]
            return None
        return tree

    def spawn(self, run: int, fence: int, plan: Plan, folder: Path) -> Tree:
        """Start a tree."""
        other = self.tree_of(run)
        if other is not None:
            what = f"attempt {fence} of run #{run} was started while the agent of attempt {other.fence} was alive"
            self._broken("one_live_tree", what, run)
        identity = ProcessIdentity(
            boot_id=self.boot_id, pid_namespace="paper", pid=self.new_pid(), start_ticks=self.boot_ms()
        )
        tree = Tree(run, fence, plan, folder, identity)
        self.trees[run, fence] = self.live[run] = tree
        self._fences.setdefault(run, []).append(fence)
        return tree

    def power_cut(self) -> None:
        """Every process ends without a word, and the machine boots again."""
        for tree in list(self.live.values()):
            if tree.alive:
                tree.strike(None)
            # Of an earlier boot everybody can tell that it is dead.
            tree.riddles = 0
        self.live.clear()
        self._boots += 1
        boot_ms = self.boot_ms()
        self._ahead_ms -= boot_ms
        self._offset_ms += boot_ms

    def forget(self, run: int) -> None:
        """A run was pruned: nobody asks for its attempts any more."""
        for fence in self._fences.pop(run, ()):
            del self.trees[run, fence]


class FreshClock:
    """The clock of processes that live for one call, as commands do: always the wall clock of the moment."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def now_ms(self) -> int:
        """Unix milliseconds."""
        return self._machine.wall_ms()

    def step_ms(self) -> int:
        """It was anchored this moment."""
        return 0

    def epoch(self) -> tuple[str, int]:
        """(boot id, wall clock minus CLOCK_BOOTTIME in ms)."""
        return self._machine.boot_id, self._machine.wall_ms() - self._machine.boot_ms()

    def reanchor(self) -> None:
        """It follows anyway."""

    async def sleep_until(self, at_ms: int) -> None:
        """Return once ``now_ms() >= at_ms``."""
        while (left := at_ms - self.now_ms()) > 0:
            await trio.sleep(min(left, 60_000) / 1000)


class SimulatedClock:
    """A process's view of the machine's clocks: :class:`interlock.ports.clock.Clock`, in the way of the real one."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._boot_id = machine.boot_id
        self._offset_ms = 0
        self.reanchor()

    def now_ms(self) -> int:
        """Unix milliseconds."""
        return self._machine.boot_ms() + self._offset_ms

    def step_ms(self) -> int:
        """How far the wall clock was moved since it was anchored."""
        return self._machine.wall_ms() - self.now_ms()

    def epoch(self) -> tuple[str, int]:
        """(boot id, wall clock minus CLOCK_BOOTTIME in ms)."""
        return self._boot_id, self._machine.wall_ms() - self._machine.boot_ms()

    def reanchor(self) -> None:
        """Follow the wall clock from where it is now."""
        self._offset_ms = self._machine.wall_ms() - self._machine.boot_ms()

    async def sleep_until(self, at_ms: int) -> None:
        """Return once ``now_ms() >= at_ms``. In pieces, since trio's clock stands still in a suspend."""
        while (left := at_ms - self.now_ms()) > 0:
            await trio.sleep(min(left, 60_000) / 1000)
