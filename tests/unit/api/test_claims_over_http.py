"""An agent's way by HTTP: from the offer to the end, what is refused, and that a repeated call is answered the same."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from interlock.domain.states import RunState


async def test_from_offer_to_completed(site: Any) -> None:
    (run,) = await site.offer("build it")
    (offer,) = (await site.get("/api/workflow-runs/pending", agent_session="s1"))["runs"]
    assert (offer["number"], offer["status"], offer["dispatch_count"]) == (run.number, "dispatched", 1)
    claim = await site.post(f"/{run.id}/claim", {"agent_session": "s1", "agent_id": "claude", "lease_seconds": 90})
    assert claim["run"]["status"] == "claimed"
    assert claim["run"]["agent_id"] == "claude"
    assert "build it" in claim["prompt"]
    assert claim["heartbeat_seconds"] == 30
    under = {"agent_session": "s1", "fence": claim["fence"]}
    assert (await site.post(f"/{run.number}/start", under))["status"] == "running"
    beat = await site.post(f"/{run.number}/heartbeat", under)
    assert (beat["continue"], beat["reason"]) == (True, None)
    await site.post(f"/{run.number}/usage", {**under, "input_tokens": 10, "output_tokens": 2, "cost_usd": 0.5})
    done = await site.post(f"/{run.number}/complete", {**under, "result": {"tests": "green"}, "message": "built"})
    assert (done["status"], done["result"], done["message"]) == ("completed", {"tests": "green"}, "built")
    story = await site.get(f"/api/workflow-runs/{run.number}")
    (attempt,) = story["attempts"]
    assert attempt["usage"] == {"input_tokens": 10, "output_tokens": 2, "cost_usd": 0.5}
    events = (await site.get(f"/api/workflow-runs/{run.number}/events"))["events"]
    assert [event["event"] for event in events] == ["submit", "dispatch", "claim", "start", "complete"]


async def test_who_comes_too_late_is_told_who_has_it(site: Any) -> None:
    run, _ = await site.claimed(session="first")
    fault = await site.refused(f"/{run.number}/claim", {"agent_session": "b"}, status=409, code="already_claimed")
    assert fault["details"] == {"holder": "first"}


async def test_a_claim_is_asked_for_again(site: Any) -> None:
    one, two = await site.offer("one", "two")
    first = await site.post(f"/{one.number}/claim", {"agent_session": "s"})
    assert (await site.post(f"/{one.number}/claim", {"agent_session": "s"}))["fence"] == first["fence"]
    second = await site.post(f"/{two.number}/claim", {"agent_session": "s", "request_id": "q"})
    assert (await site.post(f"/{two.number}/claim", {"agent_session": "s", "request_id": "q"})) == second
    await site.refused(
        f"/{two.number}/claim", {"agent_session": "s", "request_id": "r"}, status=409, code="already_claimed"
    )


@pytest.mark.parametrize("ending", ["complete", "fail", "release", "defer", "block"])
async def test_an_ending_again_is_answered_the_same(site: Any, ending: str) -> None:
    run, under = await site.claimed()
    body = {**under, **{"fail": {"message": "no"}, "block": {"question": "which?"}}.get(ending, {})}
    first = await site.post(f"/{run.number}/{ending}", body)
    again = await site.post(f"/{run.number}/{ending}", body)
    assert again == first
    other = "complete" if ending != "complete" else "fail"
    await site.refused(f"/{run.number}/{other}", {**under, "message": "x"}, status=409, code="stale_claim")


@pytest.mark.parametrize(
    "call", ["start", "heartbeat", "complete", "fail", "release", "defer", "block", "log", "usage"]
)
async def test_under_a_claim_that_is_not_the_live_one_nothing_changes(site: Any, call: str) -> None:
    run, under = await site.claimed()
    before = await site.service.story(run.number)
    body = {"fail": {"message": "x"}, "block": {"question": "?"}, "log": {"offset": 0, "text": "x"}}.get(call, {})
    for wrong in ({"fence": 7}, {"agent_session": "somebody else"}):
        await site.refused(f"/{run.number}/{call}", {**under, **body, **wrong}, status=409, code="stale_claim")
    assert await site.service.story(run.number) == before


async def test_a_late_result_is_kept_as_a_note_once(site: Any) -> None:
    run, under = await site.claimed()
    await site.post(f"/{run.number}/release", under)
    for _ in range(2):
        late = {**under, "result": {"patch": 1}, "message": "found it"}
        await site.refused(f"/{run.number}/complete", late, status=409, code="stale_claim")
    events = (await site.service.story(run.number)).events
    (note,) = [event for event in events if event.event == "note"]
    assert (note.fence, note.data) == (under["fence"], {"late": "completed", "result": {"patch": 1}})
    assert "found it" in str(note.message)
    assert (await site.service.get(run.number)).state is RunState.DISPATCHED


async def test_an_agent_learns_of_a_cancel_by_its_heartbeat(site: Any) -> None:
    run, under = await site.claimed()
    assert (await site.post(f"/{run.number}/cancel", {"message": "not any more"}))["stopping"] is True
    beat = await site.post(f"/{run.number}/heartbeat", under)
    assert (beat["continue"], beat["reason"]) == (False, "not any more")
    ended = await site.post(f"/{run.number}/release", under)
    assert ended["status"] == "cancelled"
    assert (await site.post(f"/{run.number}/cancel"))["status"] == "cancelled"


async def test_a_question_and_its_answer(site: Any) -> None:
    run, under = await site.claimed()
    assert (await site.post(f"/{run.number}/block", {**under, "question": "which one?"}))["status"] == "blocked"
    assert (await site.post(f"/{run.number}/answer", {"text": "the left one"}))["status"] == "queued"
    await site.service.dispatch(owner="o1")
    claim = await site.post("/claim-next", {"agent_session": "s2"})
    assert "the left one" in claim["prompt"]


async def test_the_next_offer_is_waited_for_and_comes_at_once(site: Any) -> None:
    answers: list[Any] = []

    async def wait(session: str, **more: Any) -> None:
        answers.append(await site.post("/claim-next", {"agent_session": session, "wait": 15, **more}))

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "a")
            nursery.start_soon(lambda: wait("b", types=["review.*"]))
            while len(site.gateway.board) < 2:
                await trio.sleep(0.01)
            await site.offer("first", type="build")
            while not answers:
                await trio.sleep(0.01)
            assert answers[0]["agent_session"] == "a"
            await site.offer("second", type="review.code")
    assert [answer["run"]["title"] for answer in answers] == ["first", "second"]
    assert len(site.gateway.board) == 0


async def test_of_many_that_wait_each_offer_wakes_one(site: Any) -> None:
    claimed: list[int] = []

    async def wait(n: int) -> None:
        answer = await site.post("/claim-next", {"agent_session": f"s{n}", "wait": 15})
        claimed.append(answer["run"]["number"])

    with trio.fail_after(15):
        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(wait, n)
            while len(site.gateway.board) < 20:
                await trio.sleep(0.01)
            runs = await site.offer(*(str(n) for n in range(20)))
    assert sorted(claimed) == [run.number for run in runs]


async def test_no_offer_is_lost_with_a_client_that_went_away(site: Any) -> None:
    with trio.fail_after(10):
        with trio.move_on_after(0.3):
            await site.post("/claim-next", {"agent_session": "gone", "wait": 30})
        while len(site.gateway.board):
            await trio.sleep(0.01)
        (run,) = await site.offer("one")
        claim = await site.post("/claim-next", {"agent_session": "there", "wait": 5})
    assert claim["run"]["number"] == run.number
    assert claim["fence"] == 1


async def test_nothing_comes_in_time(site: Any) -> None:
    assert await site.post("/claim-next", {"agent_session": "s", "wait": 0.05}) is None
    assert (await site.get("/api/workflow-runs/pending", wait=0.05))["runs"] == []


async def test_output_by_offset(site: Any) -> None:
    run, under = await site.claimed()
    log = f"/{run.number}/log"
    assert (await site.post(log, {**under, "offset": 0, "text": "hällo\n"}))["size"] == 7
    assert (await site.post(log, {**under, "offset": 0, "text": "hällo\nworld\n"}))["size"] == 13
    assert (await site.post(log, {**under, "offset": 7, "base64": "d29ybGQK"}))["size"] == 13
    fault = await site.refused(log, {**under, "offset": 20, "text": "x"}, status=409, code="conflict")
    assert fault["details"] == {"size": 13}
    await site.refused(log, {**under, "offset": 13}, status=422, code="invalid_input")
    await site.refused(log, {**under, "offset": 13, "base64": "%%%"}, status=422, code="invalid_input")
    answer = await site.client.get(f"/api/workflow-runs/{run.number}/logs", params={"offset": 7})
    assert (answer.content, answer.headers["x-next-offset"]) == (b"world\n", "13")
