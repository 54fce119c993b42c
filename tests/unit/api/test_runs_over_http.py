"""Runs over HTTP: submitted, listed, followed; routes and the dispatcher as a whole."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import trio

from interlock.api import desk
from interlock.domain.places import API_SOCKET
from interlock.domain.run import Route

RUNS = "/api/workflow-runs"


async def test_a_task_and_a_list_of_tasks(site: Any) -> None:
    one = await site.post("", {"title": "one", "workflow_type": "build", "tags": ["a"], "priority": 3})
    assert one["created"] == [True]
    assert (one["runs"][0]["workflow_type"], one["runs"][0]["priority"]) == ("build", 3)
    many = await site.post("", [{"title": "x", "id": "x"}, {"title": "y", "needs": ["x"]}])
    story = await site.get(f"{RUNS}/{many['runs'][1]['id']}")
    assert story["needs"] == [many["runs"][0]["number"]]
    assert story["task"]["title"] == "y"


async def test_all_are_accepted_or_none(site: Any) -> None:
    await site.refused("", [{"title": "x"}, {"title": "y", "needs": ["ghost"]}], status=422, code="invalid_input")
    await site.refused("", [], status=422, code="invalid_input")
    await site.refused("", {"content": "no title"}, status=422, code="invalid_input")
    await site.refused("", {"title": "x", "params": {"a": 1}}, status=422, code="invalid_input")
    assert (await site.get(RUNS))["runs"] == []


async def test_a_submit_with_a_key_again(site: Any) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = await site.post("", {"title": "one"}, headers=headers)
    again = await site.post("", {"title": "one"}, headers=headers)
    assert again["runs"][0]["id"] == first["runs"][0]["id"]
    assert again["created"] == [False]
    await site.refused("", {"title": "two"}, headers=headers, status=409, code="conflict")


async def test_from_a_template(site: Any) -> None:
    from interlock.service import templating

    task = {"title": "Review $repo", "workflow_type": "review", "priority": 2, "metadata": {"repo": "$repo"}}
    await site.service.write(lambda tx, ctx: templating.put_template(tx, ctx, "review", task))
    made = await site.post("", {"template": "review", "params": {"repo": "core"}, "priority": 7})
    (run,) = made["runs"]
    assert (run["title"], run["workflow_type"], run["priority"]) == ("Review core", "review", 7)
    fault = await site.refused("", {"template": "review"}, status=422, code="invalid_input")
    assert "needs repo" in fault["message"]
    await site.refused("", {"template": "ghost"}, status=404, code="not_found")
    await site.service.write(lambda tx, ctx: templating.put_template(tx, ctx, "bad", {"title": "x", "tips": 1}))
    fault = await site.refused("", {"template": "bad"}, status=422, code="invalid_input")
    assert "tips" in fault["message"]


async def test_pages(site: Any) -> None:
    await site.post("", [{"title": str(n), "tags": ["odd"] if n % 2 else []} for n in range(7)])
    seen, cursor = [], None
    while True:
        page = await site.get(RUNS, limit=3, **({"cursor": cursor} if cursor else {}))
        seen += [run["title"] for run in page["runs"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [str(n) for n in reversed(range(7))]
    assert [run["title"] for run in (await site.get(RUNS, tag="odd"))["runs"]] == ["5", "3", "1"]
    assert (await site.get(RUNS, status="completed"))["runs"] == []
    assert len((await site.get(RUNS, status=["completed", "queued"]))["runs"]) == 7


async def test_numbers_for_people(site: Any) -> None:
    run, under = await site.claimed()
    await site.post(f"/{run.number}/complete", under)
    stats = await site.get(f"{RUNS}/dispatcher/stats", window_seconds=3600)
    assert stats["states"] == {"completed": 1}
    assert stats["attempts_by_end"] == {"succeeded": 1}


async def test_routes(site: Any) -> None:
    path = "/api/routing/review.*"
    made = (await site.client.put(path, json={"agent_id": "claude", "priority": 5})).json()
    assert (made["workflow_type"], made["max_concurrent"], made["timeout_minutes"]) == ("review.*", 1, 60)
    assert await site.get(path) == made
    assert (await site.get("/api/routing"))["routes"] == [made]
    (run,) = (await site.post("", {"title": "x", "workflow_type": "review.code"}))["runs"]
    assert run["priority"] == 5
    assert (await site.client.delete(path)).status_code == 204
    assert (await site.client.delete(path)).status_code == 404
    assert (await site.get(f"{RUNS}/{run['number']}"))["run"]["priority"] == 0


async def test_a_route_is_in_force_at_the_next_decision(site: Any) -> None:
    await site.service.put_route(Route(workflow_type="build", agent_id="claude", max_concurrent=1))
    one, two = await site.offer("one", "two", type="build")
    assert (str(one.state), str(two.state)) == ("dispatched", "queued")
    limits = {each["key"]: each for each in (await site.get("/api/limits"))["limits"]}
    assert limits["route:build"] == {"key": "route:build", "used": 1, "cap": 1, "runs": [one.number]}


async def test_pause_resume_drain(site: Any) -> None:
    (run,) = await site.offer("one")
    paused = (await site.client.post("/api/dispatcher/pause", json={"message": "lunch"})).json()
    assert paused == {"paused": True, "draining": False, "message": "lunch"}
    assert (await site.get(f"{RUNS}/{run.number}"))["run"]["status"] == "queued"
    assert (await site.client.post("/api/dispatcher/resume")).json()["paused"] is False
    assert (await site.client.post("/api/dispatcher/drain")).json()["draining"] is True
    assert site.gateway.desk.dispatcher.draining is True


async def test_health_and_readiness(site: Any) -> None:
    assert await site.get("/healthz") == {"status": "alive", "version": "1.2.3"}
    assert (await site.get("/readyz"))["status"] == "ready"
    site.gateway.desk.dispatcher.ready = False
    answer = await site.client.get("/readyz")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    site.gateway.desk.dispatcher.ready = True


async def test_no_readiness_where_nothing_can_be_written(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "trouble", lambda folder: f"the disk is full ({folder})")
    answer = await site.client.get("/readyz")
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, f"the disk is full ({site.data})")
    assert await site.get("/healthz")


async def stream(site: Any, count: int, **how: Any) -> list[dict[str, Any]]:
    """So many events from the stream."""
    found: list[dict[str, Any]] = []
    with trio.fail_after(15), trio.CancelScope() as enough:
        async with site.client.stream("GET", "/api/events", **how) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                if line.startswith("data:") and len(found) < count:
                    found.append(json.loads(line[5:]))
                    if len(found) == count:
                        enough.cancel()
    return found


async def test_events_resume_without_a_gap(site: Any) -> None:
    await site.offer("one", "two")
    first = await stream(site, 2, params={"after": 0})
    rest = await stream(site, 2, headers={"Last-Event-ID": str(first[-1]["seq"])})
    assert [event["seq"] for event in first + rest] == [1, 2, 3, 4]


async def test_events_come_as_they_happen(site: Any) -> None:
    found: list[dict[str, Any]] = []

    async def follow() -> None:
        found.extend(await stream(site, 3, params={"after": 0}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        run, _ = await site.claimed()
    assert [(event["event"], event["run"]) for event in found] == [
        ("submit", run.number),
        ("dispatch", run.number),
        ("claim", run.number),
    ]


async def test_by_the_socket_file(site: Any) -> None:
    path = site.data / API_SOCKET
    assert path.stat().st_mode & 0o777 == 0o600
    async with httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://anything"
    ) as client:
        assert (await client.get("/healthz")).json()["status"] == "alive"


@pytest.mark.parametrize("ref", ["99", "#99", "rnothing", "../etc"])
async def test_what_is_not_there(site: Any, ref: str) -> None:
    answer = await site.client.get(RUNS + "/" + quote(ref, safe=""))
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"
