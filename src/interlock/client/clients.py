"""The two clients: each sends what :mod:`interlock.client.calls` describes, one of them asynchronously."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from random import Random
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio
import httpx

from interlock.client import calls
from interlock.client.calls import Request
from interlock.client.places import is_on_loopback, place_of
from interlock.client.trying import Again, Patience, Trouble, Trying, timeout_of
from interlock.domain.errors import InvalidInput
from interlock.domain.socket_name import SocketName

P = ParamSpec("P")
T = TypeVar("T")


def _asynchronously(call: Callable[P, Request[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @wraps(call)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(call(*args, **kwargs))

    return method


def _at_once(call: Callable[P, Request[T]]) -> Callable[Concatenate[Client, P], T]:
    @wraps(call)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(call(*args, **kwargs))

    return method


class _Connected:
    """What both have: where the server is, the token, how patient they are."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        patience: Patience | None = None,
        rng: Random | None = None,
        on_trouble: Callable[[Trouble], object] | None = None,
    ) -> None:
        """``url``: ``http://HOST:PORT`` or the path of a socket file; else INTERLOCK_URL, else http://127.0.0.1:7420.

        ``token``: else INTERLOCK_TOKEN, else none. ``on_trouble`` is told of every try that failed and is followed by another.
        Raises InvalidInput for what is no address, or no token.
        """
        self.place = place_of(url)
        self._patience = patience or Patience()
        self._rng = rng or Random()  # noqa: S311 - it spreads retries
        self._on_trouble = on_trouble
        self._headers = {"Accept": "application/json"}
        token = token if token is not None else os.environ.get("INTERLOCK_TOKEN")
        if token:
            if not (token.isascii() and token.isprintable()) or " " in token:
                raise InvalidInput("the token has characters that no token has", hint="copy it once more")
            self._headers["Authorization"] = f"Bearer {token}"
        self._socket = None if self.place.socket is None else SocketName(self.place.socket)
        self._connect()

    def _connect(self) -> None:
        raise NotImplementedError

    @property
    def _is_direct(self) -> bool:
        """Whether no proxy is asked."""
        return self._socket is not None or is_on_loopback(self.place.base)

    @property
    def _uds(self) -> str | None:
        return None if self._socket is None else self._socket.name

    def _trying(self, request: Request[T], now: float) -> Trying[T]:
        return Trying(request, self._patience, self._rng, now, where=self.place.shown, hear=self._on_trouble)

    def _let_go(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _sent(request: Request[Any]) -> dict[str, Any]:
    headers = dict(request.headers)
    if request.body is not None:
        headers["Content-Type"] = "application/json"
    return {
        "params": request.params or None,
        "content": request.body,
        "headers": headers,
        "timeout": timeout_of(request),
    }


class _Body(httpx.AsyncByteStream):
    """A body in one piece. httpx's own is an async generator, of which trio complains when a request is cancelled."""

    def __init__(self, body: bytes) -> None:
        self._left = [body]

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()


class AsyncClient(_Connected):
    """Interlock over HTTP, under trio or asyncio. ``async with AsyncClient() as client: await client.get_run(12)``."""

    def _connect(self) -> None:
        # A long poll holds its connection: without limits none waits for another's.
        limits = httpx.Limits(max_connections=None)
        transport = httpx.AsyncHTTPTransport(uds=self._uds, limits=limits) if self._is_direct else None
        self._http = httpx.AsyncClient(
            base_url=self.place.base, headers=self._headers, transport=transport, limits=limits
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of its connections."""
        try:
            await self._http.aclose()
        finally:
            self._let_go()

    async def send(self, request: Request[T]) -> T:
        """Send a request, again where that is safe and may help, and give back what the answer says."""
        trying = self._trying(request, anyio.current_time())
        while True:
            try:
                response = await self._http.send(self._build(request))
            except httpx.TransportError as error:
                again = trying.failed(error, anyio.current_time())
            else:
                said = trying.answered(response, anyio.current_time())
                if not isinstance(said, Again):
                    return said
                again = said
            await anyio.sleep(again.seconds)

    def _build(self, request: Request[Any]) -> httpx.Request:
        built = self._http.build_request(request.method, request.path, **_sent(request))
        if request.body is not None:
            built.stream = _Body(request.body)
        return built

    list_runs = _asynchronously(calls.list_runs)
    submit = _asynchronously(calls.submit)
    get_run = _asynchronously(calls.get_run)
    run_events = _asynchronously(calls.run_events)
    run_logs = _asynchronously(calls.run_logs)
    answer = _asynchronously(calls.answer)
    cancel = _asynchronously(calls.cancel)
    pending = _asynchronously(calls.pending)
    claim = _asynchronously(calls.claim)
    claim_next = _asynchronously(calls.claim_next)
    start = _asynchronously(calls.start)
    heartbeat = _asynchronously(calls.heartbeat)
    complete = _asynchronously(calls.complete)
    fail = _asynchronously(calls.fail)
    release = _asynchronously(calls.release)
    defer = _asynchronously(calls.defer)
    block = _asynchronously(calls.block)
    append_log = _asynchronously(calls.append_log)
    report_usage = _asynchronously(calls.report_usage)
    stats = _asynchronously(calls.stats)
    list_routes = _asynchronously(calls.list_routes)
    get_route = _asynchronously(calls.get_route)
    put_route = _asynchronously(calls.put_route)
    delete_route = _asynchronously(calls.delete_route)
    list_templates = _asynchronously(calls.list_templates)
    get_template = _asynchronously(calls.get_template)
    put_template = _asynchronously(calls.put_template)
    delete_template = _asynchronously(calls.delete_template)
    limits = _asynchronously(calls.limits)
    pause = _asynchronously(calls.pause)
    resume = _asynchronously(calls.resume)
    drain = _asynchronously(calls.drain)
    health = _asynchronously(calls.health)
    ready = _asynchronously(calls.ready)


class Client(_Connected):
    """Interlock over HTTP. ``with Client() as client: client.get_run(12)``."""

    def _connect(self) -> None:
        transport = httpx.HTTPTransport(uds=self._uds) if self._is_direct else None
        self._http = httpx.Client(base_url=self.place.base, headers=self._headers, transport=transport)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of its connections."""
        try:
            self._http.close()
        finally:
            self._let_go()

    def send(self, request: Request[T]) -> T:
        """Send a request, again where that is safe and may help, and give back what the answer says."""
        trying = self._trying(request, time.monotonic())
        while True:
            try:
                response = self._http.request(request.method, request.path, **_sent(request))
            except httpx.TransportError as error:
                again = trying.failed(error, time.monotonic())
            else:
                said = trying.answered(response, time.monotonic())
                if not isinstance(said, Again):
                    return said
                again = said
            time.sleep(again.seconds)

    list_runs = _at_once(calls.list_runs)
    submit = _at_once(calls.submit)
    get_run = _at_once(calls.get_run)
    run_events = _at_once(calls.run_events)
    run_logs = _at_once(calls.run_logs)
    answer = _at_once(calls.answer)
    cancel = _at_once(calls.cancel)
    pending = _at_once(calls.pending)
    claim = _at_once(calls.claim)
    claim_next = _at_once(calls.claim_next)
    start = _at_once(calls.start)
    heartbeat = _at_once(calls.heartbeat)
    complete = _at_once(calls.complete)
    fail = _at_once(calls.fail)
    release = _at_once(calls.release)
    defer = _at_once(calls.defer)
    block = _at_once(calls.block)
    append_log = _at_once(calls.append_log)
    report_usage = _at_once(calls.report_usage)
    stats = _at_once(calls.stats)
    list_routes = _at_once(calls.list_routes)
    get_route = _at_once(calls.get_route)
    put_route = _at_once(calls.put_route)
    delete_route = _at_once(calls.delete_route)
    list_templates = _at_once(calls.list_templates)
    get_template = _at_once(calls.get_template)
    put_template = _at_once(calls.put_template)
    delete_template = _at_once(calls.delete_template)
    limits = _at_once(calls.limits)
    pause = _at_once(calls.pause)
    resume = _at_once(calls.resume)
    drain = _at_once(calls.drain)
    health = _at_once(calls.health)
    ready = _at_once(calls.ready)
