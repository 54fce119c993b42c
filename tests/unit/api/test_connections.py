"""The wire itself, byte by byte: what is no good HTTP, what is too long, what does not come to its end."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from interlock.api import connection

HEAD = b"Host: localhost\r\nContent-Type: application/json\r\n"


class Wire:
    """A connection of one's own."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.rest = b""

    async def send(self, data: bytes) -> None:
        """These bytes."""
        await self.stream.send_all(data)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """The next answer: status, headers, body (JSON, if there is one)."""
        while b"\r\n\r\n" not in self.rest:
            await self._more()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers.get("content-length", "0"))
        while len(self.rest) < length:
            await self._more()
        body, self.rest = self.rest[:length], self.rest[length:]
        return int(first.split(" ")[1]), headers, json.loads(body) if body else None

    async def refusal(self, status: int, code: str) -> dict[str, Any]:
        """The next answer, which is a refusal behind which the connection is closed."""
        got, headers, body = await self.answer()
        assert (got, body["error"]["code"]) == (status, code), body
        assert body["error"]["hint"]
        assert headers["content-type"] == "application/json"
        assert headers["connection"] == "close"
        await self.over()
        fault: dict[str, Any] = body["error"]
        return fault

    async def over(self) -> None:
        """Nothing more comes."""
        try:
            more = await self.stream.receive_some()
        except trio.BrokenResourceError:
            more = b""
        assert self.rest + more == b""

    async def _more(self) -> None:
        data = await self.stream.receive_some()
        assert data, f"the server hung up: {self.rest!r}"
        self.rest += data


@pytest.fixture
def dial(site: Any) -> Any:
    """Opens connections to the gateway."""
    port = int(site.gateway.addresses[0].rpartition(":")[2])

    @asynccontextmanager
    async def opened() -> AsyncIterator[Wire]:
        with trio.fail_after(30):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                yield Wire(stream)

    return opened


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: local\x00host\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, identity\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_http_is_refused_in_the_envelope(dial: Any, data: bytes) -> None:
    async with dial() as wire:
        await wire.send(data)
        await wire.refusal(400, "invalid_input")


async def test_a_broken_chunk_is_no_fault_of_ours(dial: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with dial() as wire:
        await wire.send(b"POST /api/workflow-runs HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
        await wire.refusal(400, "invalid_input")
    assert caplog.records == []


async def test_a_head_that_is_too_long(dial: Any) -> None:
    for head in (
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    ):
        async with dial() as wire:
            await wire.send(head)
            await wire.refusal(413, "too_large")


async def test_a_head_that_does_not_end(dial: Any) -> None:
    async with dial() as wire:
        await wire.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        with pytest.raises(trio.BrokenResourceError):
            await wire.send(b"x" * 40_000_000)
    async with dial() as wire:
        await wire.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await wire.answer())[0] == 200


async def test_doubled_headers_that_have_to_be_one(dial: Any) -> None:
    for doubled in (b"Host: localhost", b"Content-Type: application/json", b"Idempotency-Key: a"):
        async with dial() as wire:
            await wire.send(
                b"POST /api/workflow-runs HTTP/1.1\r\n"
                + HEAD
                + b"Idempotency-Key: a\r\nContent-Length: 13\r\n"
                + doubled
                + b'\r\n\r\n{"title":"a"}'
            )
            status, _, body = await wire.answer()
            assert status == 400
            assert "twice" in body["error"]["message"]


async def test_chunks_are_put_together(site: Any, dial: Any) -> None:
    async with dial() as wire:
        await wire.send(b"POST /api/workflow-runs HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for piece in (b'{"ti', b'tle"', b':"in pieces"}'):
            await wire.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await wire.send(b"0\r\n\r\n")
        assert (await wire.answer())[0] == 201
    (run,) = (await site.get("/api/workflow-runs"))["runs"]
    assert run["title"] == "in pieces"


async def test_who_asks_before_sending_is_told_to_go_on(dial: Any) -> None:
    body = b'{"title":"a"}'
    async with dial() as wire:
        head = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
        await wire.send(b"POST /api/workflow-runs HTTP/1.1\r\n" + head)
        assert (await wire.answer())[0] == 100
        await wire.send(body)
        status, headers, _ = await wire.answer()
        assert status == 201
        assert "connection" not in headers


async def test_who_asks_before_sending_is_refused_without_being_heard(dial: Any) -> None:
    """What follows on the connection could be the body or another request: there is no way to tell."""
    for path, length, status in (
        (b"/api/workflow-runs", 5_000_000, 413),
        (b"/nope", 10, 404),
    ):
        async with dial() as wire:
            head = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % length
            await wire.send(b"POST " + path + b" HTTP/1.1\r\n" + head)
            got, headers, _ = await wire.answer()
            assert (got, headers["connection"]) == (status, "close")
            await wire.over()


async def test_requests_behind_each_other_are_answered_in_order(dial: Any) -> None:
    async with dial() as wire:
        await wire.send(
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
            b"GET /nope HTTP/1.1\r\nHost: localhost\r\n\r\n"
            b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        assert [(await wire.answer())[0] for _ in range(3)] == [200, 404, 200]


async def test_an_upgrade_is_not_taken(dial: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with dial() as wire:
        await wire.send(
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert (await wire.answer())[0] == 200
    assert caplog.records == []


async def test_a_client_that_goes_away_in_the_middle_is_no_fault(
    site: Any, dial: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for start in (
        b"POST /api/workflow-runs HTTP/1.1\r\n" + HEAD + b'Content-Length: 100\r\n\r\n{"title":',
        b"POST /api/workflow-runs HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"GET /api/workflow-runs/pending?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /hea",
    ):
        async with dial() as wire:
            await wire.send(start)
    with trio.fail_after(20):
        while len(site.gateway.board):
            await trio.sleep(0.01)
    assert (await site.get("/api/workflow-runs"))["runs"] == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


class TestSlow:
    """A server that does not wait for long."""

    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection.Connection, "request_seconds", 0.2)
        monkeypatch.setattr(connection.Connection, "look_seconds", 0.05)

    @pytest.mark.parametrize(
        "start",
        [
            b"GET / HTTP/1.1\r\nHost: loc",
            b"POST /api/workflow-runs HTTP/1.1\r\n" + HEAD + b'Content-Length: 100\r\n\r\n{"title":',
            b"POST /api/workflow-runs HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
        ],
    )
    async def test_a_request_that_does_not_come_to_its_end(self, dial: Any, start: bytes) -> None:
        async with dial() as wire:
            await wire.send(start)
            await wire.refusal(408, "request_timeout")

    async def test_a_connection_on_which_nothing_comes(self, dial: Any) -> None:
        async with dial() as wire:
            await wire.over()

    async def test_a_body_that_goes_on_behind_its_answer(self, dial: Any) -> None:
        async with dial() as wire:
            await wire.send(b"POST /nope HTTP/1.1\r\n" + HEAD + b"Content-Length: 100\r\n\r\n{")
            assert (await wire.answer())[0] == 404
            await wire.over()

    async def test_an_agent_may_wait_for_longer(self, site: Any, dial: Any) -> None:
        async with dial() as wire:
            await wire.send(b"GET /api/workflow-runs/pending?wait=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await wire.answer())[2] == {"runs": []}
            await wire.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await wire.answer())[0] == 200
