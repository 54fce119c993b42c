"""Where a server is: an address, or a socket file."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from interlock.domain.errors import InvalidInput

DEFAULT_URL = "http://127.0.0.1:7420"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """``shown``: as a person says it. ``base``: of the URLs of its requests. ``socket``: its file, if it is one."""

    shown: str
    base: str
    socket: Path | None = None


def place_of(url: str | None) -> Place:
    """The place of ``http(s)://HOST:PORT[/PREFIX]``, ``unix:PATH`` or ``/PATH``; None: INTERLOCK_URL, else the default.

    Raises InvalidInput for anything else.
    """
    url = (url or os.environ.get("INTERLOCK_URL") or DEFAULT_URL).strip()
    if url.startswith(("/", "./", "../", "unix:")):
        path = Path(url.removeprefix("unix:").removeprefix("//") if url.startswith("unix:") else url).absolute()
        return Place(shown=str(path), base="http://localhost", socket=path)
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise InvalidInput(f"'{url}' is no address of a server", hint=f"write {DEFAULT_URL}, or a socket file's path")
    return Place(shown=url.rstrip("/"), base=url.rstrip("/"))


def is_on_loopback(base: str) -> bool:
    """Whether a URL is one of this machine: no proxy is asked for it."""
    name = urlsplit(base).hostname or ""
    return name in ("localhost", "::1") or name.startswith("127.")
