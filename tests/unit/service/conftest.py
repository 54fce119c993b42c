"""A yard for every test that asks for one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from yard import Yard

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Commits are real, but nobody waits for a disk."""


@pytest.fixture
def yard() -> Iterator[Yard]:
    """A store of its own."""
    with TemporaryDirectory(dir=MEMORY, prefix="interlock-yard-") as folder:
        made = Yard(Path(folder))
        yield made
        made.store.close()
