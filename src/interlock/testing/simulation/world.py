"""The world of a simulation: the machine, the disk, the dispatchers that come and go, and what goes wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import trio

from interlock.actors import Ending
from interlock.domain.settings import Settings
from interlock.testing.simulation.chances import chance_of
from interlock.testing.simulation.disk import Client, Disk
from interlock.testing.simulation.machine import Machine
from interlock.testing.simulation.paper import PaperRuntime
from interlock.testing.simulation.processes import DispatcherProcess
from interlock.testing.simulation.scenario import Arrival, Fault, FaultKind, Plan, Scenario
from interlock.testing.simulation.story import Failure
from interlock.testing.simulation.watching import Tracked, Watcher
from interlock.testing.simulation.words import of_fault

PLENTY_BYTES = 1 << 40
RESTART_SECONDS = (1.0, 60.0)
"""A dispatcher that has ended is started again after so long; after longer when it did not live as long as that."""


class World:
    """Everything that there is. ``asked`` is told of a run that asks a question; ``log`` is given the event log."""

    def __init__(
        self,
        scenario: Scenario,
        folder: Path,
        *,
        asked: Callable[[Tracked], None],
        log: Callable[[bytes], None] | None,
    ) -> None:
        self.scenario = scenario
        self.settings = scenario.settings
        self.folder = folder
        self.failure: Failure | None = None
        self.scope = trio.CancelScope()
        self.machine = Machine(self.broken)
        self.disk = Disk(folder, chance_of(scenario.seed, "disk"), self._committed, self._spins)
        jobs = {job.name: job for entry in scenario.entries if isinstance(entry, Arrival) for job in entry.jobs}
        self.watcher = Watcher(folder, self.machine, jobs, self.broken, asked=asked, log=log)
        self.processes: dict[int, DispatcherProcess] = {}
        self.broken_agents: dict[str, bool] = {}
        self.free_memory = PLENTY_BYTES
        self.closing = False
        self.conducts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._back_at: dict[int, float] = {}
        self._trouble = 0
        self._calm_since = trio.current_time()

    # rules and calm

    def broken(self, rule: str, what: str, run: int | None = None) -> None:
        """A rule was broken: the first time ends the play."""
        if self.failure is None:
            tracked = self.watcher.runs.get(run or 0)
            self.failure = Failure(
                rule=rule,
                what=what,
                at_ms=self.machine.elapsed_ms(),
                run=run,
                job=None if tracked is None else tracked.job.name,
                scenes=self.watcher.scenes(tracked),
                log=tuple(self.watcher.recent),
            )
            self.end()

    def end(self) -> None:
        """Stop everything."""
        for process in self.processes.values():
            process.wake()
        self.scope.cancel()

    def disturbed(self) -> None:
        """From here on it has to be calm anew before anything is expected to have been done."""
        self._calm_since = trio.current_time()

    def calm_seconds(self) -> float:
        """For how long nothing has been wrong, and somebody was there to do what is to be done."""
        processes = list(self.processes.values())
        if self._trouble or any(one.stopped for one in processes) or not any(one.awake for one in processes):
            self.disturbed()
        return trio.current_time() - self._calm_since

    def _committed(self, client: Client) -> None:
        self.watcher.look(client.settings if isinstance(client, DispatcherProcess) else self.settings)

    def _spins(self) -> None:
        self.broken("nothing_spins", "the database is asked thousands of times within seconds")

    def plan_of(self, number: int, fence: int) -> Plan:
        """How the agent of an attempt behaves."""
        plans = self.watcher.runs[number].job.plans
        plan = plans[min(fence, len(plans)) - 1]
        self.conducts[plan.conduct] += 1
        return plan

    # dispatchers

    async def keep(self, who: int) -> None:
        """Run dispatcher ``who``, and start it again whenever it has ended."""
        life = 0
        shortest, longest = RESTART_SECONDS
        pause = shortest
        while not self.closing:
            life += 1
            began = trio.current_time()
            process = self.processes[who] = self._process(who, life)
            self.disturbed()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(process.run)
            except Exception as error:  # noqa: BLE001 - whatever ends a dispatcher is what is looked for
                self.broken("dispatcher_survives", f"dispatcher {who} crashed: {_innermost(error)!r}")
            self.watcher.tell(f"dispatcher {who} is gone")
            self.disturbed()
            now = trio.current_time()
            pause = shortest if now - began > pause else min(2 * pause, longest)
            await trio.sleep_until(max(now + pause, self._back_at.get(who, 0.0)))

    def _process(self, who: int, life: int) -> DispatcherProcess:
        self.watcher.tell(f"dispatcher {who} starts")
        return DispatcherProcess(
            who,
            life,
            self.disk,
            self.machine,
            self.settings,
            lambda can_act: PaperRuntime(self.machine, self.plan_of, self.broken_agents, can_act),
            seed=self.scenario.seed,
            free_memory=lambda: self.free_memory,
        )

    def away(self, who: int, ms: int) -> None:
        """Dispatcher ``who`` is not started again before ``ms`` milliseconds have passed."""
        self._back_at[who] = trio.current_time() + ms / 1000

    def end_dispatcher(self, who: int, how: Ending, ms: int) -> None:
        """Ask one to end, and start it again later."""
        process = self.processes.get(who)
        if process is not None and not process.dead:
            self.away(who, ms)
            process.end(how)

    def set_limit(self, total: int) -> None:
        """The configuration is changed; dispatchers read it when they start."""
        limits = msgspec.structs.replace(self.settings.limits, total=total)
        self.settings = msgspec.structs.replace(self.settings, limits=limits)

    def restore_settings(self) -> Settings:
        """The configuration of the beginning; whoever has another one reads it."""
        self.settings = self.scenario.settings
        for who, process in self.processes.items():
            if process.settings != self.settings:
                self.end_dispatcher(who, Ending.DETACH, 0)
        return self.settings

    # faults

    async def suffer(self, fault: Fault) -> None:
        """Let a fault happen, and end."""
        self.faults[fault.kind] += 1
        self.watcher.tell(of_fault(fault))
        self._trouble += 1
        self.disturbed()
        try:
            await self._suffer(fault)
        finally:
            self._trouble -= 1
            self.disturbed()

    async def _suffer(self, fault: Fault) -> None:
        seconds = fault.ms / 1000
        match fault.kind:
            case FaultKind.KILL:
                self._kill(fault.who, fault.ms)
            case FaultKind.POWER_CUT:
                for who in self.processes:
                    self._kill(who, fault.ms)
                self.machine.power_cut()
            case FaultKind.FREEZE:
                process = self.processes.get(fault.who)
                if process is not None:
                    process.stop()
                    await trio.sleep(seconds)
                    process.wake()
            case FaultKind.SUSPEND:
                self.machine.suspend(fault.ms)
            case FaultKind.CLOCK_STEP:
                self.machine.step(fault.step_ms)
            case FaultKind.DISK_FULL:
                self.disk.fill()
                await trio.sleep(seconds)
                self.disk.empty()
            case FaultKind.OUTAGE:
                self.disk.outages += 1
                self.disk.blind += fault.seen
                await trio.sleep(seconds)
                self.disk.outages -= 1
                self.disk.blind -= fault.seen
            case FaultKind.SLOW_DISK:
                self.disk.slow += 1
                await trio.sleep(seconds)
                self.disk.slow -= 1
            case FaultKind.DEAFNESS:
                self.disk.deafness += 1
                await trio.sleep(seconds)
                self.disk.deafness -= 1
            case FaultKind.BROKEN_AGENT:
                agent = fault.agent or ""
                self.broken_agents[agent] = fault.seen
                await trio.sleep(seconds)
                self.broken_agents.pop(agent, None)
            case FaultKind.LOW_MEMORY:
                self.free_memory = 0
                await trio.sleep(seconds)
                self.free_memory = PLENTY_BYTES

    def _kill(self, who: int, ms: int) -> None:
        process = self.processes.get(who)
        if process is not None and not process.dead:
            self.away(who, ms)
            process.kill()

    def close(self) -> None:
        """Let go of the files."""
        self.watcher.close()
        self.disk.close()


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
