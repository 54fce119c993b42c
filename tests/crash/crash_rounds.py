"""What one round of a campaign does to the daemons, keepers, agents and clients of a yard, chosen by a seeded generator."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from random import Random

from crash_watcher import Seen, agents_of
from crash_yard import Daemon, Yard, until

import interlock
from interlock.domain.errors import Conflict
from interlock.runtimes.process import is_keeper, read_stat

SOURCES = Path(interlock.__file__).parent
POINTS = sorted(
    {
        name
        for path in SOURCES.rglob("*.py")
        for name in re.findall(r'crashpoint\("([^"]+)"\)', path.read_text())
        if not name.startswith("agent.")
    }
)
"""Of a daemon. Those of `interlock agent` are passed by tests of its own."""
AT_START = {"migrate"}
"""Points that are passed only where a database is made: a test of their own is for them."""
OF_RECOVERY = "recover."
OF_COMMITS = ("before_commit", "after_commit", "before_checkpoint")
KINDS = [
    "blink",
    "nap",
    "forks",
    "escapes",
    "stubborn",
    "flaky",
    "hopeless",
    "writes",
    "later",
    "blink",
    "nap",
    "sleep",
]
FEED = {"stop.termed": ["stubborn", "escapes", "forks"], "stop.killed": ["stubborn", "escapes", "forks"]}
OUTSIDE = ["blink", "nap", "later", "writes"]
PULLED = "anyone"
PLAN = {"point": 8, "commit": 4, "random": 3, "pair": 2, "agents": 1, "keepers": 1, "trees": 1, "sleeper": 1}
PULL_PLAN = {"point": 2, "commit": 4, "random": 4, "pair": 2, "pullers": 5, "sleeping puller": 3}
POINT_SECONDS = 6.0
LEASE_MS = 1500


def endless(rng: Random, bag: list[str]) -> Iterator[str]:
    """Everything in the bag once, in a random order, then again in another."""
    while True:
        yield from rng.sample(bag, len(bag))


class Rounds:
    """The rounds of one campaign, and what they did. ``pull``: agents from outside do the work, not commands."""

    def __init__(self, yard: Yard, seed: int, *, pull: bool) -> None:
        self.yard = yard
        self.rng = rng = Random(seed)
        self.pull = pull
        self.plan = ""
        self.acknowledged: dict[str, str] = {}
        self.harmed: set[str] = set()
        self.kills: Counter[str] = Counter()
        self.daemon_kills = 0
        self.recoveries: list[float] = []
        self.clients: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.pullers: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.said: list[list[str]] = []
        plan = PULL_PLAN if pull else PLAN
        self._kinds = endless(rng, [kind for kind, times in plan.items() for _ in range(times)])
        points = set(POINTS) - AT_START
        if pull:
            points = {point for point in points if point in OF_COMMITS}
        # In order, each campaign from elsewhere on: a few with seeds in a row pass them all.
        first = 7 * seed % len(points)
        self._points = cycle(sorted(points)[first:] + sorted(points)[:first])
        self._kept: list[tuple[subprocess.Popen[bytes], Path]] = []

    def round(self) -> None:
        """One round: daemons start, something dies, and in the end every daemon is dead."""
        kind = next(self._kinds)
        self.plan = kind
        self.submit(self.rng.randint(1, 4))
        if self.pull:
            self.start_pullers(2)
        acts: dict[str, Callable[[], None]] = {
            "point": self.at_a_point,
            "commit": self.in_a_commit,
            "random": self.at_random,
            "pair": self.one_of_two,
            "sleeper": self.asleep,
            "sleeping puller": self.puller_asleep,
            "pullers": self.kill_pullers,
        }
        if kind in acts:
            acts[kind]()
        else:
            self.harm(kind)
        self.end_clients()

    # load

    def submit(self, count: int, kinds: list[str] | None = None) -> None:
        """Queue runs from here."""
        for _ in range(count):
            kind = PULLED if self.pull else self.rng.choice(kinds or KINDS)
            tags = ("gpu",) if self.rng.random() < 0.2 else ()
            run = self.yard.submit_one(kind, agent=None if self.pull else kind, tags=tags)
            self.acknowledged[run.id] = kind

    def operate(self) -> None:
        """Cancel or interrupt a run from here, one that an agent works on if there is one."""
        runs = [run for run in self.yard.unfinished() if run.task.title in KINDS]
        live = [run for run in runs if run.held_by_agent]
        if self.pull or not runs:
            return
        run = self.rng.choice(live or runs)
        what = self.rng.choice(("cancel", "cancel", "interrupt"))
        self.said.append(["try", what, run.id])
        with suppress(Conflict):
            (self.yard.cancel if what == "cancel" else self.yard.interrupt)(run)
            self.said.append([what, run.id])

    def start_client(self) -> None:
        """A process that submits and operates until it has done so, dies of a crash point of its own, or is killed."""
        if self.pull:
            return
        seed = str(self.rng.randrange(10**6))
        dies = {}
        if self.rng.random() < 0.6:
            dies = {"INTERLOCK_CRASH_AT": f"{self.rng.choice(OF_COMMITS[:2])}:{self.rng.randint(1, 12)}"}
            if self.rng.random() < 0.5:
                dies["INTERLOCK_CRASH_AT"] += f"+{self.rng.randint(1, 1500)}"
        self.clients.append(self.yard.client("crash_client.py", seed, "24", *OUTSIDE, **dies))

    def start_pullers(self, count: int, *, asleep: bool = False) -> None:
        """Agents from outside."""
        for _ in range(count):
            name, seed = f"puller-{len(self._kept)}", str(self.rng.randrange(10**6))
            made = self.yard.client("crash_puller.py", name, seed, "0.15", str(LEASE_MS), *(["stop"] if asleep else []))
            self.pullers.append(made)
            self._kept.append(made)

    def end_clients(self) -> None:
        """Kill clients and pullers, and take down what they were told."""
        for process, said in [*self.clients, *self.pullers]:
            if process.poll() is None:
                process.kill()
                self.kills["client" if (process, said) in self.clients else "puller"] += 1
            elif process.returncode == -signal.SIGKILL:
                self.kills["client, in a commit"] += 1
            elif process.returncode:
                raise AssertionError(f"a client ended with {process.returncode}: {said.read_text()}")
            process.wait()
            lines = said.read_text(errors="replace").splitlines(keepends=True)
            self.said += [line.split() for line in lines if line.endswith("\n")]
        self.acknowledged.update({words[1]: words[2] for words in self.said if words[0] == "submit"})
        self.clients.clear()
        self.pullers.clear()

    # kills of daemons

    def start(self, *, crash_at: str = "", peer: bool = False) -> Daemon:
        return self.yard.daemon(crash_at=crash_at, peer=peer)

    def until_up(self, daemon: Daemon, since: float) -> None:
        """Until it looks after what was left; how long that took is kept."""
        daemon.until_up()
        if daemon.alive:
            self.recoveries.append(time.monotonic() - since)

    def killed(self, daemon: Daemon, how: str, point: str = "") -> None:
        """Take down a death, dealt out now unless it has died of its point."""
        status = daemon.process.poll()
        if status is None:
            daemon.kill()
        elif status != -signal.SIGKILL:
            raise AssertionError(f"a daemon ended by itself with {status}: {daemon.log.read_text()}")
        self.kills[f"at {point}" if point and status is not None else how] += 1
        self.daemon_kills += 1

    def at_random(self, how: str = "at a random moment") -> None:
        """Killed at any moment, from its first on."""
        began = time.monotonic()
        daemon = self.start()
        if self.rng.random() < 0.8:
            self.until_up(daemon, began)
        self.start_client()
        self.submit(self.rng.randint(1, 4))
        time.sleep(self.rng.uniform(0, 0.5))
        self.operate()
        time.sleep(self.rng.uniform(0, 0.3))
        self.killed(daemon, how)

    def at_a_point(self) -> None:
        """Killed at a named point; for one of a recovery, something is left that has to be recovered."""
        point = next(self._points)
        if point.startswith(OF_RECOVERY):
            self.die_at("before_launch", 1)
        self.die_at(point, self.rng.choice((1, 1, 1, 2, 3)))

    def in_a_commit(self) -> None:
        """Killed between the statements and COMMIT, inside COMMIT, straight after it, or inside a checkpoint."""
        choice = self.rng.random()
        if choice < 0.6:
            self.die_at(
                "before_commit", self.rng.randint(1, 40), delay_us=self.rng.choice((0, self.rng.randint(1, 1500)))
            )
        elif choice < 0.85:
            self.die_at("after_commit", self.rng.randint(1, 40))
        else:
            self.die_at("before_checkpoint", 1, delay_us=self.rng.randint(1, 5000))

    def die_at(self, point: str, count: int, *, delay_us: int = 0) -> None:
        """Start one that is to die there, and feed it until it does."""
        asked = f"{point}:{count}" + (f"+{delay_us}" if delay_us else "")
        self.plan += f" {asked}"
        daemon = self.start(crash_at=asked)
        if self.rng.random() < 0.6:
            self.start_client()
        ends = time.monotonic() + POINT_SECONDS
        while daemon.alive and time.monotonic() < ends:
            if b"is up" in daemon.log.read_bytes():
                self.submit(1, FEED.get(point))
                if self.rng.random() < 0.2:
                    self.operate()
            with suppress(subprocess.TimeoutExpired):
                daemon.process.wait(0.1)
        names = {"before_commit": "inside a commit", "before_checkpoint": "inside a checkpoint"}
        if delay_us and not daemon.alive:
            self.killed(daemon, names[point])
        else:
            self.killed(daemon, "at a random moment", point)

    def one_of_two(self) -> None:
        """Two daemons on one file; one is killed, the other goes on, and is killed later."""
        point = f"{self.rng.choice(OF_COMMITS[:2])}:{self.rng.randint(1, 20)}" if self.rng.random() < 0.4 else ""
        began = time.monotonic()
        daemons = [self.start(crash_at=point, peer=True), self.start(peer=True)]
        for daemon in daemons:
            self.until_up(daemon, began)
        self.start_client()
        self.submit(self.rng.randint(1, 4))
        time.sleep(self.rng.uniform(0.1, 0.6))
        self.killed(daemons[0], "one of two", point.partition(":")[0])
        self.submit(self.rng.randint(1, 4))
        self.operate()
        # Sometimes long enough for the other one to find out that it is alone.
        time.sleep(self.rng.choice((0.2, 0.5, 0.9, 6.0)))
        self.killed(daemons[1], "the other of two")

    def asleep(self) -> None:
        """One stands still while another works beside it; then it is killed, or goes on."""
        sleeper = self.start(peer=True).until_up()
        self.submit(self.rng.randint(2, 5))
        time.sleep(self.rng.uniform(0.05, 0.3))
        sleeper.stand_still()
        # Perhaps of one that the sleeper looks after: it is carried out when it wakes, or by who comes after it.
        self.operate()
        began = time.monotonic()
        other = self.start(peer=True)
        self.until_up(other, began)
        self.submit(self.rng.randint(1, 4))
        time.sleep(self.rng.uniform(0.1, 0.8))
        if self.rng.random() < 0.5:
            sleeper.signal(signal.SIGCONT)
            time.sleep(self.rng.uniform(0, 0.3))
        self.killed(sleeper, "asleep, or just awake")
        self.killed(other, "beside a sleeper")

    # kills of agents

    def harm(self, kind: str) -> None:
        """Kill agents, keepers, or whole trees under a daemon, which is killed a moment later."""
        began = time.monotonic()
        daemon = self.start()
        self.until_up(daemon, began)
        self.submit(4, ["nap", "sleep", "forks", "stubborn"])
        for _ in range(self.rng.randint(1, 3)):
            with suppress(AssertionError):
                until(lambda: any(seen.root for seen in self.living()), 3)
            victims = self._keepers() if kind == "keepers" else [seen.pid for seen in self._victims(kind)]
            if kind == "keepers":
                # Of any agent that is in its charge nobody sees the end.
                self.harmed |= self._at_work()
            for victim in victims:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            if kind == "keepers":
                self.harmed |= self._at_work()
            if victims:
                self.kills[kind[:-1]] += 1
            time.sleep(self.rng.uniform(0, 0.3))
        self.killed(daemon, "at a random moment")

    def living(self) -> list[Seen]:
        return agents_of(str(self.yard.data))

    def _victims(self, kind: str) -> list[Seen]:
        living = self.living()
        if kind == "agents":
            victims = self.rng.sample(living, 1) if living else []
        else:
            runs = sorted({seen.run for seen in living})
            run = self.rng.choice(runs) if runs else ""
            victims = [seen for seen in living if seen.run == run]
        self.harmed |= {seen.run for seen in victims}
        return victims

    def _keepers(self) -> list[int]:
        """One of the processes that agents are children of."""
        stats = [read_stat(seen.pid) for seen in self.living() if seen.root]
        keepers = sorted({stat.parent for stat in stats if stat is not None and is_keeper(stat.parent)})
        return self.rng.sample(keepers, 1) if keepers else []

    def _at_work(self) -> set[str]:
        """Runs that have an agent, or are about to have one."""
        return {run.id for run in self.yard.unfinished() if run.state in ("claimed", "running")}

    def kill_pullers(self) -> None:
        """Agents from outside die with their claims; then the daemon."""
        began = time.monotonic()
        daemon = self.start()
        self.until_up(daemon, began)
        self.submit(4)
        time.sleep(self.rng.uniform(0.2, 0.8))
        self.end_clients()
        self.start_pullers(2)
        time.sleep(self.rng.uniform(0.1, 0.5))
        self.killed(daemon, "at a random moment")

    def puller_asleep(self) -> None:
        """One stands still for longer than its lease and grace, and then ends what was given to another meanwhile."""
        began = time.monotonic()
        daemon = self.start()
        self.until_up(daemon, began)
        self.start_pullers(1, asleep=True)
        process, said = self.pullers[-1]
        ends = time.monotonic() + 2 * POINT_SECONDS
        while b"claimed" not in said.read_bytes() and time.monotonic() < ends:
            # Until the others leave it one.
            self.submit(2)
            time.sleep(0.2)
        time.sleep(LEASE_MS / 1000 + self.rng.uniform(0.5, 1.5))
        process.send_signal(signal.SIGCONT)
        with suppress(AssertionError):
            until(lambda: b"refused" in said.read_bytes() or b"completed" in said.read_bytes(), 5)
        self.kills["puller, asleep past its lease"] += 1
        self.killed(daemon, "at a random moment")
