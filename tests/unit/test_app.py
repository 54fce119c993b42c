"""The composition root: which data folder, which runtime, whose dispatcher."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

import interlock.app
from interlock.app import AppHost, Runtimes, locate, open_interlock
from interlock.domain.errors import Conflict
from interlock.domain.run import Run
from interlock.domain.settings import Agent, RuntimeKind, Settings
from interlock.domain.states import RunState
from interlock.ports.runtime import CannotStart
from interlock.runtimes import AgentContext, CommandRuntime


@pytest.fixture(autouse=True)
def _as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interlock.app, "raise_fd_limit", lambda: None)
    monkeypatch.delenv("INTERLOCK_DATA", raising=False)


async def done(context: AgentContext) -> str:
    return context.prompt


def test_where_the_data_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below" / "deeper").mkdir(parents=True)
    (tmp_path / ".interlock").mkdir()
    (tmp_path / ".interlock" / "interlock.db").touch()
    monkeypatch.chdir(tmp_path / "below" / "deeper")
    assert locate(None) == tmp_path / ".interlock"
    assert locate(Path("x")) == tmp_path / "below" / "deeper" / "x"
    (tmp_path / ".interlock" / "interlock.db").unlink()
    assert locate(None) == tmp_path / "below" / "deeper" / ".interlock"
    monkeypatch.setenv("INTERLOCK_DATA", "elsewhere")
    assert locate(None) == tmp_path / "below" / "deeper" / "elsewhere"
    assert locate(Path("/given")) == Path("/given")


async def test_a_function_is_no_command_s_business(tmp_path: Path) -> None:
    runtimes = Runtimes(CommandRuntime(cgroups=False), None)
    agent = Agent(name="f", runtime=RuntimeKind.FUNCTION)
    assert "this process has none" in (runtimes.check(agent, tmp_path) or "")
    with pytest.raises(CannotStart, match="this process has none"):
        runtimes._for(agent)


async def test_functions_do_the_work_and_their_results_are_kept(tmp_path: Path) -> None:
    async with open_interlock(tmp_path, agents={"f": done}) as il:
        run = await il.submit("one")
        assert (await il.wait(run)).state is RunState.COMPLETED
        more = await il.submit_all([run.task, run.task])
        assert [(await il.wait(each)).state for each in more] == [RunState.COMPLETED] * 2
        assert (await il.get(run)).result is not None
        assert isinstance(AppHost().version(), str)


async def test_two_functions_have_no_default_between_them(tmp_path: Path) -> None:
    async with open_interlock(tmp_path, agents={"f": done, "g": done}, dispatch=False) as il:
        assert il.settings.default_agent is None
        assert set(il.settings.agents) == {"f", "g"}
    settings = Settings(agents={"f": Agent(name="f", runtime=RuntimeKind.FUNCTION)}, default_agent="f")
    async with open_interlock(tmp_path, settings, agents={"f": done}, dispatch=False) as il:
        assert il.settings == settings


async def test_events_from_now_on_and_from_the_beginning(tmp_path: Path) -> None:
    async with open_interlock(tmp_path, agents={"f": done}, dispatch=False) as il:
        await il.submit("before")
        async with il.events(0) as events:
            async for event in events:
                assert (event.event, event.run) == ("submit", 1)
                break
        seen = []

        async def listen(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            async with il.events() as events:
                task_status.started()
                async for event in events:
                    seen.append((event.event, event.run))
                    if len(seen) == 2:
                        return

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                await nursery.start(listen)
                await trio.testing.wait_all_tasks_blocked(0.01)
                run = await il.submit("after")
                await il.cancel(run)
        assert seen == [("submit", 2), ("cancel", 2)]


async def test_a_question_is_answered(tmp_path: Path) -> None:
    answers = []

    async def asks(context: AgentContext) -> object:
        answers.append(context.prompt)
        if len(answers) == 1:
            (context.folder / "result.json").write_text('{"outcome": "blocked", "question": "which one?"}')
            raise SystemExit(1)
        return None

    async with open_interlock(tmp_path, agents={"f": asks}) as il:
        run = await il.submit("one")

        async def blocked() -> Run:
            async with il.service.changes() as changes:
                while (found := await il.get(run)).state is not RunState.BLOCKED:
                    await changes.wait()
            return found

        with trio.fail_after(20):
            assert (await blocked()).question == "which one?"
            await il.answer(run, "the second")
            assert (await il.wait(run)).state is RunState.COMPLETED
    assert "the second" in answers[1]


async def test_who_dispatches(tmp_path: Path) -> None:
    async with open_interlock(tmp_path, agents={"f": done}) as first:
        assert len(await first.alive()) == 1
        async with open_interlock(tmp_path, agents={"f": done}) as second:
            assert len(await second.alive()) == 1, "the first goes on alone"
            assert (await second.wait(await second.submit("one"))).state is RunState.COMPLETED
        with pytest.raises(Conflict):
            async with open_interlock(tmp_path, agents={"f": done}, dispatch=True):
                pytest.fail("there cannot be two")


async def test_an_error_in_the_block_is_itself(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with open_interlock(tmp_path, agents={"f": done}):
            raise LookupError("mine")


async def test_trouble_that_a_dispatcher_cannot_write_down_is_told_in_its_stead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_interlock(tmp_path, agents={"f": done}) as il:
        assert [one.note for one in await il.alive()] == [None]
        with monkeypatch.context() as patched:
            patched.setattr(interlock.app, "trouble", lambda _: "the disk is full")
            (told,) = await il.alive()
        assert "the disk is full" in (told.note or "")


def test_the_entry_point_ends_with_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["interlock", "--help"])
    with pytest.raises(SystemExit) as ended:
        interlock.app.main()
    assert ended.value.code == 0
    assert "demo" in capsys.readouterr().out
