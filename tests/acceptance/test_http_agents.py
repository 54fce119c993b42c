"""Many agents over HTTP, as processes of their own, while the server lives and while it is killed again and again."""

from __future__ import annotations

import json
import random
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

AGENTS = Path(__file__).with_name("http_agents.py")
PULL = (
    "dispatch:\n  mode: pull\n  concurrency: {global: 100000}\n  leases: {remote: 60s, grace: 200ms}\n"
    "server:\n  listen: 127.0.0.1:0\n"
)


class Served:
    """``interlock up`` in a folder, and its port in a file."""

    def __init__(self, yard: Any) -> None:
        self.yard = yard
        yard.write("interlock.yaml", PULL)
        self.port_file = yard.folder / "port"
        self.process: subprocess.Popen[bytes] | None = None
        self._times = 0

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self._times += 1
        said = self.yard.folder / f"up{self._times}.log"
        with open(said, "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "interlock", "up"],
                cwd=self.yard.folder,
                env=self.yard.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        found = self.yard.until(lambda: re.search(r"http://127\.0\.0\.1:(\d+)", said.read_text()), "it serves")
        fresh = self.port_file.with_suffix(".new")
        fresh.write_text(found[1])
        fresh.replace(self.port_file)

    def kill(self) -> None:
        """As a crash."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def submit(self, count: int) -> list[int]:
        """Tasks, in pages; their numbers."""
        numbers: list[int] = []
        for begin in range(0, count, 1000):
            tasks = [{"title": f"task {n}"} for n in range(begin, min(count, begin + 1000))]
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.port_file.read_text()}/api/workflow-runs",
                json.dumps(tasks).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                numbers += [run["number"] for run in json.loads(answer.read())["runs"]]
        return numbers

    def agents(self, processes: int, threads: int) -> list[subprocess.Popen[str]]:
        """Agents, in so many processes."""
        return [
            subprocess.Popen(
                [sys.executable, str(AGENTS), str(self.port_file), f"p{n}", str(threads)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(processes)
        ]

    def ask(self, sql: str) -> list[Any]:
        """Out of the database."""
        with closing(sqlite3.connect(f"file:{self.yard.folder}/.interlock/interlock.db?mode=ro", uri=True)) as database:
            return database.execute(sql).fetchall()


@pytest.fixture
def served(yard: Any) -> Any:
    made = Served(yard)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def acknowledged(agents: list[subprocess.Popen[str]]) -> dict[int, str]:
    """What the agents were told is completed: number -> its result. Each once."""
    said: dict[int, str] = {}
    for process in agents:
        out, _ = process.communicate(timeout=240)
        assert process.returncode == 0
        for line in out.splitlines():
            number, _, result = line.split()
            assert int(number) not in said, "completed twice"
            said[int(number)] = result
    return said


def test_each_run_is_claimed_once_by_32_agents_at_once(served: Served) -> None:
    served.start()
    numbers = served.submit(2000)
    said = acknowledged(served.agents(8, 4))
    assert sorted(said) == numbers
    books = dict(served.ask("SELECT number, json_extract(result, '$') FROM runs WHERE state = 'completed'"))
    assert books == said
    assert served.ask("SELECT count(*), max(fence) FROM attempts") == [(2000, 1)]


@pytest.mark.slow
def test_killed_again_and_again_each_run_completes_once(served: Served) -> None:
    """The server dies at random moments, one of the agents' processes as well; the rest of the 1,000 runs goes on."""
    rng = random.Random(7)
    served.start()
    numbers = served.submit(1000)
    agents = served.agents(4, 4)
    doomed = served.agents(1, 4)[0]
    for kill in range(5):
        target = (kill + 1) * 150
        served.yard.until(
            lambda target=target: (
                served.ask("SELECT count(*) FROM runs WHERE state = 'completed'")[0][0] >= target + rng.randrange(40)
            ),
            "some are done",
        )
        served.kill()
        if kill == 2:
            doomed.send_signal(signal.SIGKILL)
        served.start()
    doomed.communicate()
    said = acknowledged(agents)
    # What the dead one had claimed lapses, and is done by whoever comes then.
    served.yard.until(
        lambda: not served.ask("SELECT 1 FROM runs WHERE state IN ('claimed', 'running')"), "its leases have lapsed"
    )
    said |= acknowledged(served.agents(1, 2))
    books = dict(served.ask("SELECT number, json_extract(result, '$') FROM runs WHERE state = 'completed'"))
    assert sorted(books) == numbers
    assert said.items() <= books.items(), "what was acknowledged is in the books as it was said"
    doubled = served.ask(
        "SELECT run FROM run_events WHERE to_state = 'completed' AND from_state != 'completed' GROUP BY run HAVING count(*) > 1"
    )
    assert doubled == []
