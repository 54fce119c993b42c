"""A bell between the processes of one data folder: who commits rings, who waits hears.

A ring is an empty datagram to every socket in the folder ``bells``. It is a hint: it carries nothing, may be lost, and may come
twice. Sockets are addressed through /proc/self/fd, because the path of a unix socket ends at 107 bytes and a data folder's
need not.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path


class Bell:
    """The bells of one data folder. Safe to ring from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None
        self._own: set[str] = set()
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)

    def _open(self, *, make: bool) -> int | None:
        if self._descriptor is None:
            try:
                if make:
                    self._folder.mkdir(mode=0o700, exist_ok=True)
                self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                return None
        return self._descriptor

    def listen(self) -> tuple[socket.socket, Callable[[], None]] | None:
        """A socket that becomes readable at every ring of another process, and what closes it. None: no bell here (read-only)."""
        descriptor = self._open(make=True)
        if descriptor is None:
            return None
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        heard.setblocking(False)
        try:
            heard.bind(f"/proc/self/fd/{descriptor}/{name}")
        except OSError:
            heard.close()
            return None
        self._own.add(name)

        def close() -> None:
            heard.close()
            self._own.discard(name)
            self._remove(name)

        return heard, close

    def ring(self) -> None:
        """Tell every other listener. Never raises, never blocks."""
        descriptor = self._open(make=False)
        if descriptor is None:
            return
        try:
            names = os.listdir(descriptor)
        except OSError:
            return
        for name in names:
            if name in self._own:
                continue
            try:
                self._sender.sendto(b"", f"/proc/self/fd/{descriptor}/{name}")
            except (ConnectionRefusedError, FileNotFoundError):
                self._remove(name)
            except OSError:
                # Its queue is full: it has a ring to hear already.
                continue

    def _remove(self, name: str) -> None:
        if self._descriptor is None:
            # Closed already. Whoever rings next removes it.
            return
        try:
            os.unlink(name, dir_fd=self._descriptor)
        except OSError:
            return

    def close(self) -> None:
        """Let go of descriptors."""
        self._sender.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
