"""The program as a person uses it: a folder, the command, what it prints and leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

COMMAND = [sys.executable, "-m", "interlock"]
PATIENCE_SECONDS = 90.0
"""For what must happen, however busy the machine is."""


def until(what: Callable[[], Any], why: str) -> Any:
    """Wait until ``what`` answers something true, and return that."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"it never happened: {why}")


class Yard:
    """A folder with a backlog in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("INTERLOCK") and name not in ("CI", "COLUMNS", "NO_COLOR")
        }
        self.env |= {"TERM": "xterm-256color"}
        self.started: list[subprocess.Popen[str]] = []

    def write(self, name: str, text: str) -> Path:
        """A file of it."""
        path = self.folder / name
        path.write_text(text, "utf-8")
        return path

    def read(self, name: str) -> str:
        """The text of a file of it; empty when it is not there."""
        path = self.folder / name
        return path.read_text("utf-8") if path.exists() else ""

    def did(self) -> list[str]:
        """The lines that agents appended to the file ``did``."""
        return self.read("did").split("\n")[:-1]

    def interlock(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run the program to its end."""
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.env,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the program."""
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def runs(self) -> list[dict[str, Any]]:
        """All runs, the oldest first, straight from the database."""
        import sqlite3

        with sqlite3.connect(f"file:{self.folder}/.interlock/interlock.db?mode=ro", uri=True) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute("SELECT * FROM runs ORDER BY number")]

    def states(self) -> list[str]:
        """The states of all runs, the oldest first."""
        return [run["state"] for run in self.runs()]

    def agents_alive(self) -> list[int]:
        """Processes that carry the mark of this data folder."""
        mark = f"INTERLOCK_DATA={self.folder}/.interlock".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    @staticmethod
    def until(what: Callable[[], Any], why: str) -> Any:
        """:func:`until`."""
        return until(what, why)

    def terminal(self, *arguments: str, rows: int = 24, columns: int = 80) -> pexpect.spawn:
        """The program on a terminal of its own."""
        return pexpect.spawn(
            COMMAND[0],
            [*COMMAND[1:], *arguments],
            cwd=str(self.folder),
            env=self.env,
            dimensions=(rows, columns),
            timeout=PATIENCE_SECONDS,
            encoding="utf-8",
            codec_errors="replace",
        )

    def locks_held(self) -> list[str]:
        """Lock files of dispatchers that somebody holds."""
        import fcntl

        held = []
        for path in (self.folder / ".interlock" / "instances").glob("*.lock"):
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    held.append(path.name)
        return held

    def summary(self, *arguments: str) -> dict[str, Any]:
        """`interlock run ... --json`, parsed."""
        done = self.interlock("run", *arguments, "--json")
        data: dict[str, Any] = json.loads(done.stdout)
        assert data["exit_status"] == done.returncode
        return data


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    """An empty folder; what was started in it is ended with it."""
    made = Yard(tmp_path.resolve())
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    for pid in made.agents_alive():
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
