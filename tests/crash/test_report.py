"""The page on reliability says what the campaign's result says, faults included."""

from __future__ import annotations

import json
import re

import crash_report
from crash_rounds import AT_START, POINTS


def results() -> list[dict[str, object]]:
    return [json.loads(line) for line in crash_report.RESULTS.read_text().splitlines()]


def test_the_page_is_current() -> None:
    assert crash_report.PAGE.read_text() == crash_report.written(results())


def test_daemons_died_at_every_named_point() -> None:
    died = {kind for result in results() for kind in result["kills"]}  # type: ignore[attr-defined]
    assert {f"at {point}" for point in POINTS if point not in AT_START} <= died


def test_a_fault_is_not_hidden() -> None:
    one = results()[0]
    page = crash_report.written([{**one, "faults": ["seed 1: r1 was acknowledged and is lost"]}])
    assert "**1 faults** in 1 chunks" in page
    assert "- seed 1: r1 was acknowledged and is lost" in page
    assert "Everything balanced" not in page


def test_the_command_that_it_names_is_there() -> None:
    for program in re.findall(r"python (\S+)", crash_report.COMMAND):
        assert (crash_report.DOCS.parent / program).is_file()
