"""Every reachable state of runs, agents, processes and messages is visited, and nothing is wrong in any of them."""

from __future__ import annotations

import os

import pytest
from page import PAGE, row_of_search
from searched import searched
from setting import Setting
from sizes import DEEP, SMALL

from interlock.domain.states import RunState
from interlock.machines.table import RUN

WORLDS = SMALL + DEEP if os.environ.get("INTERLOCK_MODEL") == "deep" else SMALL
NOT_MADE = {
    (RunState.BLOCKED, "reject"): "a need of it failed; these worlds have no needs",
    (RunState.DISPATCHED, "time_out"): "a deadline of the run; the worlds have timeouts of attempts only",
    (
        RunState.CLAIMED,
        "renew",
    ): "the first heartbeat of a remote agent starts the run; local leases are renewed by one UPDATE",
}
"""Moves of the machine that no world makes, and why."""


@pytest.mark.parametrize("setting", WORLDS, ids=lambda setting: setting.name)
def test_nothing_is_wrong_anywhere(setting: Setting) -> None:
    found, _ = searched(setting)
    assert found.fault is None, found.told()
    page = PAGE.read_text("utf-8")
    if setting in SMALL or setting.name in page:
        assert row_of_search(setting, found) in page.splitlines(), (
            "docs/model-check.md tells of another number of states; renew it with: python tests/model_check/page.py"
        )


def test_every_move_of_the_machine_is_made_somewhere() -> None:
    """What the searches never do they say nothing about."""
    made = {move for setting in SMALL for move in searched(setting)[1]}
    assert set(RUN.moves) - made == set(NOT_MADE)
