"""A daemon (`interlock up`) on a folder of its own, watched from outside: the database, /proc, nothing of its insides."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from benchmarks.probe import say
from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.places import CONFIG_FILE, DATA_FOLDER, DATABASE
from interlock.domain.run import ProcessIdentity
from interlock.runtimes import cgroup
from interlock.runtimes.leftovers import attempt_folders
from interlock.runtimes.process import Liveness, is_alive
from interlock.runtimes.records import read_identity

PATIENCE_SECONDS = 300.0
LOOK_SECONDS = 0.002
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Daemon:
    """``interlock up`` in ``folder``, with one agent that runs ``command``, ``at_once`` of them.

    Use it as a context manager: at its end the daemon and every agent that it started are gone.
    """

    def __init__(self, folder: Path, command: str, at_once: int) -> None:
        self.folder = folder
        self.data = folder / DATA_FOLDER
        (folder / CONFIG_FILE).write_text(
            f"dispatch:\n  defaultAgent: agent\n  concurrency:\n    global: {at_once}\n"
            f"agents:\n  agent:\n    command: {command}\n",
            "utf-8",
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: sqlite3.Connection | None = None

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._reader is not None:
            self._reader.close()
        end_agents(self.data)

    def start(self) -> float:
        """Start it; seconds until its door is open: it says that it is active, which it does once it has taken up what was left."""
        began = time.perf_counter()
        with open(self.folder / "up.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "interlock", "up"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK")},
            )
        self.until(lambda: self.ask("SELECT count(*) FROM instances WHERE pid = ? AND state = 'active'", self.pid) == 1)
        return time.perf_counter() - began

    @property
    def pid(self) -> int:
        """Of the daemon."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL, as a crash: its agents go on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask(self, sql: str, *values: object) -> int:
        """A number out of the database; 0 while there is none."""
        if self._reader is None:
            if not (self.data / DATABASE).exists():
                return 0
            self._reader = sqlite3.connect(f"file:{self.data / DATABASE}?mode=ro", uri=True, isolation_level=None)
        try:
            return int(self._reader.execute(sql, values).fetchone()[0] or 0)
        except sqlite3.OperationalError:
            # It is being made.
            self._reader.close()
            self._reader = None
            return 0

    def until(self, what: Callable[[], bool]) -> None:
        """Wait. Raises RuntimeError with the daemon's last words when it has ended, or it takes too long."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not what():
            over = self._process is not None and self._process.poll() is not None
            if over or time.monotonic() > end:
                words = (self.folder / "up.log").read_text("utf-8", "replace")[-2000:]
                raise RuntimeError(f"the daemon {'has ended' if over else 'is stuck'}:\n{words}")
            time.sleep(LOOK_SECONDS)

    def running(self) -> int:
        """Runs whose agents are confirmed to work under this very process."""
        return self.ask(
            "SELECT count(*) FROM runs WHERE ended_ms IS NULL AND state = 'running' AND owner LIKE ?", f"%:{self.pid}:%"
        )

    def cpu_seconds(self) -> float:
        """User and system time of the process so far, its children's left out."""
        stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        fields = stat[stat.rfind(b")") + 1 :].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def memory_kb(self) -> int:
        """KiB that are its own: anonymous memory. Mapped files are shared with whoever else runs Python just then."""
        rollup = Path(f"/proc/{self.pid}/smaps_rollup").read_text("utf-8")
        found = re.search(r"^Anonymous:\s+(\d+) kB", rollup, re.MULTILINE)
        assert found is not None
        return int(found[1])

    def rest(self, *, quiet_seconds: float = 1.0, share: float = 0.02) -> None:
        """Wait until it uses less than ``share`` of a CPU for a while."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            before = self.cpu_seconds()
            time.sleep(quiet_seconds)
            if self.cpu_seconds() - before <= share * quiet_seconds:
                return
        say("  the daemon does not come to rest")


def end_agents(data: Path) -> None:
    """SIGKILL to every agent of a data folder that lives, each by what is written of it; wait until they are gone."""
    for _ in range(3):
        living = [identity for identity in _agents(data) if is_alive(identity) is Liveness.ALIVE]
        for identity in living:
            # It leads a session and group of its own, and the agents here do not leave it.
            with suppress(ProcessLookupError):
                os.killpg(identity.pid, signal.SIGKILL)
        end = time.monotonic() + 30
        while time.monotonic() < end and any(is_alive(identity) is Liveness.ALIVE for identity in living):
            time.sleep(0.05)
        if not living:
            break
    for folder, _ in attempt_folders(data):
        # Nobody comes back for the cgroups of agents whose dispatcher was killed: thousands of them slow the kernel down.
        path = AttemptFiles(data / folder).lock.read_text("utf-8", "replace").strip()
        if path:
            cgroup.remove(Path(path))


def _agents(data: Path) -> list[ProcessIdentity]:
    found = (read_identity(AttemptFiles(data / folder)) for folder, _ in attempt_folders(data))
    return [identity for identity in found if isinstance(identity, ProcessIdentity)]


def checkpoint(database: Path) -> int:
    """Move the WAL into the file; the size of the file in bytes."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return database.stat().st_size
