"""How much memory the machine has to spare."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def available_memory_bytes() -> int | None:
    """Bytes that new processes could use without swapping (MemAvailable); None where that is not known."""
    try:
        for line in _MEMINFO.read_bytes().splitlines():
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None
