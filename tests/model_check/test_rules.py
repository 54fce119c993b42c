"""Tests of the test: each rule switched off gives its counter-example, the shortest one, and it tells the story."""

from __future__ import annotations

import pytest
from page import PAGE, row_of_rule
from rules_off import OFF, Off
from searched import searched, searched_without
from setting import ALL_RULES, Setting


@pytest.mark.parametrize("off", OFF, ids=lambda off: off.name)
def test_without_the_rule(off: Off) -> None:
    found = searched_without(off)
    assert (found.fault, found.depth) == (off.fault, off.steps), found.told()
    assert len(found.trace) == off.steps + 1
    text, position = "\n".join(line.partition(" | ")[0] for line in found.trace), 0
    for words in off.story:
        position = text.find(words, position)
        assert position >= 0, f"'{words}' is not where the story has it:\n{found.told()}"
        position += len(words)
    assert row_of_rule(off, found) in PAGE.read_text("utf-8").splitlines(), (
        "docs/model-check.md tells another story; renew it with: python tests/model_check/page.py"
    )


@pytest.mark.parametrize("setting", list(dict.fromkeys(off.setting for off in OFF)), ids=lambda setting: setting.name)
def test_with_all_rules_the_same_world_is_sound(setting: Setting) -> None:
    """So that it is the rule which makes the difference."""
    found, _ = searched(setting)
    assert found.fault is None, found.told()


def test_every_rule_is_switched_off_somewhere() -> None:
    assert {rule for off in OFF for rule in off.without} == ALL_RULES
