"""Templates over HTTP: kept, shown, filled, removed; those of the configuration go first and stay as they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from interlock.domain.settings import Settings
from interlock.service.templating import FIELDS

TEMPLATES = "/api/templates"
REVIEW = {"title": "Review ${branch}", "workflow_type": "review", "priority": 3, "context": {"files": ["${file}"]}}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """With one of the configuration."""
    return msgspec.structs.replace(settings, templates={"fixed": {"title": "Configured ${x}"}})


async def _put(site: Any, name: str, task: Any) -> Any:
    return await site.client.put(f"{TEMPLATES}/{name}", json={"task": task})


async def test_kept_filled_changed_removed(site: Any) -> None:
    made = await _put(site, "review", REVIEW)
    assert made.status_code == 200
    assert made.json() == {"name": "review", "task": REVIEW, "parameters": ["branch", "file"], "configured": False}
    assert await site.get(f"{TEMPLATES}/review") == made.json()
    params = {"branch": "main", "file": "a.py"}
    (run,) = (await site.post("", {"template": "review", "params": params}))["runs"]
    assert (run["title"], run["workflow_type"], run["priority"]) == ("Review main", "review", 3)
    beside = {"template": "review", "params": params, "title": "Mine", "priority": 9}
    (other,) = (await site.post("", beside))["runs"]
    assert (other["title"], other["workflow_type"], other["priority"]) == ("Mine", "review", 9)
    assert (await _put(site, "review", {"title": "Another"})).status_code == 200
    assert (await site.post("", {"template": "review"}))["runs"][0]["title"] == "Another"
    assert (await site.get(f"/api/workflow-runs/{run['number']}"))["run"]["title"] == "Review main"
    assert (await site.client.delete(f"{TEMPLATES}/review")).status_code == 204
    for answer in (await site.client.get(f"{TEMPLATES}/review"), await site.client.delete(f"{TEMPLATES}/review")):
        assert answer.status_code == 404
        assert answer.json()["error"]["hint"]


async def test_those_of_the_configuration_go_first(site: Any) -> None:
    from interlock.service.templating import put_template

    # As one would find it whose interlock.yaml got a template of the same name later.
    await site.service.write(lambda tx, ctx: put_template(tx, ctx, "fixed", {"title": "Kept"}))
    assert [(one["name"], one["configured"]) for one in (await site.get(TEMPLATES))["templates"]] == [("fixed", True)]
    assert (await site.post("", {"template": "fixed", "params": {"x": 1}}))["runs"][0]["title"] == "Configured 1"
    refused = await _put(site, "fixed", {"title": "Mine"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert "interlock.yaml" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("task", "words", "hint"),
    [
        ({"titel": "x"}, 'no field "titel"', "did you mean title?"),
        ({"title": "x", "type": "y"}, 'no field "type"', "workflow_type"),
        ({"title": "x", "template": "y"}, 'no field "template"', "the fields of a task"),
        ({}, "has no title", "title:"),
        ({"title": " "}, "has no title", "title:"),
        ({"title": "${"}, "title: there is a $", "$$"),
        ({"title": "x", "context": {"files": ["$1"]}}, "context.files[0]: there is a $", "$$"),
        ({"title": "x", "priority": "high"}, "priority: int | null is expected", ""),
        ({"title": "x", "context": {"file": []}}, "context.file: there is no such field", "did you mean files?"),
        ({"title": "x", "tags": ["a\nb"]}, "tags[0]: it has to be one line", ""),
    ],
)
async def test_what_is_no_template(site: Any, task: Any, words: str, hint: str) -> None:
    answer = await _put(site, "t", task)
    assert answer.status_code == 422, answer.text
    fault = answer.json()["error"]
    assert words in fault["message"]
    assert hint in fault["hint"]
    assert [one["name"] for one in (await site.get(TEMPLATES))["templates"]] == ["fixed"]


async def test_names_and_sizes(site: Any) -> None:
    for name in ("%20x", "x%0a", "x" * 101):
        assert (await _put(site, name, {"title": "x"})).status_code == 422, name
    large = await _put(site, "t", {"title": "x", "metadata": {"k": ["x" * 1000] * 1100}})
    assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")


async def test_what_fills_a_template_is_held_to_its_rules(site: Any) -> None:
    await _put(site, "t", {"title": "Do ${what}"})
    fault = await site.refused("", {"template": "t", "params": {"what": "a\x1bb"}}, status=422, code="invalid_input")
    assert "one line" in fault["message"]


def test_a_template_has_the_fields_of_a_submit() -> None:
    from interlock.wire import Submission

    assert set(FIELDS) == set(Submission.__struct_fields__) - {"template", "params", "held"}


async def test_by_the_client(site: Any) -> None:
    from interlock.client import AsyncClient

    async with AsyncClient(site.gateway.addresses[0]) as client:
        made = await client.put_template("by client", REVIEW)
        assert made == await client.get_template("by client")
        assert [one.name for one in (await client.list_templates()).templates] == ["by client", "fixed"]
        await client.delete_template("by client")
        assert [one.name for one in (await client.list_templates()).templates] == ["fixed"]
