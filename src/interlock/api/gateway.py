"""The gateway: HTTP server, bridge and desk as one thing that lives in a nursery of the daemon."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import trio
import uvicorn
from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from interlock.actors.supervision import keep_running
from interlock.api import faults
from interlock.api.asking import Asked, before
from interlock.api.board import Board
from interlock.api.bridge import Bridge
from interlock.api.connection import Connection
from interlock.api.description import describe
from interlock.api.desk import Desk
from interlock.api.doors import Claims, Health, Operating, Runs, Templates
from interlock.api.guard import Guard
from interlock.api.listening import BACKLOG, Listening
from interlock.api.lobby import Lobby
from interlock.api.meter import Meter
from interlock.domain.errors import InterlockError
from interlock.domain.token import Token

T = TypeVar("T")
log = logging.getLogger("interlock")
HEADERS = [
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
]
"""Of every answer."""
_END_SECONDS = 5.0


class Gateway:
    """Serves ``desk`` over HTTP, where ``listening`` does. :meth:`run` in a nursery."""

    def __init__(self, desk: Desk, listening: Listening) -> None:
        self.desk = desk
        self.ending = False
        self.description = b""
        """The API as OpenAPI; there once it serves."""
        self._listening = listening
        self._bridge: Bridge | None = None
        self.server: uvicorn.Server | None = None
        self.board = Board(desk.service)
        self.meter = Meter(desk.service)

    @property
    def addresses(self) -> list[str]:
        """What people are told."""
        return self._listening.addresses

    async def call(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """On the server's loop: one call of the desk."""
        assert self._bridge is not None
        return await self._bridge.call(partial(work, *arguments))

    async def metrics(self) -> bytes:
        """See :class:`interlock.api.meter.Meter`."""
        return await self.meter.text(len(self.board))

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Reports started when requests are served. Raises Conflict for an address that is taken.

        What goes wrong in it is its own matter: it is started again, and the dispatcher goes on.
        """
        self._listening.open()
        started = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_running, "the HTTP interface", partial(self._serve, started))
            await started.wait()
            task_status.started()

    async def _serve(self, started: trio.Event) -> None:
        sockets = self._listening.open()
        self.ending, self.board = False, Board(self.desk.service)
        try:
            async with trio.open_nursery() as nursery:
                self._bridge = Bridge(nursery)
                nursery.start_soon(keep_running, "the board of offers", self.board.run)
                nursery.start_soon(keep_running, "the meter", self.meter.run)
                server = self.server = uvicorn.Server(self._config(started))
                thread = threading.Thread(target=_serve, args=(server, sockets), name="interlock http", daemon=True)
                thread.start()
                try:
                    while thread.is_alive():
                        await trio.sleep(1)
                    raise RuntimeError("the HTTP server ended by itself")
                finally:
                    self.ending = True
                    self.board.close()
                    server.should_exit = True
                    with trio.CancelScope(shield=True), trio.move_on_after(_END_SECONDS):
                        while thread.is_alive():
                            await trio.sleep(0.01)
                    nursery.cancel_scope.cancel()
        finally:
            self._listening.close()

    def application(self, started: Callable[[], None]) -> Any:
        """The ASGI application."""
        assert self._bridge is not None
        bridge = self._bridge

        async def begin() -> None:
            bridge.meet()
            bridge.tell(started)

        app = Litestar(
            route_handlers=[Runs, Claims, Templates, Operating, Health],
            on_startup=[begin],
            state=State({"gateway": self, "desk": self.desk, "lobby": Lobby(bridge, self.board)}),
            exception_handlers={
                InterlockError: faults.of_ours,
                HTTPException: faults.of_http,
                Exception: faults.of_us,
            },
            request_class=Asked,
            before_request=before,
            openapi_config=None,
            request_max_body_size=faults.BODY_LIMIT,
            logging_config=None,
        )
        self.description = msgspec.json.encode(describe(app, self.desk.version))
        return Guard(
            app, token_of=self._token_of, hosts=self._listening.where.hosts, strict=self._listening.where.strict
        )

    async def _token_of(self, secret: str) -> Token | None:
        async def look() -> Token | None:
            return self.desk.service.token_of(secret)

        return await self.call(look)

    def _config(self, started: trio.Event) -> uvicorn.Config:
        return uvicorn.Config(
            self.application(started.set),
            http=Connection,
            headers=HEADERS,
            log_config=None,
            access_log=False,
            ws="none",
            lifespan="on",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=2,
            backlog=BACKLOG,
        )


def _serve(server: uvicorn.Server, sockets: Sequence[socket.socket]) -> None:
    try:
        server.run(sockets=list(sockets))
    except BaseException:
        log.exception("the HTTP server failed")
