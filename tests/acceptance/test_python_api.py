"""The Python API as a program would use it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import interlock

FAST = interlock.Settings(retry=interlock.Retry(base_delay_ms=10, max_delay_ms=20))


async def test_a_function_is_an_agent(tmp_path: Path) -> None:
    seen: list[int] = []

    async def greet(task: interlock.AgentContext) -> dict[str, str]:
        seen.append(task.fence)
        task.log("hello\n")
        return {"said": task.prompt.strip()}

    with trio.fail_after(30):
        async with interlock.open(tmp_path / ".interlock", FAST, agents={"greet": greet}) as il:
            run = await il.wait(await il.submit("Say hello"))
            story = await il.service.story(run)
    assert run.state is interlock.RunState.COMPLETED
    assert run.result == {"said": "# Say hello"}
    assert seen == [1]
    assert [event.event for event in story.events] == ["submit", "dispatch", "claim", "start", "complete"]
    assert (tmp_path / ".interlock" / str(story.attempts[0].folder) / "output.log").read_text() == "hello\n"


async def test_a_failing_function_is_retried_and_told_so(tmp_path: Path) -> None:
    async def flaky(task: interlock.AgentContext) -> str:
        if task.fence == 1:
            raise RuntimeError("not yet")
        assert "not yet" in task.prompt
        return "done"

    with trio.fail_after(30):
        async with interlock.open(tmp_path / ".interlock", FAST, agents={"flaky": flaky}) as il:
            run = await il.wait(await il.submit("Try"))
    assert (run.state, run.failures, run.result) == (interlock.RunState.COMPLETED, 1, "done")


async def test_events_come_as_they_happen(tmp_path: Path) -> None:
    settings = interlock.Settings(agents={"t": interlock.Agent(name="t", command="true")}, default_agent="t")
    with trio.fail_after(30):
        async with interlock.open(tmp_path / ".interlock", settings) as il:
            await il.submit("x")
            seen = []
            async with il.events(after=0) as events:
                async for event in events:
                    seen.append(event.event)
                    if event.event == "complete":
                        break
    assert seen == ["submit", "dispatch", "claim", "start", "complete"]


async def test_an_error_in_the_block_comes_out_as_itself(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with interlock.open(tmp_path / ".interlock", FAST):
            raise LookupError("mine")


async def test_cancel_stops_a_running_function(tmp_path: Path) -> None:
    began = trio.Event()

    async def endless(_: interlock.AgentContext) -> None:
        began.set()
        await trio.sleep_forever()

    with trio.fail_after(30):
        async with interlock.open(tmp_path / ".interlock", FAST, agents={"endless": endless}) as il:
            run = await il.submit("Wait")
            await began.wait()
            await il.cancel(run)
            ended = await il.wait(run)
    assert ended.state is interlock.RunState.CANCELLED


async def test_needs_of_one_submission(tmp_path: Path) -> None:
    order: list[str] = []

    async def note(task: interlock.AgentContext) -> None:
        order.append(task.prompt.strip())

    with trio.fail_after(30):
        async with interlock.open(tmp_path / ".interlock", FAST, agents={"note": note}) as il:
            runs = await il.submit_all(
                [interlock.Task(title="second", needs=("one",)), interlock.Task(title="first", id="one")]
            )
            for run in runs:
                await il.wait(run)
    assert order == ["# first", "# second"]


async def test_pull_mode_waits_for_claims_from_outside(tmp_path: Path) -> None:
    from interlock.domain.settings import Mode

    settings = interlock.Settings(mode=Mode.PULL, limits=interlock.Limits(total=1))
    with trio.fail_after(30):
        async with interlock.open(tmp_path / ".interlock", settings) as il:
            first, second = await il.submit("one"), await il.submit("two")
            offers: list[interlock.Run] = []
            async with il.service.changes() as changes:
                while not (offers := await il.service.offers(holder="session-1")):
                    await changes.wait()
            assert [offer.number for offer in offers] == [first.number], "one slot, one offer"
            claim = await il.service.claim(first, holder="session-1", request_id="a")
            again = await il.service.claim(first, holder="session-1", request_id="a")
            assert again.fence == claim.fence, "a lost answer is claimed again, not doubled"
            with pytest.raises(interlock.InterlockError, match="claimed by session-1"):
                await il.service.claim(first, holder="session-2", request_id="b")
            assert (await il.service.renew(claim)).go_on
            await il.service.complete(claim, result=42)
            await il.service.complete(claim, result=42)
            assert (await il.get(first)).result == 42
            while not await il.service.offers(holder="session-1"):
                await trio.sleep(0.01)
            await il.cancel(second)


async def test_two_programs_on_one_folder_share_the_limit(tmp_path: Path) -> None:
    at_once = 0
    most = 0

    async def count(_: interlock.AgentContext) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await trio.sleep(0.05)
        at_once -= 1

    settings = interlock.Settings(limits=interlock.Limits(total=2))
    with trio.fail_after(60):
        async with (
            interlock.open(tmp_path / ".interlock", settings, agents={"count": count}) as one,
            interlock.open(tmp_path / ".interlock", settings, agents={"count": count}, dispatch=False) as two,
        ):
            runs = [await il.submit("x") for il in (one, two) for _ in range(4)]
            for run in runs:
                assert (await two.wait(run)).state is interlock.RunState.COMPLETED
    assert most == 2
