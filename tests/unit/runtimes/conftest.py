"""Real processes in a data folder whose path has a space and an umlaut. Every test leaves nothing behind, or fails."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.settings import Agent, RuntimeKind
from interlock.ports.runtime import Launch
from interlock.runtimes import CommandRuntime
from interlock.runtimes.cgroup import cgroup_name, remove, usable_parent
from interlock.runtimes.keeper import reap as reap_closed
from interlock.runtimes.process import process_table, read_stat, send_signal

DEADLINE_SECONDS = 20.0


class Yard:
    """Attempt folders for one test, and what to do with them."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.cwd = base / "work tree"
        self.cwd.mkdir(parents=True)
        self.count = 0

    def folder(self, prompt: str = "do it\n") -> Path:
        """A fresh attempt folder with its prompt."""
        self.count += 1
        folder = self.base / "attempts" / f"{self.count}.1.g"
        folder.mkdir(parents=True)
        (folder / "prompt.md").write_text(prompt)
        return folder

    def launch(self, command: str | tuple[str, ...], folder: Path | None = None, **env: str) -> Launch:
        """What a dispatcher would hand to a runtime."""
        folder = folder or self.folder()
        return Launch(
            run=self.count,
            run_id=f"run-{self.count}",
            fence=1,
            agent=Agent(name="tester", command=command, runtime=RuntimeKind.COMMAND),
            folder=folder,
            cwd=self.cwd,
            env={**os.environ, "INTERLOCK_RUN_ID": f"run-{self.count}", **env},
        )

    def output(self, launch: Launch) -> str:
        """The attempt's log."""
        return AttemptFiles(launch.folder).log.read_text(errors="replace")

    def pid_in(self, name: str) -> int | None:
        """A pid that an agent wrote into a file of its working folder; None until it is there."""
        try:
            text = (self.cwd / name).read_text()
        except FileNotFoundError:
            return None
        return int(text) if text.endswith("\n") else None

    def lives(self, pid: int) -> bool:
        """Whether a process with this pid lives (zombies do not)."""
        stat = read_stat(pid)
        return stat is not None and stat.living


async def until(condition: Callable[[], Any], seconds: float = DEADLINE_SECONDS) -> Any:
    """Wait for a condition; fails at the deadline. Returns what the condition gave."""
    with trio.fail_after(seconds):
        while not (value := condition()):
            await trio.sleep(0.005)
    return value


def leftovers(base: Path) -> list[str]:
    """Living processes that work in, or know of, this test's folder."""
    mark = os.fsencode(base)
    found = []
    for stat in process_table():
        try:
            environment = Path(f"/proc/{stat.pid}/environ").read_bytes()
            here = os.readlink(f"/proc/{stat.pid}/cwd")
        except OSError:
            continue
        if stat.living and stat.pid != os.getpid() and (mark in environment or here.startswith(str(base))):
            found.append(f"{stat.describe()} {stat.start_ticks}")
    return found


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    """Attempt folders; afterwards nothing may live."""
    base = tmp_path / "data föld er"
    yield Yard(base)
    reap_closed()
    deadline = time.monotonic() + 2
    while (left := leftovers(base)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for line in left:
        send_signal(int(line.split()[1]), int(line.split()[-1]), 9)  # type: ignore[arg-type]
    assert not left, f"left behind: {left}"


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Awaitable[Any]]:
    """Wait for a condition with a deadline."""
    return until


@pytest.fixture(params=["cgroup", "plain"])
async def runtime(request: pytest.FixtureRequest, yard: Yard) -> AsyncIterator[CommandRuntime]:
    """A command runtime of either containment; afterwards no cgroup may be left."""
    if request.param == "cgroup" and usable_parent() is None:
        pytest.skip("cgroups cannot be made here")
    made = CommandRuntime(cgroups=request.param == "cgroup")
    yield made
    parent = made._cgroup_parent
    if parent is not None:
        names = [cgroup_name(folder.resolve()) for folder in (yard.base / "attempts").glob("*")]
        left = [name for name in names if (parent / name).exists()]
        for name in left:
            remove(parent / name)
        assert not left, f"cgroups left: {left}"
    made.close()


LAUNCHER = """
    import os, signal, sys, json
    from pathlib import Path
    import trio
    from interlock.domain.settings import Agent
    from interlock.ports.runtime import Launch, CannotStart
    import interlock.runtimes.command as command

    folder, cwd, agent, cgroups, stop_at = sys.argv[1:]

    if stop_at:
        def crashpoint(name):
            if name == stop_at:
                os.kill(os.getpid(), signal.SIGSTOP)
        command.crashpoint = crashpoint

    async def main():
        runtime = command.CommandRuntime(cgroups=cgroups == "True")
        launch = Launch(run=1, run_id="run", fence=1, agent=Agent(name="tester", command=agent),
                        folder=Path(folder), cwd=Path(cwd), env=dict(os.environ))
        if stop_at == "before":
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            handle = await runtime.launch(launch)
        except CannotStart as reason:
            print("refused:", reason, flush=True)
            return
        print("launched", handle.identity.pid, flush=True)
        sys.stdin.read()
        print("ended", (await handle.wait()).exit_status, flush=True)

    trio.run(main)
"""


@pytest.fixture
def launcher(yard: Yard) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Another dispatcher process, which launches and then waits for the end of its standard input."""
    started: list[subprocess.Popen[str]] = []

    def start(
        folder: Path, agent: str, *, contained: bool, crash_at: str = "", stop_at: str = ""
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(LAUNCHER), folder, yard.cwd, agent, str(contained), stop_at],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "INTERLOCK_CRASH_AT": crash_at},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
