"""A data folder with real daemons and real agents, and the books to balance at the end."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import crash_books
from crash_watcher import Seen, agents_of
from crash_witness import Witness

from interlock.domain.run import Attempt, Event, Run
from interlock.domain.settings import Settings
from interlock.domain.task import Task
from interlock.service import operating, submitting
from interlock.service.context import Context, find_run
from interlock.store.sqlite import SqliteStore

HERE = Path(__file__).parent
DEADLINE_SECONDS = 30.0

AGENT = r"""
cd "$YARD" || exit 9
say() { read -r up _ </proc/uptime; echo "$INTERLOCK_RUN_ID $INTERLOCK_FENCE $1 $up" >>journal; }
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
        self.limits: dict[str, int] = {}
        self._witnesses = 0
        self._clients = 0
        self._started: list[subprocess.Popen[bytes]] = []
        self._offset_ms = 0
        (base / "marks").mkdir(parents=True)
        (base / "agent.sh").write_text(AGENT)
        (base / "journal").touch()
        (base / "tags").touch()
        self.settings = Settings()
        self.store = SqliteStore(self.data, create=True, inline=True)
        self.configure()

    def __enter__(self) -> Yard:
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self.daemons:
            daemon.kill()
        for process in self._started:
            process.kill()
            process.wait()
        self.store.close()
        # What forks may have forked once more since it was seen.
        deadline = time.monotonic() + 10
        while (left := agents_of(str(self.data))) and time.monotonic() < deadline:
            for seen in left:
                with suppress(ProcessLookupError):
                    os.kill(seen.pid, signal.SIGKILL)
            time.sleep(0.01)

        for path in self.cgroups():
            with suppress(OSError):
                path.rmdir()

    def cgroups(self) -> list[Path]:
        """The cgroups that launches here took down in their locks and that are still there."""
        named = (lock.read_text(errors="replace").strip() for lock in self.data.glob("attempts/*/*/lock"))
        return [Path(name) for name in named if name.startswith("/sys/fs/cgroup/") and Path(name).is_dir()]

    # setting up

    def configure(self, *, agents: dict[str, Any] | None = None, **dispatch: Any) -> None:
        """Write interlock.yaml (JSON is YAML). ``agents`` beside those of every kind in the agent's script.

        Limits that are set before the first daemon starts are looked for in the event log, too.
        """
        concurrency = dispatch.get("concurrency", {})
        self.limits = {f"tag:{tag}": limit for tag, limit in concurrency.get("perTag", {}).items()}
        if "global" in concurrency:
            self.limits["global"] = concurrency["global"]
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

    def reopen(self) -> None:
        """Open the store again, after it was closed for what cannot be done to an open one."""
        self.store = SqliteStore(self.data, inline=True)

    def command(self, *arguments: str) -> list[str]:
        """The command line of Interlock on this yard."""
        data = ["--data", str(self.data), "--config", str(self.base / "interlock.yaml")]
        return [sys.executable, str(HERE / "crash_daemon.py"), *data, *arguments]

    def environment(self, **more: str) -> dict[str, str]:
        """Without anything that an outer Interlock, or an outer test, left in ours."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("INTERLOCK_", "CRASH_"))}
        if not self.contained:
            kept["CRASH_NO_CGROUPS"] = "1"
        kept["CRASH_CLOCK"] = str(self.base / "clock")
        return {**kept, **more}

    def daemon(self, *, peer: bool = False, crash_at: str = "", stop_at: str = "") -> Daemon:
        """Start one more daemon. ``stop_at``: the crash point at which it is to stand still (SIGSTOP)."""
        log = self.log_folder / f"daemon{len(self.daemons)}.log"
        more = {"INTERLOCK_CRASH_AT": crash_at} if crash_at else {}
        if stop_at:
            more["INTERLOCK_STOP_AT"] = stop_at
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

    def watcher(self, limit: int, **tag_limits: int) -> Witness:
        """The independent witness."""
        self._witnesses += 1
        report = self.log_folder / f"witness{self._witnesses}.jsonl"
        return Witness(self.data, report, self.base / "tags", limit, tag_limits)

    def client(self, program: str, *arguments: str, **environment: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start another program of this folder; what it says goes to the file."""
        self._clients += 1
        said = self.log_folder / f"client{self._clients}.log"
        with said.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(HERE / program), str(self.data), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.base,
                env=self.environment(**environment),
            )
        self._started.append(process)
        return process, said

    def set_clock(self, offset_ms: int) -> None:
        """The wall clock of all of Interlock's processes here is off by so much from now on."""
        self._offset_ms = offset_ms
        part = self.base / "clock.part"
        part.write_text(str(offset_ms))
        part.replace(self.base / "clock")

    # doing and asking, from this process, beside the daemons

    def _context(self) -> Context:
        return Context(now_ms=self.now_ms(), rng=Random(), settings=self.settings)

    def now_ms(self) -> int:
        """The wall clock of here."""
        return time.time_ns() // 1_000_000 + self._offset_ms

    def submit(self, *agents: str, tags: Sequence[str] = (), **fields: Any) -> list[Run]:
        """Queue a task for each agent; when this returns, they were acknowledged."""
        return self._submit(
            Task(title=f"{agent} {index}", agent=agent, tags=tuple(tags), **fields)
            for index, agent in enumerate(agents)
        )

    def submit_one(self, title: str, **fields: Any) -> Run:
        """Queue a task of any form."""
        return self._submit([Task(title=title, **fields)])[0]

    def _submit(self, tasks: Iterable[Task]) -> list[Run]:
        items = [submitting.Item(task=task) for task in tasks]
        done = self.store.write_now(lambda tx: submitting.submit(tx, self._context(), items, by="test"))
        with (self.base / "tags").open("a") as known:
            known.writelines(f"{one.run.id} {tag}\n" for one in done for tag in one.run.task.tags)
        return [one.run for one in done]

    def unhold(self, number: int) -> Run:
        """Let a run be dispatched again."""
        return self.store.write_now(lambda tx: operating.unhold(tx, self._context(), find_run(tx, number)))

    def cancel(self, run: Run) -> Run:
        """Cancel as another process would."""
        return self.store.write_now(lambda tx: operating.cancel(tx, self._context(), self.get(run)))

    def interrupt(self, run: Run) -> Run:
        """Have its agent stopped and the run queued again."""
        return self.store.write_now(
            lambda tx: operating.interrupt(tx, self._context(), self.get(run), by="test", message="interrupted")
        )

    def get(self, run: Run) -> Run:
        """As it is now."""
        found = self.store.read_now(lambda tx: tx.run(run.number))
        assert found is not None, f"run #{run.number} was acknowledged and is lost"
        return found

    def unfinished(self) -> list[Run]:
        """Runs that have not ended."""
        with crash_books.opened(self.data / "interlock.db") as db:
            numbers = [row["number"] for row in db.execute("SELECT number FROM runs WHERE ended_ms IS NULL")]
        return self.store.read_now(lambda tx: [find_run(tx, number) for number in numbers])

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

    def processes(self, run: Run | None = None) -> list[Seen]:
        """Living processes of agents."""
        return [seen for seen in agents_of(str(self.data)) if run is None or seen.run == run.id]

    def go(self) -> None:
        """Let the ``waits`` agents end."""
        (self.base / "go").touch()

    # the books

    def faults(self) -> list[str]:
        """What is wrong with the records at any moment: slots, states, histories, limits."""
        return crash_books.faults(self.data / "interlock.db", limits=self.limits)
