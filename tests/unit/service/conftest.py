"""A yard for every test that asks for one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from yard import Yard


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    """A store of its own."""
    made = Yard(tmp_path / "data")
    yield made
    made.store.close()
