"""A data folder with real daemons and real agents, and the books to balance at the end."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

from crash_watcher import Watcher, agents_of

from interlock.domain.run import Attempt, Event, Run
from interlock.domain.settings import Settings
from interlock.domain.states import RunEvent, RunState
from interlock.domain.task import Task
from interlock.machines.table import RUN
from interlock.service import operating, submitting
from interlock.service.context import Context
from interlock.store.sqlite import SqliteStore

HERE = Path(__file__).parent
DEADLINE_SECONDS = 30.0

AGENT = r"""
cd "$YARD" || exit 9
say() { echo "$INTERLOCK_RUN_ID $INTERLOCK_FENCE $1" >>journal; }
first() { [ ! -e "marks/$INTERLOCK_RUN_ID" ] && : >"marks/$INTERLOCK_RUN_ID"; }
leave() { say "end $1"; exit "$1"; }
say "begin $$"
case $1 in
  nap) sleep "$2" ;;
  forks) sleep 60 & sleep 0.1 ;;
  escapes) setsid sleep 60 </dev/null >/dev/null 2>&1 & sleep 0.1 ;;
  stubborn) sh -c 'trap "" TERM; while :; do sleep 60; done' & sleep 0.1 ;;
  flaky) sleep 0.1; first && leave 1 ;;
  hopeless) leave 3 ;;
  writes) sleep 0.1; echo '{"outcome": "completed", "result": {"n": 7}}' >"$INTERLOCK_RESULT_FILE" ;;
  later) sleep 0.1; first && leave 75 ;;
  deaf) trap "" TERM; say ready; while :; do sleep 60; done ;;
  waits) say ready; while [ ! -e "$2" ]; do sleep 0.02; done ;;
  shouts) head -c 10000000 /dev/zero | tr '\0' x ;;
esac
leave 0
"""


def until(condition: Callable[[], Any], seconds: float = DEADLINE_SECONDS, *, what: str = "the condition") -> Any:
    """Wait for a condition; returns what it gave. Fails at the deadline."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds:g} s")
        time.sleep(0.01)
    return value


class Daemon:
    """An ``interlock up`` of a yard."""

    def __init__(self, yard: Yard, process: subprocess.Popen[bytes], log: Path) -> None:
        self.yard = yard
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def until_up(self) -> Daemon:
        """Until it has said so (or died)."""
        until(lambda: not self.alive or b"Interlock is up" in self.log.read_bytes(), what="the daemon's start")
        return self

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stand_still(self) -> None:
        """STOP it at a moment at which it does not hold the database: nobody can write while it does."""
        while True:
            self.signal(signal.SIGSTOP)
            with closing(sqlite3.connect(self.yard.data / "interlock.db", isolation_level=None, timeout=0.1)) as probe:
                try:
                    probe.execute("BEGIN IMMEDIATE")
                    probe.execute("ROLLBACK")
                except sqlite3.OperationalError:
                    self.signal(signal.SIGCONT)
                    continue
            return

    def kill(self) -> None:
        """KILL, as a crash would."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def until_ended(self, seconds: float = DEADLINE_SECONDS) -> int:
        """Its exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the daemon did not end; it said:\n{self.log.read_text()}") from None


class Yard:
    """One data folder, its configuration, its daemons. Use as a context manager: everything that was started ends with it."""

    def __init__(self, base: Path, *, contained: bool = True) -> None:
        self.base = base
        self.data = base / ".interlock"
        self.contained = contained
        self.daemons: list[Daemon] = []
        self.log_folder = base
        self.tags: dict[str, tuple[str, ...]] = {}
        (base / "marks").mkdir(parents=True)
        (base / "agent.sh").write_text(AGENT)
        (base / "journal").touch()
        self.settings = Settings()
        self.store = SqliteStore(self.data, create=True, inline=True)
        self.configure()

    def __enter__(self) -> Yard:
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self.daemons:
            daemon.kill()
        self.store.close()
        # What forks may have forked once more since it was seen.
        deadline = time.monotonic() + 10
        while (left := agents_of(str(self.data))) and time.monotonic() < deadline:
            for seen in left:
                with suppress(ProcessLookupError):
                    os.kill(seen.pid, signal.SIGKILL)
            time.sleep(0.01)

    # setting up

    def configure(self, *, agents: dict[str, Any] | None = None, **dispatch: Any) -> None:
        """Write interlock.yaml (JSON is YAML). ``agents`` beside those of every kind in the agent's script."""
        script = str(self.base / "agent.sh")
        kinds = ["forks", "escapes", "stubborn", "flaky", "hopeless", "writes", "later", "deaf", "shouts"]
        commands: dict[str, list[str]] = {kind: ["/bin/sh", script, kind] for kind in kinds}
        for name, seconds in (("blink", "0.05"), ("nap", "0.4"), ("sleep", "1.5"), ("long", "600")):
            commands[name] = ["/bin/sh", script, "nap", seconds]
        commands["waits"] = ["/bin/sh", script, "waits", str(self.base / "go")]
        content = {
            "dispatch": {
                "stopGrace": "300ms",
                "retry": {"maxRetries": 1, "baseDelayMs": 50, "maxDelayMs": 100},
                "budgets": {"defaultDefer": "200ms", "maxLosts": 50},
                **dispatch,
            },
            "agents": {
                **{name: {"command": command, "env": {"YARD": str(self.base)}} for name, command in commands.items()},
                **(agents or {}),
            },
        }
        (self.base / "interlock.yaml").write_text(json.dumps(content))

    def command(self, *arguments: str) -> list[str]:
        """The command line of Interlock on this yard."""
        data = ["--data", str(self.data), "--config", str(self.base / "interlock.yaml")]
        return [sys.executable, str(HERE / "crash_daemon.py"), *data, *arguments]

    def environment(self, **more: str) -> dict[str, str]:
        """Without anything that an outer Interlock, or an outer test, left in ours."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("INTERLOCK_", "CRASH_"))}
        if not self.contained:
            kept["CRASH_NO_CGROUPS"] = "1"
        return {**kept, **more}

    def daemon(self, *, peer: bool = False, crash_at: str = "", stop_at: str = "") -> Daemon:
        """Start one more daemon. ``stop_at``: the crash point at which it is to stand still (SIGSTOP)."""
        log = self.log_folder / f"daemon{len(self.daemons)}.log"
        more = {"INTERLOCK_CRASH_AT": crash_at} if crash_at else {}
        if stop_at:
            more["CRASH_STOP_AT"] = stop_at
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command("up", *(["--peer"] if peer else [])),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.base,
                env=self.environment(**more),
                start_new_session=True,
            )
        self.daemons.append(Daemon(self, process, log))
        return self.daemons[-1]

    def up(self, **options: Any) -> Daemon:
        """Start one more daemon and wait until it is up."""
        return self.daemon(**options).until_up()

    def run_command(self, *arguments: str, seconds: float = DEADLINE_SECONDS) -> subprocess.CompletedProcess[str]:
        """Another process of the command line, to its end."""
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            cwd=self.base,
            env=self.environment(),
            timeout=seconds,
            check=False,
        )

    def watcher(self, limit: int, **tag_limits: int) -> Watcher:
        """The independent witness."""
        return Watcher(str(self.data), limit, tag_limits, lambda run: self.tags.get(run, ()))

    # doing and asking, from this process, beside the daemons

    def _context(self) -> Context:
        return Context(now_ms=time.time_ns() // 1_000_000, rng=Random(), settings=self.settings)

    def submit(self, *agents: str, tags: Sequence[str] = (), **fields: Any) -> list[Run]:
        """Queue a task for each agent; when this returns, they were acknowledged."""
        items = [
            submitting.Item(task=Task(title=f"{agent} {index}", agent=agent, tags=tuple(tags), **fields))
            for index, agent in enumerate(agents)
        ]
        done = self.store.write_now(lambda tx: submitting.submit(tx, self._context(), items, by="test"))
        for submitted in done:
            self.tags[submitted.run.id] = tuple(tags)
        return [submitted.run for submitted in done]

    def cancel(self, run: Run) -> Run:
        """Cancel as another process would."""
        return self.store.write_now(lambda tx: operating.cancel(tx, self._context(), self.get(run)))

    def get(self, run: Run) -> Run:
        """As it is now."""
        found = self.store.read_now(lambda tx: tx.run(run.number))
        assert found is not None, f"run #{run.number} was acknowledged and is lost"
        return found

    def attempts(self, run: Run) -> list[Attempt]:
        return self.store.read_now(lambda tx: tx.attempts(run.number))

    def events(self, run: Run) -> list[Event]:
        return self.store.read_now(lambda tx: tx.events_of(run.number))

    def event_names(self, run: Run) -> list[str]:
        return [event.event for event in self.events(run)]

    def until_state(self, run: Run, *states: str, seconds: float = DEADLINE_SECONDS) -> Run:
        def reached() -> Run | None:
            now = self.get(run)
            return now if now.state in states else None

        try:
            found: Run = until(reached, seconds)
        except AssertionError:
            logs = "\n".join(f"{daemon.log.name}:\n{daemon.log.read_text()}" for daemon in self.daemons[-2:])
            raise AssertionError(
                f"#{run.number} is {self.get(run).state}, not {states}: {self.event_names(run)}\n{logs}"
            ) from None
        return found

    def journal(self) -> list[tuple[str, int, list[str]]]:
        """What agents wrote: run id, fence, words."""
        lines = (self.base / "journal").read_text().splitlines()
        return [(words[0], int(words[1]), words[2:]) for words in map(str.split, lines)]

    def begun(self, run: Run) -> list[int]:
        """Fences under which its agent began, in order."""
        return [fence for name, fence, words in self.journal() if name == run.id and words[0] == "begin"]

    def journal_pid(self, run: Run) -> int:
        """Pid of the shell that is the agent of a run's last attempt."""
        return next(
            int(words[1]) for name, _, words in reversed(self.journal()) if name == run.id and words[0] == "begin"
        )

    def until_ready(self, run: Run, times: int = 1) -> None:
        """Until its agent has said ``ready`` (or, if it does not say so, has begun)."""

        def said() -> bool:
            words = [words[0] for name, _, words in self.journal() if name == run.id]
            return words.count("ready") >= times

        until(said, what=f"the agent of #{run.number}")

    def processes(self, run: Run | None = None) -> list[Any]:
        """Living processes of agents."""
        return [seen for seen in agents_of(str(self.data)) if run is None or seen.run == run.id]

    def go(self) -> None:
        """Let the ``waits`` agents end."""
        (self.base / "go").touch()

    # the books

    def faults(self) -> Iterator[str]:
        """What is wrong with the records at any moment: slots, states, histories."""
        yield from self.store.read_now(lambda tx: tx.slot_faults())
        yield from self.store.integrity_faults()
        last = self.store.read_now(lambda tx: tx.last_seq())
        numbers = {event.run for event in self.store.read_now(lambda tx: tx.events_after(0, last))}
        for number in sorted(numbers):
            run = self.store.read_now(lambda tx, number=number: tx.run(number))
            if run is None:
                yield f"run #{number} has events and is not there"
                continue
            yield from self._history_faults(run)

    def _history_faults(self, run: Run) -> Iterator[str]:
        name = f"#{run.number} ({run.task.title})"
        state: RunState | None = None
        moves: Counter[str] = Counter()
        for event in self.events(run):
            if event.event not in tuple(RunEvent):
                continue
            moves[event.event] += 1
            if event.event == RunEvent.SUBMIT:
                state = RunState.QUEUED
                continue
            if state is None or event.from_state != state:
                yield f"{name}: event {event.seq} {event.event} from {event.from_state}, but it was {state}"
                return
            state = RUN.target(state, event.event)
            if event.to_state != state:
                yield f"{name}: event {event.seq} {event.event} led to {event.to_state}, not to {state}"
        if state != run.state:
            yield f"{name}: its events lead to {state}, it is {run.state}"
        if moves["complete"] != (run.state == "completed"):
            yield f"{name}: {moves['complete']} completions, and it is {run.state}"
        attempts = self.attempts(run)
        if [attempt.fence for attempt in attempts] != list(range(1, run.fence + 1)):
            yield f"{name}: attempts {[attempt.fence for attempt in attempts]} under fence {run.fence}"
        if moves["claim"] != len(attempts):
            yield f"{name}: {moves['claim']} claims and {len(attempts)} attempts"
        for attempt in attempts:
            live = run.held_by_agent and attempt.fence == run.fence
            if (attempt.ended_ms is None) != live:
                yield f"{name}: attempt {attempt.fence} is {attempt.state}, the run is {run.state}"
            if not live and not (attempt.reason and (attempt.message or "").strip()):
                yield f"{name}: attempt {attempt.fence} ended without reason or message"
        if run.terminal and not (run.reason and (run.message or "").strip()):
            yield f"{name}: it ended {run.state} without reason or message"
