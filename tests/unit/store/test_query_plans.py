"""The hot queries find their rows by an index, whatever the number of runs."""

from __future__ import annotations

import re

import pytest
from yard import Yard

from interlock.store.sqlite.queries import SQL

HOT = [
    "run",
    "run_by_id",
    "runs_by_prefix",
    "run_by_unique_key",
    "batch_latest",
    "batch_runs",
    "live_runs",
    "renew_owned",
    "quarantine",
    "stopping",
    "queued_after",
    "lane_of",
    "lanes_from",
    "lanes_after",
    "lane_rank",
    "lane_by_key",
    "offers_push",
    "offers_pull",
    "next_due",
    "due",
    "shift_deadlines",
    "count_states",
    "prunable",
    "delete_run",
    "attempt",
    "attempts",
    "attempt_by_request",
    "events_of",
    "events_after",
    "last_seq",
    "slots_of",
    "slot_holders",
    "used",
    "used_of",
    "needs_of",
    "dependants",
    "meet_need",
    "stray_slots",
    "active_without_slots",
]
FEW = {
    "live_runs": "active runs are no more than the limits allow",
    "offers_pull": "the same",
    "slot_holders": "the same",
    "batch_runs": "a backlog, which its author wrote",
}
"""Queries that may sort what they found."""
SMALL = {
    "used": "one row per limit",
    "stray_slots": "one row per slot",
    "count_states": "unfinished runs, counted in their own index",
    "last_seq": "the end of the log",
}
"""Queries that may read all of a table other than runs."""
IN_ORDER = {
    "lanes_from": "SCAN lanes USING INDEX lanes_by_head",
    "offers_pull": "SCAN runs USING INDEX runs_offered",
}
"""Queries that begin where their order does, and end at their limit."""


def plan(yard: Yard, name: str) -> list[str]:
    sql = SQL[name]
    numbered = [int(found) for found in re.findall(r"\?(\d+)", sql)]
    values = [1] * (max(numbered) if numbered else sql.count("?"))
    with yard.raw() as shell:
        rows = shell.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
    shell.close()
    return [row[3] for row in rows]


@pytest.mark.parametrize("name", HOT)
def test_an_index_serves(yard: Yard, name: str) -> None:
    steps = plan(yard, name)
    for step in steps:
        assert not re.match(r"SCAN (runs|r|e|run_events|attempts|a)\b(?!.*USING (COVERING )?INDEX)", step), steps
        if step.startswith("SCAN") and not step.startswith("SCAN (subquery") and name not in SMALL:
            assert step == IN_ORDER[name]
        if "TEMP B-TREE" in step:
            assert name in FEW, steps


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("lane_rank", "runs_ready"),
        ("lanes_from", "lanes_by_head"),
        ("lanes_after", "lanes_by_head"),
        ("due", "runs_due"),
        ("next_due", "runs_due"),
        ("prunable", "runs_ended"),
        ("batch_latest", "runs_batch"),
        ("run_by_unique_key", "runs_unique_key"),
        ("queued_after", "runs_unfinished"),
        ("offers_push", "runs_unfinished"),
        ("offers_pull", "runs_offered"),
        ("live_runs", "runs_unfinished"),
        ("stopping", "runs_stopping"),
        ("events_of", "run_events_run"),
        ("dependants", "needs_by_need"),
        ("slot_holders", "slots_by_key"),
    ],
)
def test_it_is_the_index_that_was_made_for_it(yard: Yard, name: str, index: str) -> None:
    assert any(f"INDEX {index}" in step for step in plan(yard, name)), plan(yard, name)


def test_every_query_is_valid_sql(yard: Yard) -> None:
    for name in SQL:
        assert plan(yard, name) is not None
