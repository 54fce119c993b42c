"""What keeps a data folder from being written to, as far as its file system says so."""

from __future__ import annotations

import os
from pathlib import Path

NEAR_TO_NOTHING_BYTES = 64 * 1024
"""With less than this, SQLite cannot commit."""


def trouble(folder: Path) -> str | None:
    """Why nothing can be written to ``folder``, in a few words; None: nothing is seen to be wrong, or nothing can be told."""
    try:
        system = os.statvfs(folder)
    except OSError:
        return None
    if system.f_flag & os.ST_RDONLY:
        return f"the file system is read-only ({folder})"
    # What is reserved for root is there for root.
    free = (system.f_bfree if os.geteuid() == 0 else system.f_bavail) * system.f_frsize
    if free < NEAR_TO_NOTHING_BYTES:
        return f"the disk is full ({folder})"
    return None
