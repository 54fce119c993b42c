"""A client that costs little: so many keep-alive connections that each send a POST, wait for the answer, and send the next.

As a program: ``python -m benchmarks.http_load HOST PORT PATH CONNECTIONS COUNT``. Each body is a claim-next with a request id
of its own. Prints requests per second, how many answers were a claim, and how many were no 200.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast

import uvloop


class Caller(asyncio.Protocol):
    """One connection."""

    def __init__(self, load: Load, name: str) -> None:
        self._load = load
        self._name = name
        self._buffer = b""
        self._sent = 0
        self._transport: asyncio.Transport | None = None
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        at = head.lower().index(b"content-length:") + len(b"content-length:")
        length = int(head[at:].partition(b"\r\n")[0])
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        self._load.take(ok=head.startswith(b"HTTP/1.1 200"), claim=length > len(b"null"))
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio names it
        if not self.over.done():
            self.over.set_result(None)

    def _send(self) -> None:
        assert self._transport is not None
        if not self._load.another():
            self._transport.close()
            return
        self._sent += 1
        body = json.dumps({"agent_session": self._name, "request_id": f"{self._name}-{self._sent}"}).encode()
        head = (
            f"POST {self._load.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + body)


class Load:
    """What all connections share."""

    def __init__(self, path: str, count: int) -> None:
        self.path = path
        self._left = count
        self.done = self.claims = self.refused = 0

    def another(self) -> bool:
        """Whether there is another request to send."""
        self._left -= 1
        return self._left >= 0

    def take(self, *, ok: bool, claim: bool) -> None:
        """An answer."""
        self.done += 1
        self.claims += ok and claim
        self.refused += not ok


async def run(host: str, port: int, path: str, connections: int, count: int) -> tuple[float, int, int]:
    """Requests per second, claims, refusals."""
    loop = asyncio.get_running_loop()
    load = Load(path, count)
    began = time.perf_counter()
    callers = []
    for n in range(connections):
        _, caller = await loop.create_connection(lambda n=n: Caller(load, f"s{n}"), host, port)  # type: ignore[misc]
        callers.append(caller)
    await asyncio.gather(*(caller.over for caller in callers))
    return load.done / (time.perf_counter() - began), load.claims, load.refused


def main() -> None:
    """As a program."""
    host, port, path, connections, count = sys.argv[1:]
    print(*uvloop.run(run(host, int(port), path, int(connections), int(count))))


if __name__ == "__main__":
    main()
