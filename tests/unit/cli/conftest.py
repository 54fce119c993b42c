"""Commands in this process, over a data folder that the test filled through the service."""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import pytest
import trio

import interlock.app
from interlock.__main__ import LazyHost
from interlock.cli.host import Host
from interlock.cli.main import execute
from interlock.domain.run import Claim
from interlock.service import Service

T = TypeVar("T")
CONFIG = """\
version: 1
dispatch: {mode: pull, retry: {maxRetries: 1, baseDelayMs: 60000}}
agents:
  worker: {command: ["true", "a b"]}
"""


class Said(NamedTuple):
    """What a command answered."""

    status: int
    out: str
    err: str


class Desk:
    """A folder with a configuration and a data folder."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capfd = capfd
        (folder / "interlock.yaml").write_text(CONFIG)
        self.interlock("init")

    def interlock(self, *arguments: str) -> Said:
        """Do what a command line says."""
        self._capfd.readouterr()
        status = execute(cast("Host", LazyHost()), arguments)
        return Said(status, *self._capfd.readouterr())

    def ok(self, line: str) -> str:
        """What a command, given as one line, prints."""
        said = self.interlock(*shlex.split(line))
        assert said.status == 0, said
        return said.out

    def json(self, line: str) -> Any:
        """The same, with ``--json``."""
        return json.loads(self.ok(f"{line} --json"))

    def refused(self, line: str, status: int) -> str:
        """Why a command is refused."""
        said = self.interlock(*shlex.split(line))
        assert said.status == status, said
        assert said.err.startswith("error: ")
        return said.err

    def do(self, act: Callable[[Service], Awaitable[T]]) -> T:
        """Something that only an agent or a dispatcher does."""

        async def main() -> T:
            async with interlock.app.AppHost().open(data=None, config=None) as il:
                return await act(il.service)

        return trio.run(main)

    def claimed(self, title: str = "task", *options: str) -> Claim:
        """A run that an agent elsewhere has claimed."""
        number = json.loads(self.interlock("add", title, "--json", *options).out)["number"]

        async def claim(service: Service) -> Claim:
            await service.offers(holder="elsewhere", agent="worker")
            await service.dispatch(owner="here:1:a")
            return await service.claim(number, holder="elsewhere", agent="worker")

        return self.do(claim)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Desk:
    """A folder with an empty queue, in which this process works. Agents pull their work."""
    for name in ("INTERLOCK_DATA", "INTERLOCK_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(interlock.app, "raise_fd_limit", lambda: None)
    return Desk(tmp_path, capfd)
