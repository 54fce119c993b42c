"""The witness process seen from a test: started, asked, ended."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Witness:
    """Watches /proc from a process of its own for as long as the block lasts; its sums are there afterwards."""

    def __init__(self, data: Path, report: Path, tags: Path, limit: int, tag_limits: Mapping[str, int]) -> None:
        self._report = report
        self._command = [sys.executable, "-I", "-S", str(HERE / "crash_watcher.py"), str(data), str(report), str(limit)]
        self._command += [f"{tag}={count}" for tag, count in tag_limits.items()] + ["--tags", str(tags)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Witness:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, cwd="/", start_new_session=True)
        deadline = time.monotonic() + 30
        while not self._said():
            assert time.monotonic() < deadline, "the witness does not start"
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process is not None
        blind = process.poll() is not None
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(30)
        finally:
            process.kill()
        assert not blind, "the witness ended before its time"

    def _said(self) -> list[dict[str, Any]]:
        try:
            lines = self._report.read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def faults(self) -> list[str]:
        """What it saw that must not be."""
        return [said["fault"] for said in self._said() if "fault" in said]

    @property
    def sums(self) -> dict[str, Any]:
        """After the block: ``samples``, ``most`` runs alive at once, ``runs`` seen, ``cgroups`` that agents were seen in."""
        return next(said for said in self._said() if "samples" in said)

    @property
    def samples(self) -> int:
        """How often it looked."""
        return int(self.sums["samples"])

    @property
    def most(self) -> int:
        """The most runs that it saw alive at once."""
        return int(self.sums["most"])
