"""Who may come in: sizes, hosts, origins and tokens, before anything else sees a request.

Loopback and the socket file are open to whoever is on this machine (the file: whoever may read the data folder), unless the
configuration wants tokens there too. What browsers could be made to send there from somebody else's page is refused: a Host
that is not this machine's (DNS rebinding), an Origin or a Sec-Fetch-Site that is another's, a body that a form could have
sent. On every other address, and from behind a proxy, a token is wanted. See docs/security.md.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from interlock.api.faults import BODY_LIMIT, Malformed, NotJson, encoded, internal, too_large
from interlock.domain.errors import Forbidden, InterlockError, Unauthorized
from interlock.domain.token import Scope, Token
from interlock.sources.faults import shown

ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]
OPEN = frozenset({"/healthz", "/readyz", "/docs"})
"""Paths that say nothing of runs, and want no token."""
_LOCAL_NAMES = frozenset({"localhost", "ip6-localhost"})
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
_SAFE = frozenset({"GET", "HEAD"})
_AGENTS = frozenset(
    {"claim", "heartbeat", "start", "complete", "fail", "release", "defer", "block", "log", "usage", "claim-next"}
)
_PROXIED = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via")
_ONCE = frozenset({b"host", b"authorization", b"content-type", b"content-length", b"origin", b"idempotency-key"})
_ELSEWHERE = "requests of other sites' pages are refused"


class Guard:
    """ASGI: passes on what may come in. ``token_of``: the token of a secret. ``hosts``: further names that this server goes by.

    ``strict``: a token is wanted from loopback as well.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token_of: Callable[[str], Awaitable[Token | None]],
        hosts: Iterable[str] = (),
        strict: bool = False,
    ) -> None:
        self._app = app
        self._token_of = token_of
        self._hosts = frozenset(host.lower() for host in hosts)
        self._strict = strict

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One connection's request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if b"expect" in headers:
            receive, send = _hang_up_unread(receive, send)
        try:
            await self._check(scope, headers)
        except InterlockError as refusal:
            await _refuse(send, refusal)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered in the envelope
            await _refuse(send, internal(scope["method"], scope["path"], error))
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
            receive, send = _head_only(receive, send)
        await self._app(scope, receive, send)

    async def _check(self, scope: Any, headers: dict[bytes, str]) -> None:
        if len(headers) < len(scope["headers"]):
            _refuse_doubled(scope["headers"])
        method: str = scope["method"]
        length = headers.get(b"content-length", "")
        if length.isdigit() and int(length) > BODY_LIMIT:
            raise too_large()
        at_home = is_local(scope) and not any(name in headers for name in _PROXIED)
        self._check_browser(scope, headers, at_home=at_home)
        if scope["path"] not in OPEN:
            await self._check_token(scope, headers.get(b"authorization"), at_home=at_home)
        if method not in _BODILESS:
            _check_type(headers)

    async def _check_token(self, scope: Any, given: str | None, *, at_home: bool) -> None:
        if given is None:
            if not at_home or (self._strict and not is_file(scope)):
                where = "here" if at_home else "from another machine, or through a proxy"
                raise Unauthorized(
                    f"a token is needed {where}",
                    hint="`interlock token create NAME --scope agent`, then send Authorization: Bearer TOKEN",
                )
            return
        kind, _, secret = given.partition(" ")
        token = await self._token_of(secret.strip()) if kind.lower() == "bearer" and secret.strip() else None
        if token is None:
            raise Unauthorized("this token is not known", hint="`interlock token list` shows those that are")
        wanted = scope_for(scope["method"], scope["path"])
        if not token.scope.reaches(wanted):
            raise Forbidden(
                f"the token '{token.name}' is for {token.scope}, and this needs {wanted}",
                hint=f"`interlock token create NAME --scope {wanted}`",
            )

    def _check_browser(self, scope: Any, headers: dict[bytes, str], *, at_home: bool) -> None:
        host = headers.get(b"host", "")
        if at_home and not is_file(scope) and not self._is_ours(host_name(host)):
            said = f"does not go by the name {shown(host)}" if host else "is not told by which name it is called"
            raise Forbidden(
                f"this server {said}", hint="use localhost, or list the name under server.hosts in interlock.yaml"
            )
        origin = headers.get(b"origin")
        if origin is not None and _place_of(origin) != host.lower():
            raise Forbidden(_ELSEWHERE, hint="send no Origin header, unless it is that of this server")
        if headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin"):
            # A link that somebody follows is no request of the page that it stood on.
            if scope["method"] in _SAFE and headers.get(b"sec-fetch-mode") == "navigate":
                return
            raise Forbidden(_ELSEWHERE, hint="open it in a window of its own")

    def _is_ours(self, name: str) -> bool:
        return name.lower() in _LOCAL_NAMES or name.lower() in self._hosts or is_loopback(name)


def is_file(scope: Any) -> bool:
    """Whether a request came by the socket file."""
    server = scope["server"]
    return server is None or server[1] is None


def is_local(scope: Any) -> bool:
    """Whether a request came to the socket file or a loopback address, from this machine."""
    if is_file(scope):
        return True
    client = scope["client"]
    return is_loopback(scope["server"][0]) and (client is None or is_loopback(client[0]))


def is_loopback(address: str) -> bool:
    """Whether it is an address of loopback, IPv4 within IPv6 included. A name is none."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        name, closed, port = host[1:].partition("]")
        return name if closed and (not port or port[0] == ":") else host
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _place_of(origin: str) -> str | None:
    """Host and port of an Origin; None for one that has none."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc.lower() or None if parts.scheme in ("http", "https") else None


def _check_type(headers: dict[bytes, str]) -> None:
    """Bodies are JSON. What a browser would send without asking first is said to be something else, or nothing at all."""
    coding = headers.get(b"content-encoding", "identity").lower()
    if coding != "identity":
        raise NotJson(f"a body in {shown(coding)} is not taken", hint="send it without Content-Encoding")
    given = headers.get(b"content-type")
    if given is None:
        has_body = headers.get(b"content-length", "0") != "0" or b"transfer-encoding" in headers
        by_browser = b"origin" in headers or any(name.startswith(b"sec-fetch-") for name in headers)
        if has_body and by_browser:
            raise NotJson(
                "a body without a type is not taken from a browser", hint="say Content-Type: application/json"
            )
        return
    kind, _, rest = given.lower().partition(";")
    kind = kind.strip()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise NotJson(f"JSON is taken here, and this says {shown(given)}", hint="send Content-Type: application/json")
    charset = rest.partition("charset=")[2].strip().strip('"')
    if charset and charset not in ("utf-8", "utf8"):
        raise NotJson(f"JSON is UTF-8, and this says {shown(given)}", hint="send Content-Type: application/json")


def _refuse_doubled(headers: Iterable[tuple[bytes, bytes]]) -> None:
    seen = set()
    for name, _ in headers:
        if name in seen and name in _ONCE:
            raise Malformed(f"the header {name.decode('latin-1')} is there twice", hint="send it once")
        seen.add(name)


def scope_for(method: str, path: str) -> Scope:
    """How far a token has to reach for a request."""
    if method in ("GET", "HEAD"):
        return Scope.READ
    if method == "POST" and path.startswith("/api/workflow-runs/") and path.rpartition("/")[2] in _AGENTS:
        return Scope.AGENT
    return Scope.OPERATOR


async def _refuse(send: Any, refusal: InterlockError) -> None:
    body = encoded(refusal)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refusal.http_status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _hang_up_unread(receive: Any, send: Any) -> tuple[Any, Any]:
    """For a client that waits to be asked for the body: when it is not asked, nobody knows whether the body comes, so that
    nothing can follow on the connection.
    """
    asked = False

    async def ask() -> Any:
        nonlocal asked
        asked = True
        return await receive()

    async def answer(message: Any) -> None:
        if message["type"] == "http.response.start" and not asked:
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return ask, answer


def _head_only(receive: Any, send: Any) -> tuple[Any, Any]:
    """The answer to a GET as one to a HEAD: over when it begins, also when the other would never end."""
    over = False

    async def gone() -> Any:
        return {"type": "http.disconnect"} if over else await receive()

    async def answer(message: Any) -> None:
        nonlocal over
        if message["type"] == "http.response.start":
            await send(message)
            over = True
            await send({"type": "http.response.body", "body": b""})

    return gone, answer
