"""What `interlock run` refuses before anything is queued, and what it says of a backlog that it has seen before."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def pushing(desk: Any) -> Any:
    """The desk, with a dispatcher that starts agents."""
    (desk.folder / "interlock.yaml").write_text("agents: {worker: 'true'}\nstore: {kind: x}\n")
    (desk.folder / "todo.md").write_text("- [ ] one\n- [ ] two\n")
    return desk


def test_an_agent_where_agents_come_for_their_work(desk: Any) -> None:
    (desk.folder / "todo.md").write_text("- [ ] one\n")
    assert "mode: pull" in desk.refused("run todo.md --agent worker", 2)
    assert desk.json("ps --all") == []


@pytest.mark.parametrize(
    ("agent", "words"), [("' '", "--agent is empty"), ("no-such-program-here", "the agent cannot be started")]
)
def test_an_agent_that_is_none(pushing: Any, agent: str, words: str) -> None:
    assert words in pushing.interlock("run", "todo.md", "--agent", agent.strip("'")).err
    assert pushing.json("ps --all") == []


def test_what_has_become_of_a_backlog_is_told(pushing: Any) -> None:
    """Nothing is dispatched, so that it ends at once."""
    (pushing.folder / "interlock.yaml").write_text("dispatch: {enabled: false}\nstore: {kind: x}\n")
    (pushing.folder / "todo.yaml").write_text("- {id: a, title: one}\n- {id: b, title: two}\n")
    said = pushing.interlock("run", "todo.yaml", "--agent", "true")
    assert (said.status, "2 tasks: 2 new" in said.err) == (1, True)
    assert "not active yet: " in said.err
    (pushing.folder / "todo.yaml").write_text(
        "- {id: a, title: one, content: in other words}\n- {id: c, title: three}\n"
    )
    said = pushing.interlock("run", "todo.yaml", "--agent", "true")
    assert "1 new, 1 going on" in said.err
    assert "queued before its text changed, goes on with the old one: #1 one; `interlock cancel` it first" in said.err
    assert "1 run of earlier versions of this backlog go on as well" in said.err
