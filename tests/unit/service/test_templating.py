"""Templates of tasks: filled strictly, found by name."""

from __future__ import annotations

from typing import Any

import pytest
from yard import Yard

from interlock.domain.errors import InvalidInput, NotFound
from interlock.service import templating

REVIEW: dict[str, Any] = {
    "title": "Review $repo",
    "content": "Look at ${repo} in $branch; it costs $$5.",
    "tags": ["review", "$repo"],
    "context": {"files": ["$branch/README"]},
    "priority": 3,
}


def test_filled() -> None:
    assert templating.fill("review", REVIEW, {"repo": "core", "branch": 7}) == {
        "title": "Review core",
        "content": "Look at core in 7; it costs $5.",
        "tags": ["review", "core"],
        "context": {"files": ["7/README"]},
        "priority": 3,
    }
    assert templating.parameters(REVIEW) == {"repo", "branch"}


def test_what_is_filled_in_is_no_template() -> None:
    assert templating.fill("t", {"title": "$a"}, {"a": "$b $$"}) == {"title": "$b $$"}


@pytest.mark.parametrize(
    ("task", "params", "words"),
    [
        (REVIEW, {"repo": "x"}, r"needs branch \(in content\)"),
        (REVIEW, {"repo": "x", "branch": "y", "brunch": "z"}, "no place for: brunch"),
        ({"title": "$ "}, {}, "title: Invalid placeholder"),
        ({"title": "x"}, {"a": 1}, "no place for: a"),
    ],
)
def test_refused(task: dict[str, Any], params: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        templating.fill("review", task, params)


def test_those_of_the_configuration_go_first(yard: Yard) -> None:
    yard.do(templating.put_template, "a", {"title": "of the database"})
    yard.do(templating.put_template, "b", {"title": "of the database"})
    configured = {"a": {"title": "configured"}}
    assert yard.read(lambda tx: templating.template_of(tx, configured, "a")) == {"title": "configured"}
    assert yard.read(lambda tx: templating.template_of(tx, configured, "b")) == {"title": "of the database"}
    with pytest.raises(NotFound) as caught:
        yard.read(lambda tx: templating.template_of(tx, configured, "c"))
    assert caught.value.hint == "templates: a, b"
    yard.do(lambda tx, _: templating.delete_template(tx, "b"))
    with pytest.raises(NotFound):
        yard.do(lambda tx, _: templating.delete_template(tx, "b"))
