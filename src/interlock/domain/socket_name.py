"""Unix sockets in folders whose path is too long for the address of one."""

from __future__ import annotations

import os
from pathlib import Path

from interlock.domain.errors import InvalidInput

_PATH_LIMIT = 107
"""Bytes that fit into the address of a Unix socket."""


class SocketName:
    """A name for a socket file that fits into an address; :meth:`close` when it is no longer needed."""

    def __init__(self, path: Path) -> None:
        self._folder: int | None = None
        self.name = str(path)
        if len(os.fsencode(path)) > _PATH_LIMIT:
            try:
                self._folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise InvalidInput(f"{path.parent} cannot be opened: {error.strerror}") from None
            self.name = f"/proc/self/fd/{self._folder}/{path.name}"

    def close(self) -> None:
        """Let go of the folder."""
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None
