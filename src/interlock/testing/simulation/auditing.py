"""Audits: what does not show in a single line of the event log. Some at any time, some only once it has been calm for a while."""

from __future__ import annotations

import trio

from interlock.decide.reasons import WaitKind
from interlock.domain.errors import Unavailable
from interlock.domain.states import ACTIVE, HELD_BY_AGENT, RunState
from interlock.testing.simulation.people import People
from interlock.testing.simulation.watching import Tracked
from interlock.testing.simulation.world import World

SOON_SECONDS = 300.0
"""What has to be done is done within so much time when nothing is in the way: the longest backoff of the actors is 60 s."""
LONGEST_RETRY_MS = 320_000
"""The longest wait before an agent is tried again, and a little."""
SAMPLE = 5


class Auditor:
    """Looks at the whole from time to time."""

    def __init__(self, world: World, people: People) -> None:
        self._world = world
        self._people = people
        self._watcher = world.watcher
        self._next: frozenset[int] = frozenset()
        self._next_event_ms = 0

    async def audit(self) -> None:
        """All that can be looked at now."""
        self._watcher.checks += 1
        self.books()
        self._trees()
        calm = self._world.calm_seconds()
        if calm > SOON_SECONDS:
            self._looked_after(calm)
            self._on_time()
            await self._nobody_is_forgotten()
        else:
            self._next = frozenset()

    # at any time

    def books(self) -> None:
        """Database, slots and event log say the same."""
        rows = self._watcher.connection.execute(
            "SELECT number, state, fence FROM runs WHERE ended_ms IS NULL"
        ).fetchall()
        stored = {number: (state, fence) for number, state, fence in rows}
        told = {number: (str(run.state), run.fence) for number, run in self._watcher.unfinished.items()}
        for number in sorted(stored.keys() | told.keys()):
            if stored.get(number) != told.get(number):
                what = f"the database says {stored.get(number)}, its event log {told.get(number)}"
                self._world.broken("log_replays", what, number)
        self._slots()

    def _slots(self) -> None:
        query = self._watcher.connection.execute
        taken: dict[int, list[str]] = {}
        for number, key in query("SELECT run, key FROM slots ORDER BY run, key"):
            taken.setdefault(number, []).append(key)
        for number in sorted(taken.keys() | self._watcher.unfinished.keys()):
            run = self._watcher.unfinished.get(number)
            expected = list(run.keys) if run is not None and run.state in ACTIVE else []
            if taken.get(number, []) != expected:
                what = f"it holds the slots {taken.get(number, [])}, and should hold {expected}"
                self._world.broken("slots_as_needed", what, number)
        kept = {key: used for key, used in query("SELECT key, used FROM slot_counts") if used}
        counted = {key: used for key, used in self._watcher.used.items() if used}
        if kept != counted:
            differ = sorted(key for key in kept.keys() | counted.keys() if kept.get(key) != counted.get(key))
            self._world.broken("slots_equal_recount", f"the counts of {differ} are not what a recount gives")

    def _trees(self) -> None:
        for number in list(self._world.machine.live):
            tree = self._world.machine.tree_of(number)
            run = self._watcher.runs.get(number)
            if tree is not None and (run is None or run.state not in HELD_BY_AGENT or run.fence != tree.fence):
                what = f"processes of attempt {tree.fence} are alive, and the run is {run.state if run else 'deleted'}"
                self._world.broken("no_orphans", what, number)

    # when it was calm

    def _looked_after(self, calm: float) -> None:
        owners = {process.id for process in self._world.processes.values() if not process.dead}
        leases = self._world.scenario.settings.leases
        wall_ms = self._world.machine.wall_ms()
        query = "SELECT number, owner, lease_expires_ms FROM runs WHERE state IN ('claimed', 'running') AND remote = 0"
        for number, owner, lease_ms in self._watcher.connection.execute(query).fetchall():
            if owner not in owners:
                self._world.broken("somebody_looks_after", f"its owner {owner} has been gone for minutes", number)
            if calm * 1000 > leases.local_ms and lease_ms + leases.grace_ms < wall_ms:
                what = f"its lease ran out {(wall_ms - lease_ms) / 1000:g} s ago although its dispatcher is at work"
                self._world.broken("leases_are_renewed", what, number)

    def _on_time(self) -> None:
        now, elapsed_ms = trio.current_time(), self._world.machine.elapsed_ms()
        for run in self._watcher.unfinished.values():
            if run.state not in HELD_BY_AGENT or run.remote:
                continue
            tree = self._world.machine.trees.get((run.number, run.fence))
            if tree is not None and not tree.alive and tree.gone_at is not None and now - tree.gone_at > SOON_SECONDS:
                what = f"the agent of attempt {run.fence} ended minutes ago, and that is not recorded"
                self._world.broken("ends_are_recorded", what, run.number)
            asked_ago = (elapsed_ms - run.stop_at) / 1000
            if run.stop is not None and asked_ago > 3 * SOON_SECONDS and (tree is None or not tree.stones):
                what = f"a stop ({run.stop}) was asked for {asked_ago:g} s ago, and it is {run.state}"
                self._world.broken("stops_are_carried_out", what, run.number)
        overdue_ms = self._world.machine.wall_ms() - SOON_SECONDS * 1000
        query = "SELECT number, state FROM runs WHERE due_ms < ? ORDER BY due_ms LIMIT 1"
        for number, state in self._watcher.connection.execute(query, (overdue_ms,)).fetchall():
            self._world.broken("deadlines_are_kept", f"something was due minutes ago, and it is {state}", number)

        for agent, retry_ms in self._watcher.connection.execute("SELECT agent, retry_ms FROM agent_health").fetchall():
            ahead_ms = retry_ms - self._world.machine.wall_ms()
            if ahead_ms > LONGEST_RETRY_MS:
                what = f"agent '{agent}' could not be started, and is tried again only in {ahead_ms / 1000:g} s"
                self._world.broken("agents_are_tried_again", what)

    async def _nobody_is_forgotten(self) -> None:
        """A run that nothing holds back starts: the same ones may not be next, time and again, while nothing happens."""
        waiting = [run for run in self._watcher.unfinished.values() if run.state is RunState.QUEUED][:SAMPLE]
        found = set()
        for run in waiting:
            kinds = await self._why(run)
            if kinds and kinds <= {WaitKind.NEXT}:
                found.add(run.number)
        stuck = self._next & found
        if stuck and self._next_event_ms == self._watcher.last_event_ms:
            number = min(stuck)
            self._world.broken("no_starvation", "nothing holds it back, there is room, and it is not started", number)
        self._next, self._next_event_ms = frozenset(found), self._watcher.last_event_ms

    async def _why(self, run: Tracked) -> set[WaitKind]:
        try:
            waits = await self._people.service.why(run.number, await self._people.surroundings())
        except Unavailable:
            return set()
        return {wait.kind for wait in waits}
