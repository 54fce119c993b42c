"""Run, attempt and pool worker: every reachable combination is visited, and each rule is needed."""

from __future__ import annotations

import pytest
from page import PAGE, row_of_pool
from pool_model import RULES, search

from interlock.domain.states import ACTIVE, HELD_BY_AGENT, RunState, WorkerState
from interlock.machines.table import ATTEMPT, RUN, WORKER

WITHOUT = {
    "claim once": ("a live claim has one worker", "worker 1: takes the offer"),
    "end at once": ("the worker of a live claim is busy, or being stopped", "its attempt is to be ended later"),
    "intent": ("a live claim has one worker", "cancel at once"),
    "take at once": ("a live claim has one worker", "is to be marked later"),
}


def test_nothing_is_wrong_with_run_attempt_and_worker() -> None:
    found = search()
    assert found.fault is None, "\n".join(found.trace)
    assert row_of_pool("", found) in PAGE.read_text("utf-8").splitlines(), (
        "renew with: python tests/model_check/page.py"
    )
    made = {
        machine: {(state, event) for one, state, event in found.taken if one == machine}
        for machine in ("worker", "attempt")
    }
    assert made["worker"] == set(WORKER.moves)
    # A lapse is for agents whose process nobody can see; a pool sees its workers.
    assert set(ATTEMPT.moves) - made["attempt"] == {move for move in ATTEMPT.moves if move[1] == "lapse"}
    states = {(run, worker) for run, _, worker in found.triples}
    assert states == {(run, worker) for run in RUN.states for worker in WORKER.states if _possible(run, worker)}


def _possible(run: RunState, worker: WorkerState) -> bool:
    """A worker is busy with a live claim only; everything else goes with everything."""
    return worker is not WorkerState.BUSY or run in HELD_BY_AGENT & ACTIVE


@pytest.mark.parametrize("rule", sorted(RULES))
def test_without_a_rule_of_the_pool(rule: str) -> None:
    found = search(RULES - {rule})
    fault, step = WITHOUT[rule]
    assert found.fault == fault, "\n".join(found.trace)
    assert step in found.trace[-1], "\n".join(found.trace)
    assert row_of_pool(rule, found) in PAGE.read_text("utf-8").splitlines(), (
        "renew with: python tests/model_check/page.py"
    )
