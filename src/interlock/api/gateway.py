"""The gateway: HTTP server, bridge and desk as one thing that lives in a nursery of the daemon."""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio
import uvicorn
from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from interlock.api import faults
from interlock.api.asking import Asked, before
from interlock.api.board import Board
from interlock.api.bridge import Bridge
from interlock.api.connection import Connection
from interlock.api.description import describe
from interlock.api.desk import Desk
from interlock.api.doors import Claims, Health, Operating, Runs, Templates
from interlock.api.guard import Guard
from interlock.api.lobby import Lobby
from interlock.api.meter import Meter
from interlock.domain.errors import Conflict, InterlockError, InvalidInput
from interlock.domain.places import API_SOCKET
from interlock.domain.token import Token

T = TypeVar("T")
log = logging.getLogger("interlock")
PORT = 7420
BACKLOG = 2048
HEADERS = [
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
]
"""Of every answer."""
_END_SECONDS = 5.0
_PATH_LIMIT = 107


class Listen(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen. ``folder``: for the socket file. ``insists``: on this port, else any does if it is taken.

    ``hosts``: further names that it goes by on loopback. ``strict``: a token is wanted there as well.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    folder: Path | None = None
    hosts: tuple[str, ...] = ()
    strict: bool = False
    insists: bool = True


class Gateway:
    """Serves ``desk`` over HTTP. :meth:`run` in a nursery; :attr:`addresses` once it has started."""

    def __init__(self, desk: Desk, listen: Listen) -> None:
        self.desk = desk
        self.addresses: list[str] = []
        self.ending = False
        self.description = b""
        """The API as OpenAPI; there once it serves."""
        self._listen = listen
        self._bridge: Bridge | None = None
        self.board = Board(desk.service)
        self.meter = Meter(desk.service)

    async def call(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """On the server's loop: one call of the desk."""
        assert self._bridge is not None
        return await self._bridge.call(partial(work, *arguments))

    async def metrics(self) -> bytes:
        """See :class:`interlock.api.meter.Meter`."""
        return await self.meter.text(len(self.board))

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Reports started when requests are served. Raises Conflict for an address that is taken."""
        with ExitStack() as opened:
            sockets = self._open(opened)
            async with trio.open_nursery() as nursery:
                self._bridge = Bridge(nursery)
                nursery.start_soon(self.board.run)
                await nursery.start(self.meter.run)
                started = trio.Event()
                server = uvicorn.Server(self._config(started))
                thread = threading.Thread(target=_serve, args=(server, sockets), name="interlock http", daemon=True)
                thread.start()
                try:
                    await _until(started, thread)
                    task_status.started()
                    while thread.is_alive():
                        await trio.sleep(1)
                    raise Conflict("the HTTP server ended by itself", hint="the daemon's log says why")
                finally:
                    self.ending = True
                    self.board.close()
                    server.should_exit = True
                    with trio.CancelScope(shield=True), trio.move_on_after(_END_SECONDS):
                        while thread.is_alive():
                            await trio.sleep(0.01)
                    nursery.cancel_scope.cancel()

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
        return Guard(app, token_of=self._token_of, hosts=self._listen.hosts, strict=self._listen.strict)

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

    def _open(self, opened: ExitStack) -> list[socket.socket]:
        sockets: list[socket.socket] = []
        try:
            found = _tcp(self._listen.host, self._listen.port)
        except Conflict:
            if self._listen.insists:
                raise
            log.warning("port %d is taken: another one serves", self._listen.port)
            found = _tcp(self._listen.host, 0)
        for made in found:
            sockets.append(opened.enter_context(made))
            host, port = made.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            self.addresses.append(f"http://{shown}:{port}")
        if self._listen.folder is not None:
            path = self._listen.folder / API_SOCKET
            sockets.append(opened.enter_context(_unix(path)))
            opened.callback(_remove, path)
            self.addresses.append(str(path))
        return sockets


def _serve(server: uvicorn.Server, sockets: Sequence[socket.socket]) -> None:
    try:
        server.run(sockets=list(sockets))
    except BaseException:
        log.exception("the HTTP server failed")


async def _until(started: trio.Event, thread: threading.Thread) -> None:
    while not started.is_set():
        if not thread.is_alive():
            raise Conflict("the HTTP server could not start", hint="the daemon's log says why")
        with trio.move_on_after(0.1):
            await started.wait()


def _tcp(host: str, port: int) -> Iterable[socket.socket]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidInput(f"there is no address '{host}': {error.strerror}", hint="--listen 127.0.0.1:7420") from None
    made: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            made.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
    except OSError as error:
        for each in made:
            each.close()
        raise Conflict(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="another daemon may have it: --listen HOST:PORT (port 0: any), or --no-http",
        ) from None
    return made


def _unix(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                # The lock of the data folder is held: whoever made it is gone.
                path.unlink()
        with _ShortName(path) as short:
            listening.bind(short)
        path.chmod(0o600)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise Conflict(f"cannot listen on {path}: {error.strerror}", hint="remove what is there") from None
    return listening


class _ShortName:
    """A name for ``path`` that a socket's address has room for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= _PATH_LIMIT:
            return str(self._path)
        self._fd = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}/{self._path.name}"

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
