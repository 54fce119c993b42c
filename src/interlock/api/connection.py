"""A connection of the HTTP server: what uvicorn leaves open is bounded here, and refused in the envelope that everything has.

Bounds are of bytes and time. A head that does not end, a request that does not come to its end, a client that goes on sending
after it was answered: none of them keeps memory or the connection for long. How long an answer may take is no matter of
this: an agent may wait for an offer as long as it says.
"""

from __future__ import annotations

import asyncio
import logging

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from interlock.api.faults import Malformed, Slow, encoded
from interlock.domain.errors import InterlockError, TooLarge

HEAD_LIMIT = 64 * 1024
"""Bytes of a request's line and headers."""
LATE_LIMIT = 64 * 1024 * 1024
"""Bytes that are passed over behind an answer that came before the end of the request."""
REQUEST_SECONDS = 60.0
"""So long a request may take to come in; a connection without one, to send the first."""
_LOOK_SECONDS = 15.0
_log = logging.getLogger("interlock.http")
# What clients do is answered, not noted: whoever is outside could fill the log.
_log.setLevel(logging.ERROR)


class Connection(HttpToolsProtocol):
    """One connection of a client."""

    request_seconds = REQUEST_SECONDS
    look_seconds = _LOOK_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        self.logger = _log
        super().connection_made(transport)
        self._coming_since: float | None = self.loop.time()
        self._in_head = False
        self._head_bytes = 0
        self._late_bytes = 0
        self._refusal: InterlockError | None = None
        self._look: asyncio.TimerHandle | None = self.loop.call_later(self.look_seconds, self._look_at_the_clock)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes of it."""
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT:
                self._refuse(_too_long())
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._coming_since = self.loop.time()
        self._in_head = True
        self._head_bytes = self._late_bytes = 0

    def on_headers_complete(self) -> None:
        """Its head is there. Raising here has it refused."""
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD_LIMIT:
            self._refusal = _too_long()
            raise ValueError
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        if self.cycle.response_complete:
            self._late_bytes += len(body)
            if self._late_bytes > LATE_LIMIT:
                self.transport.abort()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It is there."""
        self._coming_since = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """What came is refused by the parser, or by one of the checks above."""
        refusal, self._refusal = self._refusal, None
        self._refuse(refusal or Malformed("this is no HTTP request that can be read", hint="send HTTP/1.1 (RFC 9112)"))

    def _unsupported_upgrade_warning(self) -> None:
        """Answered as if there were no wish for an upgrade, as the protocol has it; nobody needs to hear of it."""

    def _look_at_the_clock(self) -> None:
        self._look = self.loop.call_later(self.look_seconds, self._look_at_the_clock)
        if self._coming_since is None or self.loop.time() - self._coming_since < self.request_seconds:
            return
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None and not self._in_head:
            # Connected, and then nothing.
            self.transport.close()
        else:
            seconds = f"{self.request_seconds:g}"
            self._refuse(Slow(f"the request did not come to its end in {seconds} s", hint="send it faster, or less"))

    def _refuse(self, refusal: InterlockError) -> None:
        """Say so, unless this request was answered already or is being answered, and hang up."""
        cycle: RequestResponseCycle | None = self.cycle
        between = cycle is not None and cycle.response_complete and (self._in_head or self._coming_since is None)
        if cycle is None or between or not cycle.response_started:
            body = encoded(refusal)
            headers = [
                *self.server_state.default_headers,
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
            ]
            lines = b"".join(b"%b: %b\r\n" % header for header in headers)
            self.transport.write(b"".join((STATUS_LINE[refusal.http_status], lines, b"\r\n", body)))
        if cycle is not None and not cycle.response_complete:
            # Whoever answers it finds its client gone.
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()


def _too_long() -> TooLarge:
    return TooLarge(
        f"the head of the request is larger than {HEAD_LIMIT} bytes", hint="shorten path, parameters and headers"
    )
