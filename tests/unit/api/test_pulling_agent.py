"""The agent that pulls, on a real gateway, with real commands; the same loop as `interlock agent`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from interlock.agent import Around, Happening, Identity, PullingAgent, Spool, link, pulling
from interlock.agent.link import Link
from interlock.agent.spool import Asked
from interlock.agent.work import command_environment
from interlock.client import AsyncClient, Patience
from interlock.domain.errors import Forbidden, InterlockError, InvalidInput, Unauthorized, Unavailable
from interlock.domain.settings import Agent
from interlock.domain.states import RunState
from interlock.ports.runtime import CannotStart, Handle, Launch
from interlock.runtimes import CommandRuntime

SAY = "printf '%s' '{}' > \"$INTERLOCK_RESULT_FILE\""


class Post:
    """An agent at work, and what it told."""

    def __init__(self, site: Any, folder: Path, nursery: trio.Nursery) -> None:
        self.site = site
        self.folder = folder
        self.spool = Spool(folder / "spool")
        self.told: list[Happening] = []
        self.runtime: CommandRuntime = CommandRuntime(cgroups=False)
        self._nursery = nursery

    def agent(self, command: str, *, lease_seconds: float | None = 3, **more: Any) -> PullingAgent:
        """An agent that was started."""
        identity = {name: more.pop(name) for name in ("agent_id", "role", "types") if name in more}
        rng = Random(1)
        way = Link(lambda _: None, rng)
        url = self.site.gateway.addresses[0]
        around = Around(
            link=way,
            runtime=self.runtime,
            agent=Agent(name="agent", command=("/bin/sh", "-c", command)),
            cwd=self.folder,
            environment=command_environment(os.environ),
            tell=self.told.append,
            lease_seconds=lease_seconds,
            grace_ms=3000,
        )
        made = PullingAgent(around, Identity(url=url, **identity), self.spool, rng=rng, **more)

        async def run() -> None:
            patience = Patience(seconds=math.inf, first_wait=0.01, longest_wait=0.1)
            async with AsyncClient(url, token="", patience=patience, on_trouble=way.hear) as way.client:
                await made.run()

        self._nursery.start_soon(run)
        return made

    async def until(self, what: Callable[[], Any]) -> None:
        """Wait for a condition."""
        with trio.fail_after(60):
            while not what():
                await trio.sleep(0.01)

    async def until_state(self, number: int, state: RunState) -> Any:
        """Wait for a run."""
        with trio.fail_after(60):
            while True:
                run = await self.site.service.get(number)
                if run.state is state:
                    return run
                await trio.sleep(0.01)

    def tickets(self) -> list[str]:
        """What is in the spool."""
        return os.listdir(self.spool.folder)

    def has(self, name: str) -> bool:
        """Whether a command made that file."""
        return (self.folder / name).exists()


@pytest.fixture
async def post(site: Any, tmp_path: Path) -> AsyncIterator[Post]:
    (tmp_path / "work").mkdir()
    async with trio.open_nursery() as nursery:
        made = Post(site, tmp_path / "work", nursery)
        yield made
        nursery.cancel_scope.cancel()
    made.runtime.close()


@pytest.mark.parametrize(
    ("command", "state", "reason", "message"),
    [
        ("echo fine", RunState.COMPLETED, "done", "fine"),
        ("echo no; exit 3", RunState.QUEUED, "agent_failed", "exited with status 3: no"),
        (SAY.format('{"outcome":"failed","permanent":true,"message":"never"}'), RunState.FAILED, None, "never"),
        ("echo later; exit 75", RunState.QUEUED, "deferred", "later"),
        (SAY.format('{"outcome":"deferred","deferSeconds":90,"message":"soon"}'), RunState.QUEUED, "deferred", "soon"),
        (SAY.format('{"outcome":"blocked","question":"which?"}'), RunState.BLOCKED, None, "which?"),
        (SAY.format("{nonsense"), RunState.QUEUED, "agent_failed", None),
    ],
)
async def test_how_a_command_ends_is_how_the_run_ends(
    post: Post, command: str, state: RunState, reason: str | None, message: str | None
) -> None:
    await post.site.offer("one")
    post.agent(command, runs=1)
    run = await post.until_state(1, state)
    (attempt,) = (await post.site.service.story(1)).attempts
    assert attempt.ended_ms is not None
    if reason is not None:
        assert attempt.reason == reason
    if message is not None:
        assert message in run.message
    assert (run.question == "which?") is (state is RunState.BLOCKED)
    await post.until(lambda: post.tickets() == [])


async def test_what_a_command_is_given_and_what_it_gives(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_TOKEN", "secret")
    (run,) = await post.site.offer("read me")
    said = {"result": {"n": 1}, "usage": {"input_tokens": 5, "cost_usd": 0.5}}
    post.agent(f"cat > prompt; cmp prompt $INTERLOCK_PROMPT_FILE && env > env; {SAY.format(json.dumps(said))}", runs=1)
    assert (await post.until_state(1, RunState.COMPLETED)).result == {"n": 1}
    env = dict(line.split("=", 1) for line in (post.folder / "env").read_text().splitlines() if "=" in line)
    assert (env["INTERLOCK_RUN_ID"], env["INTERLOCK_RUN_NUMBER"]) == (run.id, "1")
    assert (env["INTERLOCK_ATTEMPT"], env["INTERLOCK_FENCE"]) == ("1", "1")
    assert "INTERLOCK_TOKEN" not in env
    assert "read me" in (post.folder / "prompt").read_text()
    (attempt,) = (await post.site.service.story(1)).attempts
    assert (attempt.usage.input_tokens, attempt.usage.cost_usd) == (5, 0.5)


async def test_usage_is_told_also_by_those_that_do_not_end(post: Post) -> None:
    await post.site.offer("one")
    said = {"outcome": "blocked", "question": "?", "usage": {"output_tokens": 8}}
    post.agent(SAY.format(json.dumps(said)), runs=1)
    await post.until_state(1, RunState.BLOCKED)
    (attempt,) = (await post.site.service.story(1)).attempts
    assert attempt.usage.output_tokens == 8


async def test_so_many_at_once_and_not_more(post: Post) -> None:
    await post.site.offer(*"abcde")
    agent = post.agent('touch "began$INTERLOCK_RUN_NUMBER"; until [ -e go ]; do sleep 0.02; done', parallel=3)
    await post.until(lambda: sum(post.has(f"began{n}") for n in range(1, 6)) == 3)
    for number in range(1, 4):
        await post.until_state(number, RunState.RUNNING)
    assert agent.working == 3
    assert [(await post.site.service.get(number)).state for number in (4, 5)] == [RunState.DISPATCHED] * 2
    (post.folder / "go").touch()
    for number in range(1, 6):
        await post.until_state(number, RunState.COMPLETED)


async def test_it_takes_what_it_is_for(post: Post) -> None:
    await post.site.offer("other", type="build")
    await post.site.offer("mine", type="review.code")
    post.agent("true", types=("review.*",), agent_id="claude")
    run = await post.until_state(2, RunState.COMPLETED)
    assert run.agent == "claude"
    assert (await post.site.service.get(1)).state is RunState.DISPATCHED


async def test_output_comes_while_it_works(post: Post) -> None:
    await post.site.offer("one")
    post.agent(r"printf 'first \377'; until [ -e go ]; do sleep 0.02; done; printf ' second'", runs=1)
    with trio.fail_after(60):
        while (await post.site.client.get("/api/workflow-runs/1/logs")).content != b"first \xff":
            await trio.sleep(0.01)
    (post.folder / "go").touch()
    await post.until_state(1, RunState.COMPLETED)
    assert (await post.site.client.get("/api/workflow-runs/1/logs")).content == b"first \xff second"


async def test_a_server_that_lost_output_gets_it_again(post: Post) -> None:
    await post.site.offer("one")
    post.agent("printf 'abcdef'; until [ -e go ]; do sleep 0.02; done; printf 'ghi'", runs=1)
    await post.until(lambda: list(post.site.data.glob("attempts/*/*/output.log")) != [])
    (log,) = post.site.data.glob("attempts/*/*/output.log")
    await post.until(lambda: log.stat().st_size == 6)
    os.truncate(log, 2)
    (post.folder / "go").touch()
    await post.until_state(1, RunState.COMPLETED)
    assert log.read_bytes() == b"abcdefghi"


STAYS = 'sh -c "echo \\$\\$ > child; exec sleep 1000" & touch began; wait'


async def _is_gone(post: Post) -> None:
    pid = int((post.folder / "child").read_text())
    await post.until(lambda: not Path(f"/proc/{pid}").exists())


async def test_a_cancel_stops_it_with_its_children(post: Post) -> None:
    await post.site.offer("one")
    post.agent(STAYS, lease_seconds=0.6, runs=1)
    await post.until(lambda: post.has("began") and post.has("child"))
    await post.until_state(1, RunState.RUNNING)
    await post.site.post("/1/cancel", {"message": "not any more"})
    run = await post.until_state(1, RunState.CANCELLED)
    assert run.message == "not any more"
    await _is_gone(post)
    assert [told.event for told in post.told] == ["claim", "start", "stop", "cancel"]
    assert post.told[2].message == "not any more"


async def test_a_claim_that_is_over_stops_it(post: Post) -> None:
    await post.site.offer("one")
    agent = post.agent(STAYS, lease_seconds=0.6, runs=1)
    await post.until(lambda: post.has("began") and post.has("child"))
    await post.until_state(1, RunState.RUNNING)
    await post.site.post("/1/release", {"agent_session": agent.session, "fence": 1})
    await _is_gone(post)
    await post.until(lambda: post.tickets() == [])
    assert (await post.site.service.get(1)).state is RunState.DISPATCHED
    assert not any(event.event == "note" for event in (await post.site.service.story(1)).events)


async def test_what_is_done_under_a_claim_that_is_over_is_kept_as_a_note(post: Post) -> None:
    await post.site.offer("one")
    agent = post.agent(f"until [ -e go ]; do sleep 0.02; done; {SAY.format(json.dumps({'result': 'late'}))}", runs=1)
    await post.until_state(1, RunState.RUNNING)
    await post.site.post("/1/release", {"agent_session": agent.session, "fence": 1})
    (post.folder / "go").touch()
    await post.until(lambda: post.tickets() == [])
    (note,) = [event for event in (await post.site.service.story(1)).events if event.event == "note"]
    assert note.data == {"late": "completed", "result": "late"}


async def test_a_result_that_the_server_cannot_take_is_a_failure_that_says_so(post: Post) -> None:
    await post.site.offer("one")
    post.agent(
        '(printf \'{"result": "\'; head -c 5000000 /dev/zero | tr "\\0" x; printf \'"}\') > "$INTERLOCK_RESULT_FILE"',
        runs=1,
    )
    run = await post.until_state(1, RunState.QUEUED)
    assert "did not take how it ended (completed)" in run.message
    await post.until(lambda: post.tickets() == [])


async def test_told_to_end_it_finishes_what_runs(post: Post) -> None:
    await post.site.offer("one", "two")
    agent = post.agent("touch began; until [ -e go ]; do sleep 0.02; done")
    await post.until(lambda: post.has("began"))
    assert agent.end() == 1
    (post.folder / "go").touch()
    await post.until_state(1, RunState.COMPLETED)
    await post.until(lambda: agent.working == 0)
    assert (await post.site.service.get(2)).state is RunState.DISPATCHED


async def test_told_again_it_stops_and_gives_back(post: Post) -> None:
    await post.site.offer("one")
    agent = post.agent(STAYS)
    await post.until(lambda: post.has("began") and post.has("child"))
    agent.end()
    assert agent.end() == 2
    await post.until_state(1, RunState.DISPATCHED)
    await _is_gone(post)
    await post.until(lambda: agent.working == 0)
    assert (agent.left, post.tickets()) == (0, [])


async def test_told_to_end_while_it_asks_it_leaves_nothing(post: Post) -> None:
    agent = post.agent("true", parallel=3)
    await post.until(lambda: len(post.site.gateway.board) == 3)
    agent.end()
    await post.until(lambda: post.tickets() == [])


async def test_a_claim_that_nobody_saw_is_given_back(post: Post) -> None:
    """The answer was on its way when the agent was told to end."""
    agent = post.agent("true")
    await post.until(lambda: len(post.site.gateway.board) == 1)
    await post.site.offer("one")
    agent.end()
    await post.until(lambda: post.tickets() == [])
    assert (await post.site.service.get(1)).state is RunState.DISPATCHED


class Refusing(CommandRuntime):
    """Cannot start anything, the first time."""

    refused = 0

    async def launch(self, launch: Launch) -> Handle:
        self.refused += 1
        if self.refused == 1:
            raise CannotStart("there is no memory.")
        return await super().launch(launch)


async def test_what_cannot_be_started_is_given_back_and_tried_later(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    lengthen = PullingAgent._lengthen_rest

    def count_rests(self: PullingAgent) -> None:
        lengthen(self)
        rests.append(self._rest_seconds)

    monkeypatch.setattr(PullingAgent, "_lengthen_rest", count_rests)
    monkeypatch.setattr(pulling, "FIRST_REST_SECONDS", 0.01)
    post.runtime = Refusing(cgroups=False)
    await post.site.offer("one")
    post.agent("true")
    run = await post.until_state(1, RunState.COMPLETED)
    assert (run.fence, rests) == (2, [0.01])
    assert any("no memory" in told.message and told.warning for told in post.told)


async def test_a_command_that_is_not_there_is_refused_at_once(post: Post) -> None:
    around = Around(
        link=Link(lambda _: None, Random(1)),
        runtime=post.runtime,
        agent=Agent(name="agent", command="no-such-program"),
        cwd=post.folder,
        environment={},
        tell=post.told.append,
    )
    with pytest.raises(InvalidInput, match="no-such-program is not on the PATH"):
        await PullingAgent(around, Identity(url="x"), post.spool, rng=Random(1)).run()


# the spool


def _asked(url: str, request: str = "q1", **more: Any) -> Asked:
    return Asked(url=url, agent_session="before", request_id=request, **more)


async def test_a_question_that_was_answered_unheard_gets_the_same_claim(post: Post) -> None:
    url = post.site.gateway.addresses[0]
    post.spool.make(_asked(url)).close()
    await post.site.offer("one", "two")
    claim = await post.site.post("/claim-next", {"agent_session": "before", "request_id": "q1"})
    post.agent("true")
    await post.until_state(1, RunState.COMPLETED)
    await post.until_state(2, RunState.COMPLETED)
    one = await post.site.service.get(1)
    assert (one.fence, claim["run"]["number"]) == (1, 1)


async def test_a_question_of_one_that_takes_other_runs_is_not_asked_again(post: Post) -> None:
    url = post.site.gateway.addresses[0]
    post.spool.make(_asked(url, types=("other",))).close()
    await post.site.offer("one")
    agent = post.agent("true", runs=1)
    await post.until_state(1, RunState.COMPLETED)
    (attempt,) = (await post.site.service.story(1)).attempts
    assert attempt.holder == agent.session


async def test_a_question_whose_claim_is_over_is_dropped(post: Post) -> None:
    url = post.site.gateway.addresses[0]
    post.spool.make(_asked(url)).close()
    await post.site.offer("one")
    claim = await post.site.post("/claim-next", {"agent_session": "before", "request_id": "q1"})
    await post.site.post("/1/release", {"agent_session": "before", "fence": claim["fence"]})
    post.agent("true", runs=1)
    assert (await post.until_state(1, RunState.COMPLETED)).fence == 2
    await post.until(lambda: post.tickets() == [])


async def test_what_is_looked_after_is_left_alone(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    kept = spool.make(_asked("here", "a"))
    spool.make(_asked("here", "b")).close()
    spool.make(_asked("elsewhere", "c")).close()
    (found,) = Spool(tmp_path / "spool").left("here")
    assert found.asked.request_id == "b"
    assert list(spool.left("here")) == []
    assert spool.elsewhere == {"elsewhere": 1}
    found.remove()
    kept.close()
    assert [ticket.asked.request_id for ticket in spool.left("here")] == ["a"]
    assert oct((tmp_path / "spool").stat().st_mode)[-3:] == "700"


# the link


class Moody:
    """A client whose answers are given."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def send(self, request: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_what_an_operator_can_put_right_is_waited_for(autojump_clock: Any) -> None:
    told: list[InterlockError | None] = []
    way = Link(told.append, Random(1))
    fault = InterlockError("this is a fault of Interlock")
    way.client = Moody("well", Unauthorized("no"), Forbidden("no"), fault, Unavailable("busy"), "done")  # type: ignore[assignment]
    request: Any = None
    assert await way.send(request) == "well"
    began = trio.current_time()
    assert await way.send(request) == "done"
    assert trio.current_time() - began > link.SLOW.first_wait / 2
    assert [None if each is None else each.code for each in told] == ["unauthorized", None]


async def test_a_token_that_was_never_good_is_refused() -> None:
    way = Link(lambda _: None, Random(1))
    way.client = Moody(Unauthorized("no"))  # type: ignore[assignment]
    request: Any = None
    with pytest.raises(Unauthorized):
        await way.send(request)
