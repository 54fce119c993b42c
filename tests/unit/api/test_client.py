"""The clients, each against a real gateway: under trio, under asyncio, and without either."""

from __future__ import annotations

import asyncio
import inspect
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from interlock import wire
from interlock.client import AsyncClient, Client, Patience, Trouble, calls
from interlock.domain import errors
from interlock.domain.states import RunState

Scenario = Callable[[Any], Awaitable[Any]]
QUICK = Patience(seconds=30, first_wait=0.001, longest_wait=0.01)
NONE = Patience(seconds=0)


class Awaited:
    """A synchronous client whose calls can be awaited."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            return getattr(self._client, name)(*arguments, **named)

        return call


def _at_once(url: str, scenario: Scenario, **more: Any) -> Any:
    with Client(url, **more) as client:
        steps: Any = scenario(Awaited(client)).__await__()
        try:
            steps.send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("it waited for something")


async def _with_client(url: str, scenario: Scenario, **more: Any) -> Any:
    async with AsyncClient(url, **more) as client:
        return await scenario(client)


@pytest.fixture(params=["trio", "asyncio", "sync"])
def play(request: pytest.FixtureRequest) -> Callable[..., Awaitable[Any]]:
    """Plays a scenario with a client of each kind."""

    async def play(url: str, scenario: Scenario, **more: Any) -> Any:
        if request.param == "trio":
            return await _with_client(url, scenario, **more)
        if request.param == "asyncio":
            return await trio.to_thread.run_sync(lambda: asyncio.run(_with_client(url, scenario, **more)))
        return await trio.to_thread.run_sync(lambda: _at_once(url, scenario, **more))

    return play


@pytest.mark.parametrize("at", [0, 1], ids=["tcp", "socket file"])
async def test_the_whole_way(site: Any, play: Any, at: int) -> None:
    await site.offer("one", "two", "three")

    async def scenario(client: Any) -> None:
        offers = await client.pending(agent_session="s", agent_id="claude")
        assert [run.title for run in offers.runs] == ["one", "two", "three"]
        claim = await client.claim_next("s", agent_id="claude", types=["build"], lease_seconds=60)
        assert "one" in claim.prompt
        assert (await client.start(claim)).status == "running"
        assert (await client.heartbeat(claim)).go_on is True
        assert (await client.append_log(claim, 0, b"\xffhello")).size == 6
        with pytest.raises(errors.Conflict) as gap:
            await client.append_log(claim, 9, b"later")
        assert gap.value.details["size"] == 6
        await client.report_usage(claim, wire.UsageIn(input_tokens=3))
        done = await client.complete(claim, result={"a": [1]}, message="good")
        assert (done.status, done.result, done.message) == ("completed", {"a": [1]}, "good")
        log = await client.run_logs(done)
        assert (log.content, log.next_offset) == (b"\xffhello", 6)
        story = await client.get_run(f"#{done.number}")
        assert story.attempts[0].usage.input_tokens == 3
        assert [event.event for event in (await client.run_events(done)).events][-1] == "complete"
        second = await client.claim("2", "s")
        assert (await client.block(second, "which?")).status == "blocked"
        assert (await client.answer(2, "the left")).status == "queued"
        third = await client.claim(3, "s")
        assert (await client.defer(third, delay_seconds=60)).status == "queued"
        assert (await client.cancel(3)).status == "cancelled"
        assert [run.number for run in (await client.list_runs(status=["completed", "cancelled"])).runs] == [3, 1]
        assert await client.claim_next("s") is None
        assert (await client.stats())["states"]["completed"] == 1

    await play(site.gateway.addresses[at], scenario)
    assert (await site.service.get(1)).state is RunState.COMPLETED


async def test_operating(site: Any, play: Any) -> None:
    async def scenario(client: Any) -> None:
        route = await client.put_route("review.*", wire.RouteIn(agent_id="claude", max_concurrent=2))
        assert route == await client.get_route("review.*")
        assert (await client.list_routes()).routes == [route]
        await client.delete_route("review.*")
        with pytest.raises(errors.NotFound):
            await client.get_route("review.*")
        assert (await client.pause("lunch")).paused
        assert not (await client.resume()).paused
        assert {limit.key for limit in (await client.limits()).limits} >= {"global"}
        assert (await client.health()).status == "alive"
        assert (await client.ready()).status == "ready"
        made = await client.submit([wire.Submission(title="a", id="a"), wire.Submission(title="b", needs=("a",))])
        assert made.created == [True, True]
        assert (await client.drain()).draining

    await play(site.gateway.addresses[0], scenario)


async def test_refusals_are_the_errors_of_their_codes(site: Any, play: Any) -> None:
    run, _ = await site.claimed(session="somebody")

    async def scenario(client: Any) -> None:
        with pytest.raises(errors.NotFound) as missing:
            await client.get_run("999")
        assert missing.value.hint
        with pytest.raises(errors.AlreadyClaimed) as late:
            await client.claim(run.number, "me")
        assert late.value.details["holder"] == "somebody"
        stale = calls.Held(run=run.id, agent_session="me", fence=1)
        for call in (client.complete(stale), client.fail(stale, "x"), client.heartbeat(stale), client.release(stale)):
            with pytest.raises(errors.StaleClaim):
                await call
        with pytest.raises(errors.InvalidInput, match="lease"):
            await client.claim_next("me", lease_seconds=-1)
        with pytest.raises(errors.TooLarge):
            await client.complete(stale, result="x" * 5_000_000)

    await play(site.gateway.addresses[0], scenario)


async def test_a_token_goes_along(site: Any, play: Any) -> None:
    async def scenario(client: Any) -> None:
        await client.list_runs()

    with pytest.raises(errors.Unauthorized):
        await play(site.gateway.addresses[0], scenario, token="nobody-knows-this")
    with pytest.raises(errors.InvalidInput):
        Client(token="two words")


class Relay:
    """Stands before the gateway and plays tricks, one per request, then none: ``deaf`` (closes at once), ``mute`` (passes the
    request on and loses the answer), ``503`` (answers so by itself).
    """

    def __init__(self, target: str, tricks: list[str]) -> None:
        self._target = int(target.rpartition(":")[2])
        self.tricks = tricks
        self.url = ""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        await trio.serve_listeners(self._serve, listeners, task_status=task_status)

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            asked = await _message(stream)
            trick = self.tricks.pop(0) if self.tricks else ""
            if trick == "deaf" or not asked:
                return
            if trick == "503":
                await stream.send_all(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy")
                return
            async with await trio.open_tcp_stream("127.0.0.1", self._target) as onward:
                await onward.send_all(asked)
                answer = await _message(onward)
            if trick != "mute":
                await stream.send_all(answer.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))


async def _message(stream: trio.SocketStream) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some()
        if not more:
            return data
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")),
        0,
    )
    while len(body) < length:
        body += await stream.receive_some()
    return head + b"\r\n\r\n" + body


@pytest.fixture
async def relay(site: Any) -> AsyncIterator[Relay]:
    made = Relay(site.gateway.addresses[0], [])
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        yield made
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("trick", ["deaf", "mute", "503"])
async def test_what_is_sent_again_is_done_once(site: Any, relay: Relay, play: Any, trick: str) -> None:
    troubles: list[Trouble] = []

    async def scenario(client: Any) -> None:
        async def after(call: Callable[[], Awaitable[Any]]) -> Any:
            relay.tricks[:] = [trick, trick]
            done = await call()
            assert relay.tricks == []
            return done

        made = await after(lambda: client.submit(wire.Submission(title="one")))
        assert [run.number for run in made.runs] == [1]
        await after(client.resume)
        trio_side.dispatch()
        claim = await after(lambda: client.claim_next("s"))
        assert (claim.run.number, claim.fence) == (1, 1)
        assert (await after(lambda: client.append_log(claim, 0, b"abc"))).size == 3
        assert (await after(lambda: client.heartbeat(claim))).go_on
        assert (await after(lambda: client.complete(claim, result=7))).status == "completed"

    class Side:
        token = trio.lowlevel.current_trio_token()

        def dispatch(self) -> None:
            done = threading.Event()

            async def act() -> None:
                await site.service.dispatch(owner="o1")
                done.set()

            self.token.run_sync_soon(lambda: nursery.start_soon(act))
            if threading.current_thread() is not threading.main_thread():
                assert done.wait(20)

    trio_side = Side()
    async with trio.open_nursery() as nursery:
        await play(relay.url, scenario, patience=QUICK, on_trouble=troubles.append)
        nursery.cancel_scope.cancel()
    assert len(troubles) == 12
    assert all(isinstance(trouble.error, errors.Unavailable) for trouble in troubles)
    story = await site.service.story(1)
    assert [event.event for event in story.events] == ["submit", "dispatch", "claim", "start", "complete"]
    assert len((await site.get("/api/workflow-runs"))["runs"]) == 1


async def test_what_must_not_be_sent_twice_is_not(site: Any, relay: Relay, play: Any) -> None:
    run, under = await site.claimed()
    await site.post(f"/{run.number}/block", {**under, "question": "which?"})
    relay.tricks[:] = ["mute"]

    async def scenario(client: Any) -> None:
        await client.answer(run.number, "this")

    with pytest.raises(errors.Unavailable):
        await play(relay.url, scenario, patience=QUICK)
    assert (await site.service.get(run.number)).answer == "this"


async def test_patience_ends(relay: Relay, play: Any) -> None:
    async def scenario(client: Any) -> None:
        await client.health()

    relay.tricks[:] = ["503"]
    with pytest.raises(errors.Unavailable, match="503"):
        await play(relay.url, scenario, patience=NONE)
    with socket.socket() as unused:
        # Bound and not listening: nobody else can be there.
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(errors.Unavailable, match=f"no answer from {url}") as refused:
            await play(url, scenario, patience=Patience(seconds=0.05, first_wait=0.001))
    assert "interlock up" in str(refused.value.hint)


def test_waits_grow_with_chance_up_to_a_bound() -> None:
    patience, rng = Patience(seconds=60, first_wait=1, longest_wait=8), Random(3)
    for tries, most in ((0, 1), (1, 2), (2, 4), (3, 8), (4, 8), (5_000, 8)):
        waits = [patience.wait(tries, rng) for _ in range(500)]
        assert 0 <= min(waits) < most / 10
        assert most * 0.9 < max(waits) <= most


async def test_a_socket_file_with_a_long_path(tmp_path: Path, site: Any) -> None:
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    (folder / "api.sock").symlink_to(site.gateway.addresses[1])
    async with AsyncClient(str(folder / "api.sock")) as client:
        assert (await client.health()).status == "alive"


@pytest.mark.parametrize("url", ["localhost:7420", "ftp://x", "http://", "http://[", "http://h:port", "nonsense"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(errors.InvalidInput, match="address"):
        Client(url)


@pytest.mark.parametrize("client", [AsyncClient, Client])
def test_every_call_is_there_under_its_name(client: type) -> None:
    described = {
        name: function
        for name, function in inspect.getmembers(calls, inspect.isfunction)
        if function.__module__ == calls.__name__ and not name.startswith("_") and name not in ("held", "new_id")
    }
    offered = {
        name: member
        for name, member in inspect.getmembers(client, inspect.isfunction)
        if not name.startswith("_") and name not in ("send", "close")
    }
    assert {name: offered[name].__wrapped__ for name in offered} == described
    for function in described.values():
        assert function.__doc__


async def test_every_path_of_the_api_has_a_call(site: Any) -> None:
    """What the clients leave out is named here."""
    app = site.gateway.application(lambda: None)._app
    handlers = [handler for route in app.routes for handler in getattr(route, "route_handlers", ())]
    served = {
        handler.operation_id
        for handler in handlers
        if handler.fn.__module__.startswith("interlock.") and handler.include_in_schema is not False
    }
    assert len(served) > 25
    left_out = {"stream_events", "metrics"}
    names = {"healthz": "health", "readyz": "ready"}
    assert {names.get(name, name) for name in served - left_out} <= set(vars(calls))


def test_a_client_needs_no_server() -> None:
    code = (
        "import sys, interlock.client; "
        "print(sorted({'litestar', 'uvicorn', 'sqlite_utils', 'statemachine'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
