"""What an answer means, and when a request is sent again: decisions, without I/O."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any, Generic, TypeVar

import httpx
import msgspec

from interlock import wire
from interlock.client.calls import Request
from interlock.domain import errors
from interlock.domain.errors import InterlockError, InvalidInput, Unavailable

T = TypeVar("T")
_MAY_PASS = frozenset({502, 503, 504})
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_OURS = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
_KINDS: dict[str, type[InterlockError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, InterlockError) and kind is not InterlockError
}
_FAULT: msgspec.json.Decoder[wire.Envelope] = msgspec.json.Decoder(wire.Envelope)


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How a server that cannot be reached, or cannot serve now (502, 503, 504), is tried again.

    For ``seconds`` since the call (0: not at all; ``math.inf``: for ever). The n-th wait is a random part ("full jitter") of
    ``first_wait`` doubled n times, at most ``longest_wait`` (seconds): those that were cut off together do not return together.
    """

    seconds: float = 30.0
    first_wait: float = 0.1
    longest_wait: float = 5.0

    def wait(self, tries: int, rng: Random) -> float:
        """Seconds before the next try, after so many (1, 2, ...)."""
        return rng.uniform(0, min(self.longest_wait, self.first_wait * 2.0 ** min(tries, 60)))


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """A try that failed and is followed by another. ``tries``: how many there were. ``wait``: seconds until the next."""

    error: InterlockError
    tries: int
    wait: float


class Again(msgspec.Struct, frozen=True):
    """The request is to be sent again, in so many seconds."""

    seconds: float


class Trying(Generic[T]):
    """The tries of one request. ``now`` and ``rng`` are given: monotonic seconds, and chance."""

    def __init__(
        self,
        request: Request[T],
        patience: Patience,
        rng: Random,
        now: float,
        *,
        where: str,
        hear: Callable[[Trouble], object] | None = None,
    ) -> None:
        self._request = request
        self._patience = patience
        self._rng = rng
        self._until = now + patience.seconds
        self._where = where
        self._hear = hear
        self._tries = 0

    def answered(self, response: httpx.Response, now: float) -> Again | T:
        """What the answer says: a value, or that the request is to be sent again. Raises the refusal."""
        if response.is_success:
            try:
                return self._request.read(response.content, response.headers)
            except (msgspec.MsgspecError, KeyError, ValueError) as error:
                raise InterlockError(
                    f"the answer of {self._where} cannot be understood: {error}",
                    hint="is it an Interlock of this version?",
                ) from error
        refusal = _refusal(response, self._where)
        again = response.status_code in _MAY_PASS and self._request.repeatable
        return self._again(refusal, now, again=again)

    def failed(self, error: httpx.TransportError, now: float) -> Again:
        """After a request that got no answer. Raises Unavailable when it is not to be sent again."""
        if isinstance(error, _OURS):
            raise InvalidInput(f"{self._where} cannot be asked: {error}", hint="http://HOST:PORT, or a socket file")
        what = str(error) or type(error).__name__
        refusal = Unavailable(
            f"there is no answer from {self._where}: {what}", hint="is the daemon up? `interlock up` starts it"
        )
        return self._again(refusal, now, again=self._request.repeatable or isinstance(error, _UNSENT))

    def _again(self, refusal: InterlockError, now: float, *, again: bool) -> Again:
        self._tries += 1
        wait = self._patience.wait(self._tries - 1, self._rng)
        if not again or now + wait >= self._until:
            raise refusal
        if self._hear is not None:
            self._hear(Trouble(error=refusal, tries=self._tries, wait=wait))
        return Again(wait)


def timeout_of(request: Request[Any]) -> httpx.Timeout:
    """How long an answer may take: long polls have their wait on top."""
    return httpx.Timeout(30.0, connect=10.0, read=30.0 + request.wait)


def _refusal(response: httpx.Response, where: str) -> InterlockError:
    try:
        fault = _FAULT.decode(response.content).error
    except msgspec.MsgspecError:
        kind = Unavailable if response.status_code in _MAY_PASS else InterlockError
        return kind(f"{where} answers {response.status_code} {response.reason_phrase}", hint="is it an Interlock?")
    kind = _KINDS.get(fault.code, InterlockError)
    return kind(fault.message, hint=fault.hint, details={"code": fault.code, **fault.details})


FOR_EVER = Patience(seconds=math.inf)
