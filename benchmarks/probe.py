"""What the machine is like right now."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def fsync_ms(writes: int = 50) -> float:
    """Median milliseconds of a 4 KiB write with fdatasync where the benchmarks keep their files."""
    with tempfile.TemporaryFile() as file:
        took = []
        for index in range(writes):
            os.pwrite(file.fileno(), b"x" * 4096, index * 4096)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def median_seconds(act: Callable[[], object], times: int = 3) -> float:
    """Median wall-clock seconds of ``act``."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


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
    return f"{os.cpu_count()} cores ({model}), Linux {os.uname().release.split('-')[0]}"
