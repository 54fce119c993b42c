"""A mutant is put into a copy of the package, and the tests that are about its module run against the copy.

Every trial is a fork of this process, which has the libraries loaded and nothing of Interlock: that saves most of the time. A
machine is compiled again before the trial, as anyone who changes it has to do: what is put to the test is the changed table.
"""

from __future__ import annotations

import compileall
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from enum import Enum
from pathlib import Path

import hypothesis.strategies  # noqa: F401 - what tests need is loaded once, before the forks
import pytest
import statemachine.states  # noqa: F401
import trio  # noqa: F401
from hypothesis import Phase, settings
from mutation_subjects import PACKAGE, ROOT

TESTS = ROOT / "tests"
COMPILED_FROM = {f"machines/{name}.py" for name in ("run", "attempt", "pool_worker", "dispatcher", "compile")}
CPU_SECONDS = 60
"""A trial that needs more has come into an endless loop: a whole one takes some seconds."""
WALL_SECONDS = 900
NEEDLESS = ("cacheprovider", "hypothesispytest", "unraisableexception", "threadexception")
"""Plugins of pytest that take most of a trial's time and decide nothing: they remember, explain and tidy up."""
MEMORY_BYTES = 4 << 30


class Verdict(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"


class NotJudged(Exception):
    """The tests could not be run, or fail without any mutant."""


def tests_about(file: str) -> list[list[str]]:
    """The test files that judge ``file`` ("decide/lanes.py"), in two groups: those that bear its name, and the others."""
    room, _, name = file.partition("/")
    found = sorted(TESTS.glob(f"unit/{room}/test_*.py"))
    if room == "machines":
        found.append(TESTS / "properties" / "test_machines.py")
    nearest = [path for path in found if name.removesuffix(".py") in path.name]
    return [[str(path) for path in group] for group in (nearest, [path for path in found if path not in nearest])]


class Court:
    """A copy of the package in ``folder``, and trials of what is put into it."""

    def __init__(self, folder: Path) -> None:
        self.copy = folder / "interlock"
        self.transcript = folder / "transcript"
        shutil.copytree(PACKAGE, self.copy, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(self.copy, quiet=2)
        # Derandomised: the same mutant has the same fate every time. A failure is enough, it need not be a small one.
        settings.register_profile(
            "mutation", derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate]
        )
        settings.load_profile("mutation")
        os.environ |= {"INTERLOCK_HYPOTHESIS": "mutation", "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def must_pass(self, file: str) -> None:
        """Raises :class:`NotJudged` when the tests about ``file`` fail as it is."""
        if self._trial(file) is Verdict.KILLED:
            raise NotJudged(f"the tests about {file} fail without a mutant:\n{self.transcript.read_text('utf-8')}")

    def judge(self, file: str, source: str) -> Verdict:
        """Whether the tests about ``file`` notice that it is ``source`` now."""
        path = self.copy / file
        kept = {path: path.read_text("utf-8"), (table := self.copy / "machines/compiled.py"): table.read_text("utf-8")}
        try:
            self._write(path, source)
            return self._trial(file)
        finally:
            for each, text in kept.items():
                self._write(each, text)

    @staticmethod
    def _write(path: Path, source: str) -> None:
        path.write_text(source, "utf-8")
        # By time and size a mutant is not told from what was there a moment before.
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            stale.unlink()

    def killer(self) -> str:
        """The test that failed in the last trial; or why there was none."""
        text = self.transcript.read_text("utf-8")
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
        return failed[1] if failed else (text.strip().splitlines() or ["a limit"])[-1]

    def _trial(self, file: str) -> Verdict:
        pid = os.fork()
        if pid == 0:
            code = int(pytest.ExitCode.INTERNAL_ERROR)
            try:
                code = self._in_the_child(file)
            except BaseException:  # noqa: BLE001 - the child must not come back from here
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(_ended(pid))
        if code == 0:
            return Verdict.SURVIVED
        # 1: a test failed. 2: a test file could not be imported. Below zero: it ran into a limit.
        if code in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED) or code < 0:
            return Verdict.KILLED
        raise NotJudged(f"pytest ended with status {code}:\n{self.transcript.read_text('utf-8')}")

    def _in_the_child(self, file: str) -> int:
        os.setpgid(0, 0)
        with self.transcript.open("wb") as transcript:
            os.dup2(transcript.fileno(), 1)
            os.dup2(transcript.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(self.copy.parent))
        os.chdir(ROOT)
        if file in COMPILED_FROM:
            try:
                self._compile()
            except Exception as error:  # noqa: BLE001 - a machine that cannot be compiled cannot go unnoticed
                print(error)
                return int(pytest.ExitCode.TESTS_FAILED)
        options = ["-x", "--assert=plain", "--tb=line", *(f"-pno:{plugin}" for plugin in NEEDLESS)]
        for group in filter(None, tests_about(file)):
            if code := pytest.main([*options, *group]):
                return int(code)
        return 0

    def _compile(self) -> None:
        from interlock.machines import compile as compiling

        assert Path(compiling.__file__).is_relative_to(self.copy)
        self._write(self.copy / "machines/compiled.py", compiling.compiled())


def _ended(pid: int) -> int:
    """The status of a trial; one that does not end is ended."""
    until = time.monotonic() + WALL_SECONDS
    pause = 0.01
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if time.monotonic() > until:
            os.killpg(pid, signal.SIGKILL)
            return os.waitpid(pid, 0)[1]
        time.sleep(pause)
        pause = min(0.1, pause * 1.2)
