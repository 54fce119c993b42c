"""What the machine is like right now, and how things are measured on one that is shared."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured: ``times`` rounds in ``folder``. ``small``: enough to see that it works, not what it costs."""

    folder: Path
    small: bool = False
    times: int = 3

    def size(self, full: T, small: T) -> T:
        """The full size, or the small one."""
        return small if self.small else full

    def place(self, name: str) -> Path:
        """A new, empty folder for one measurement."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))


def say(text: str) -> None:
    """Progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def fsync_ms(folder: Path, writes: int = 50) -> float:
    """Median milliseconds of a 4 KiB write with fdatasync where the benchmarks keep their files."""
    with tempfile.TemporaryFile(dir=folder) as file:
        took = []
        for index in range(writes):
            os.pwrite(file.fileno(), b"x" * 4096, index * 4096)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def seconds(act: Callable[[], object]) -> float:
    """Wall-clock seconds of ``act``."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


class Rounds:
    """Figures by name, one of each per round."""

    def __init__(self, figures: Mapping[str, list[float]]) -> None:
        self.figures = dict(figures)

    def median(self, name: str) -> float:
        """Of one figure."""
        return statistics.median(self.figures[name])

    def ratio(self, name: str, floor: str) -> float:
        """Median of the rounds' ratios: what was measured one after the other met the same moment of the machine."""
        return statistics.median(
            ours / theirs for ours, theirs in zip(self.figures[name], self.figures[floor], strict=True)
        )


def in_turn(measures: Mapping[str, Callable[[], float]], times: int) -> Rounds:
    """Measure each, one after the other, ``times`` over. Every other round goes backwards, so that none is always first."""
    figures: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(times):
        for name in list(measures) if turn % 2 == 0 else reversed(list(measures)):
            figures[name].append(measures[name]())
            say(f"  round {turn + 1} of {times}: {name}: {figures[name][-1]:.4g}")
    return Rounds(figures)


def percentile(values: list[float], share: float) -> float:
    """The value that ``share`` (0..1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, round(share * len(ordered)) - 1))]


def machine() -> str:
    """One line on the machine."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
            if line.startswith(("model name", "CPU part"))
        ),
        "unknown CPU",
    )
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{os.cpu_count()} cores ({model}), Linux {os.uname().release.split('-')[0]}, Python {python}"
