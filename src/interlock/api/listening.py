"""Where the gateway listens: an address, and a socket file in the data folder. Taken before anything is dispatched."""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from interlock.domain.errors import Conflict, InvalidInput
from interlock.domain.places import API_SOCKET
from interlock.domain.socket_name import SocketName

log = logging.getLogger("interlock")
PORT = 7420
BACKLOG = 2048


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


class Listening:
    """Sockets that are open, or not yet. :attr:`addresses` are what people are told."""

    def __init__(self, where: Listen) -> None:
        self.where = where
        self.addresses: list[str] = []
        self._sockets: list[socket.socket] = []
        self._file: Path | None = None

    def open(self) -> Sequence[socket.socket]:
        """Listen, if it does not yet. Raises Conflict for an address that is taken, InvalidInput for one that there is not."""
        if not self._sockets:
            self.addresses = []
            try:
                self._open()
            except BaseException:
                self.close()
                raise
        return self._sockets

    def close(self) -> None:
        """Listen no more."""
        for each in self._sockets:
            each.close()
        self._sockets = []
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink()
            self._file = None

    def _open(self) -> None:
        where = self.where
        try:
            self._sockets = _tcp(where.host, where.port)
        except Conflict:
            if where.insists:
                raise
            log.warning("port %d is taken: another one serves", where.port)
            self._sockets = _tcp(where.host, 0)
        for each in self._sockets:
            host, port = each.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            self.addresses.append(f"http://{shown}:{port}")
        if where.folder is not None:
            path = where.folder / API_SOCKET
            made = _unix(path)
            if made is None:
                log.warning("another daemon has %s: this one serves by its address only", path)
            else:
                self._sockets.append(made)
                self._file = path
                self.addresses.append(str(path))


def _tcp(host: str, port: int) -> list[socket.socket]:
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


def _unix(path: Path) -> socket.socket | None:
    """None when somebody listens there."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    name = SocketName(path)
    try:
        if _is_socket(path):
            if _answers(name.name):
                listening.close()
                return None
            # Whoever made it is gone.
            path.unlink()
        listening.bind(name.name)
        path.chmod(0o600)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise Conflict(f"cannot listen on {path}: {error.strerror}", hint="remove what is there") from None
    finally:
        name.close()
    return listening


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _answers(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(name)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            # So many are waiting there already.
            return True
        return True
