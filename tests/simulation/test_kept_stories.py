"""Stories that once showed a fault, kept in fixtures/simulation: each is played again, and no rule is broken any more."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulation_campaign import KEPT, assert_every_rule_holds

from interlock.testing.simulation import decode

STORIES = sorted(KEPT.glob("*.json"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_what_once_broke_a_rule_does_so_no_more(path: Path, tmp_path: Path) -> None:
    assert_every_rule_holds(decode(path.read_bytes()), tmp_path)


def test_there_are_some() -> None:
    assert STORIES
