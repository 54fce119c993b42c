"""Real daemons, real agents, real kills. The helpers are the modules beside this file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def make_yard(tmp_path: Path) -> Iterator[Any]:
    """Make a yard; whatever runs in it ends with the test."""
    from contextlib import ExitStack

    from crash_yard import Yard

    with ExitStack() as stack:

        def make(name: str = "yard", **options: Any) -> Yard:
            return stack.enter_context(Yard(tmp_path / name, **options))

        yield make


@pytest.fixture
def yard(make_yard: Any) -> Iterator[Any]:
    """A yard. At the end of a test that passed, its books are in balance and no process is left."""
    made = make_yard()
    yield made
    for daemon in made.daemons:
        daemon.kill()
    assert made.faults() == []
