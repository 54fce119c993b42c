"""Watches the event log as it grows, and holds every line of it to the rules. Reads the database on a connection of its own."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from interlock.domain.errors import IllegalTransition
from interlock.domain.places import DATABASE
from interlock.domain.settings import Mode, Settings
from interlock.domain.states import ACTIVE, HELD_BY_AGENT, TERMINAL, Note, RunEvent, RunState, StopKind
from interlock.machines.table import RUN
from interlock.testing.simulation.fates import fate_fits
from interlock.testing.simulation.machine import Machine
from interlock.testing.simulation.scenario import Job
from interlock.testing.simulation.story import Scene
from interlock.testing.simulation.words import moment

_EVENTS = (
    "SELECT seq, run, event, from_state, to_state, at_ms, by, fence, reason, message, data FROM run_events"
    " WHERE seq > ? ORDER BY seq"
)
MEMORY = 60
"""So many of the last things that happened are kept, to be told when a rule is broken."""
SLACK_MS = 20_000
"""Steps of the wall clock of up to 5 s are not followed, and there may be several."""


class Tracked:
    """A run as the event log tells it."""

    __slots__ = ("agent", "claimed", "fence", "job", "keys", "number", "offered", "remote", "state", "stop", "stop_at")

    def __init__(self, number: int, job: Job) -> None:
        self.number = number
        self.job = job
        self.state = RunState.QUEUED
        self.fence = 0
        self.keys: tuple[str, ...] = ()
        self.agent: str | None = None
        self.remote = False
        self.stop: StopKind | None = None
        self.stop_at = 0
        self.claimed = 0
        self.offered = 0


class Watcher:
    """The books. ``broken(rule, what, run)`` is called when a rule is; ``asked(run)`` when a run asks a question."""

    def __init__(
        self,
        folder: Path,
        machine: Machine,
        jobs: dict[str, Job],
        broken: Callable[[str, str, int | None], None],
        *,
        asked: Callable[[Tracked], None],
        log: Callable[[bytes], None] | None,
    ) -> None:
        self.connection = sqlite3.connect(folder / DATABASE, isolation_level=None)
        self._folder = str(folder)
        self._machine = machine
        self._jobs = jobs
        self._broken = broken
        self._asked = asked
        self._log = log
        self._digest = hashlib.sha256()
        self._last = 0
        self.runs: dict[int, Tracked] = {}
        self.unfinished: dict[int, Tracked] = {}
        self.used: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.recent: deque[str] = deque(maxlen=MEMORY)
        self.last_event_ms = 0
        self._awaited: dict[int, trio.Event] = {}
        self.came_ms = -1
        """When an agent from outside last asked for offers."""
        self.checks = 0

    @property
    def digest(self) -> str:
        """SHA-256 of the log so far."""
        return self._digest.hexdigest()

    def tell(self, line: str) -> None:
        """Something happened beside the event log."""
        self.recent.append(f"{moment(self._machine.elapsed_ms())}  {line}")

    def scenes(self, also: Tracked | None) -> tuple[Scene, ...]:
        """What is going on: the runs that are active, and one more."""
        active = {run.number: run for run in self.unfinished.values() if run.state in ACTIVE}
        if also is not None:
            active[also.number] = also
        return tuple(
            Scene(job=run.job.name, fence=max(1, run.fence), since_ms=run.claimed) for _, run in sorted(active.items())
        )

    async def until_at_work(self, number: int) -> None:
        """Return once a run is held by an agent, or has ended."""
        run = self.runs.get(number)
        if run is not None and run.state not in HELD_BY_AGENT and run.state not in TERMINAL:
            await self._awaited.setdefault(number, trio.Event()).wait()

    def look(self, settings: Settings) -> None:
        """Read what was committed, by a process that goes by ``settings``."""
        rows = self.connection.execute(_EVENTS, (self._last,)).fetchall()
        for row in rows:
            self._last = row[0]
            self._write_down(row)
            self._hold_to_rules(row, settings)

    def _write_down(self, row: tuple[Any, ...]) -> None:
        line = json.dumps(row, separators=(",", ":"), ensure_ascii=False).replace(self._folder, "DATA").encode() + b"\n"
        self._digest.update(line)
        if self._log is not None:
            self._log(line)
        _, run, event, before, after, _, by, fence, reason, message, _ = row
        self.events[event] += 1
        self.last_event_ms = self._machine.elapsed_ms()
        move = after if before in (None, after) else f"{before} -> {after}"
        words = "".join(f", {word}" for word in (reason, message) if word)
        self.tell(f"#{run} {event}: {move} (fence {fence or 0}, by {by}{words})")

    def _hold_to_rules(self, row: tuple[Any, ...], settings: Settings) -> None:
        _, number, event, before, after, _, _, fence, reason, message, _ = row
        self.checks += 1
        if event == RunEvent.SUBMIT:
            self._born(number)
            return
        run = self.runs.get(number)
        if run is None:
            self._broken("log_replays", f"'{event}' of #{number}, which was never submitted", number)
            return
        if before != run.state:
            self._broken("log_replays", f"'{event}' starts from {before}, and the log left it {run.state}", number)
        if event in tuple(Note):
            self._note(run, event, after, reason, message, settings)
            return
        try:
            to = RUN.target(run.state, event)
        except IllegalTransition as error:
            self._broken("legal_moves", error.message, number)
            return
        if to != after:
            self._broken("legal_moves", f"'{event}' leads from {before} to {after} instead of {to}", number)
        self._moved(run, RunEvent(event), RunState(after), fence, reason, message, settings)

    def _born(self, number: int) -> None:
        (name,) = self.connection.execute(
            "SELECT json_extract(task, '$.id') FROM runs WHERE number = ?", (number,)
        ).fetchone()
        if number in self.runs:
            self._broken("log_replays", f"#{number} was submitted twice", number)
        self.runs[number] = self.unfinished[number] = Tracked(number, self._jobs[name])

    def _note(
        self, run: Tracked, event: str, after: str, reason: str | None, message: str | None, settings: Settings
    ) -> None:
        if after != run.state:
            self._broken("log_replays", f"a note '{event}' moved it from {run.state} to {after}", run.number)
        if event == Note.STOP:
            if run.state not in HELD_BY_AGENT:
                self._broken("stop_is_of_a_claim", f"a stop was asked for while it is {run.state}", run.number)
            if run.stop is None:
                run.stop, run.stop_at = StopKind(reason or ""), self.last_event_ms
                self._not_too_soon(run, message or "", settings)

    def _not_too_soon(self, run: Tracked, message: str, settings: Settings) -> None:
        """Whatever the clocks say, a limit of time is over when so much time has passed for the agent."""
        assert run.stop is not None
        limit_ms = {
            StopKind.TIMEOUT: self._shortest("timeout", run, settings),
            StopKind.STALL: self._shortest("stall", run, settings),
        }
        allowed_ms = limit_ms.get(run.stop, 0)
        if "deadline" in message:
            allowed_ms = 0
        worked_ms = self.last_event_ms - run.claimed
        if worked_ms + SLACK_MS < allowed_ms:
            what = f"it was stopped ({run.stop}) after {worked_ms / 1000:g} s, and its limit is {allowed_ms / 1000:g} s"
            self._broken("limits_of_time_are_given", what, run.number)

    def _shortest(self, what: str, run: Tracked, settings: Settings) -> int:
        """The shortest limit of its kind that may apply to a run."""
        task, agent = run.job.task, settings.agents.get(run.agent or "")
        query = "SELECT timeout_minutes, stall_minutes FROM workflow_agent_routing WHERE workflow_type = ?"
        route = self.connection.execute(query, (task.type,)).fetchone() or (None, None)
        minutes = route[what == "stall"]
        limits = [getattr(one, f"{what}_ms") for one in (task, agent, settings) if one is not None]
        limits.append(None if minutes is None else minutes * 60_000)
        return min((limit for limit in limits if limit is not None), default=0)

    def _moved(
        self,
        run: Tracked,
        event: RunEvent,
        to: RunState,
        fence: int | None,
        reason: str | None,
        message: str | None,
        settings: Settings,
    ) -> None:
        before, run.state = run.state, to
        expected = run.fence + (event is RunEvent.CLAIM)
        if (fence or 0) != expected:
            self._broken("fence_grows_with_claims", f"'{event}' under fence {fence} instead of {expected}", run.number)
        run.fence = fence or 0
        if before in HELD_BY_AGENT and to not in HELD_BY_AGENT:
            self._left_its_agent(run, event)
            run.stop = None
        if to in ACTIVE:
            self._holds_slots(run, event, settings)
        elif run.keys:
            self.used.subtract(run.keys)
            run.keys = ()
        if to is RunState.DISPATCHED:
            self._offered(run, event)
        if to is RunState.BLOCKED:
            self._asked(run)
        if to in TERMINAL:
            self._ended(run, reason, message)
        if (to in HELD_BY_AGENT or to in TERMINAL) and (awaited := self._awaited.pop(run.number, None)) is not None:
            awaited.set()

    def _offered(self, run: Tracked, event: RunEvent) -> None:
        if event is RunEvent.REDISPATCH and self.came_ms < run.offered:
            self._broken("offers_wait_for_agents", "an offer was used up although no agent has come since", run.number)
        run.offered = self.last_event_ms

    def _ended(self, run: Tracked, reason: str | None, message: str | None) -> None:
        self.ends[run.state] += 1
        del self.unfinished[run.number]
        if not reason or not (message or "").strip():
            self._broken("every_end_has_a_reason", f"it ended {run.state} without reason or message", run.number)

    def _left_its_agent(self, run: Tracked, event: RunEvent) -> None:
        if run.remote:
            return
        tree = self._machine.trees.get((run.number, run.fence))
        if tree is not None and tree.alive:
            what = f"'{event}' moved it while processes of attempt {run.fence} are alive"
            self._broken("moved_only_when_gone", what, run.number)
        fault = fate_fits(tree, run.stop, event)
        if fault is not None:
            self._broken("outcome_is_the_agents", f"attempt {run.fence}: {fault}", run.number)

    def _holds_slots(self, run: Tracked, event: RunEvent, settings: Settings) -> None:
        remote = settings.mode is Mode.PULL
        if event is RunEvent.CLAIM:
            run.remote, run.claimed = remote, self.last_event_ms
        if event is not RunEvent.DISPATCH and not (remote and event in (RunEvent.CLAIM, RunEvent.RELEASE)):
            return
        (run.agent,) = self.connection.execute("SELECT agent FROM runs WHERE number = ?", (run.number,)).fetchone()
        found = self.connection.execute("SELECT key FROM slots WHERE run = ? ORDER BY key", (run.number,)).fetchall()
        keys = tuple(key for (key,) in found)
        if not keys:
            # It was dispatched and left again within one transaction: nobody saw it hold them.
            return
        self.used.subtract(run.keys)
        self.used.update(keys)
        new = set(keys) - set(run.keys)
        run.keys = keys
        if missing := slot_keys(run, settings) - set(keys):
            self._broken("slots_as_needed", f"it is active without the slots {sorted(missing)}", run.number)
        caps = self.caps(settings)
        for key in sorted(new):
            if self.used[key] > caps.get(key, self.used[key]):
                what = f"{self.used[key]} runs hold '{key}', the limit is {caps[key]}"
                self._broken("no_limit_exceeded", what, run.number)

    def caps(self, settings: Settings) -> dict[str, int]:
        """The limits in force, by slot key: worked out anew rather than asked of what is tested."""
        limits = settings.limits
        found = {"global": limits.total}
        for noun in ("project", "tracker", "role", "tag", "agent"):
            for name, cap in getattr(limits, f"per_{noun}").items():
                found[f"{noun}:{name}"] = cap
        for agent in settings.agents.values():
            if agent.max_concurrent is not None:
                key = f"agent:{agent.name}"
                found[key] = min(agent.max_concurrent, found.get(key, agent.max_concurrent))
        for name, cap in self.connection.execute("SELECT workflow_type, max_concurrent FROM workflow_agent_routing"):
            if cap is not None:
                found[f"route:{name}"] = cap
        return found

    def pruned(self, number: int) -> None:
        """A run was deleted."""
        run = self.runs.pop(number)
        if run.state not in TERMINAL:
            self._broken("nothing_is_lost", f"it was deleted while it was {run.state}", number)
        self._machine.forget(number)

    def close(self) -> None:
        """Let go of the file."""
        self.connection.close()


def slot_keys(run: Tracked, settings: Settings) -> set[str]:
    """The slots that an active run holds at least."""
    task = run.job.task
    role = task.role or settings.default_role
    named = {"project": task.project, "tracker": task.tracker, "role": role, "route": task.type, "agent": run.agent}
    return {"global", *(f"{noun}:{name}" for noun, name in named.items() if name), *(f"tag:{tag}" for tag in task.tags)}
