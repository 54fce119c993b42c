"""Who may come in: sizes, hosts, origins and tokens, before anything else sees a request.

Loopback and the socket file are open to whoever is on this machine (the file: whoever may read the data folder). What
browsers could be made to send there from somebody else's page is refused: a Host that is not this machine's (DNS
rebinding), an Origin or a Sec-Fetch-Site that is another's. On every other address a token is wanted. See docs/security.md.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from interlock.api.faults import encoded
from interlock.domain.errors import Forbidden, InterlockError, Unauthorized
from interlock.domain.token import Scope, Token

ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]
_OPEN = frozenset({"/healthz", "/readyz"})
_LOCAL_NAMES = frozenset({"localhost", "ip6-localhost"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_AGENTS = frozenset(
    {"claim", "heartbeat", "start", "complete", "fail", "release", "defer", "block", "log", "usage", "claim-next"}
)


class Guard:
    """ASGI: passes on what may come in. ``token_of``: the token of a secret. ``hosts``: further names that this server goes by."""

    def __init__(
        self, app: ASGIApp, *, token_of: Callable[[str], Awaitable[Token | None]], hosts: Iterable[str] = ()
    ) -> None:
        self._app = app
        self._token_of = token_of
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One connection's request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._check(scope)
        except InterlockError as refusal:
            await _refuse(send, refusal)
            return
        await self._app(scope, receive, send)

    async def _check(self, scope: Any) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        at_home = is_local(scope)
        self._check_browser(scope, headers, at_home=at_home)
        if scope["path"] in _OPEN:
            return
        given = headers.get(b"authorization")
        if given is None:
            if not at_home:
                raise Unauthorized(
                    "a token is needed from another machine",
                    hint="`interlock token create`, then send Authorization: Bearer TOKEN",
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
        name = _host_name(host)
        if at_home and scope["server"] is not None and scope["server"][1] is not None and not self._is_ours(name):
            raise Forbidden(f"this server does not go by the name '{name}'", hint="use localhost, or server.hosts")
        origin = headers.get(b"origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise Forbidden("requests of other sites' pages are refused", hint="send none with an Origin header")
        if scope["method"] not in _SAFE and headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Forbidden("requests of other sites' pages are refused")

    def _is_ours(self, name: str) -> bool:
        if name.lower() in _LOCAL_NAMES or name.lower() in self._hosts:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


def is_local(scope: Any) -> bool:
    """Whether a request came to the socket file or a loopback address, from this machine."""
    server, client = scope["server"], scope["client"]
    if server is None or server[1] is None:
        return True
    return _is_loopback(server[0]) and (client is None or _is_loopback(client[0]))


def _is_loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and ":" in host else host


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
