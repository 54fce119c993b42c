"""Who may come in, by scopes made up: addresses, tokens and how far they reach, hosts, origins, proxies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.api.guard import OPEN, Guard, host_name, is_loopback, scope_for
from interlock.domain.token import Scope, Token

HOME = ("127.0.0.1", 7420)
AWAY = ("203.0.113.5", 7420)
TOKENS = {f"ilk_{scope}": Token(name=f"a {scope}", scope=scope, digest="", created_ms=0) for scope in Scope}
RUN = "/api/workflow-runs/7"


def bearer(scope: str) -> dict[str, str]:
    """The headers with a token of this scope."""
    return {"authorization": f"Bearer ilk_{scope}"}


async def ask(
    method: str = "GET",
    path: str = "/api/limits",
    *,
    server: tuple[str, int | None] | None = HOME,
    client: tuple[str, int] | None = ("127.0.0.1", 50000),
    headers: dict[str, str] | None = None,
    hosts: tuple[str, ...] = (),
    strict: bool = False,
) -> tuple[int, dict[str, Any]]:
    """Status, and the fault if there is one."""
    passed: list[Any] = []
    sent: list[Any] = []

    async def app(*_: Any) -> None:
        passed.append(True)

    async def send(message: Any) -> None:
        sent.append(message)

    async def token_of(secret: str) -> Token | None:
        return TOKENS.get(secret)

    given = {"host": "localhost:7420", **(headers or {})}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "server": server,
        "client": client,
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value != "-"],
    }
    guard = Guard(app, token_of=token_of, hosts=hosts, strict=strict)
    await guard(scope, None, send)
    if passed:
        assert not sent
        return 200, {}
    start, body = sent
    assert (b"content-type", b"application/json") in start["headers"]
    fault: dict[str, Any] = json.loads(body["body"])["error"]
    if start["status"] == 401:
        assert (b"www-authenticate", b"Bearer") in start["headers"]
    return start["status"], fault


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.0.0.2", "127.255.255.254", "::1", "::ffff:127.0.0.1", "::1%lo"],
)
async def test_loopback_is_this_machine(address: str) -> None:
    assert is_loopback(address)
    assert (await ask("POST", RUN + "/cancel", server=(address, 7420), client=(address, 1)))[0] == 200


@pytest.mark.parametrize(
    ("server", "client"),
    [
        ("192.168.1.2", "192.168.1.3"),
        ("192.168.1.2", "192.168.1.2"),
        ("192.168.1.2", "127.0.0.1"),
        ("127.0.0.1", "192.168.1.3"),
        ("::ffff:192.168.1.2", "::ffff:192.168.1.3"),
        ("fe80::1%eth0", "fe80::2%eth0"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "::1"),
        ("2001:db8::1", "::1"),
        ("localhost", "localhost"),
        ("128.0.0.1", "128.0.0.1"),
        ("", ""),
    ],
)
async def test_everything_else_is_elsewhere(server: str, client: str) -> None:
    for path in ("/api/limits", "/metrics", "/openapi.json", "/nope"):
        status, fault = await ask(path=path, server=(server, 7420), client=(client, 1))
        assert (status, fault["code"]) == (401, "unauthorized")
        assert "interlock token create" in fault["hint"]
    for path in sorted(OPEN):
        assert (await ask(path=path, server=(server, 7420), client=(client, 1)))[0] == 200


async def test_the_socket_file_is_this_machine() -> None:
    for server in (("/data/api.sock", None), None):
        assert (await ask("POST", RUN + "/cancel", server=server, client=None))[0] == 200
        assert (await ask(server=server, client=None, strict=True, headers={"host": "-"}))[0] == 200


async def test_through_a_proxy_is_elsewhere() -> None:
    for header in ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"):
        status, fault = await ask(headers={header: "127.0.0.1"})
        assert (status, fault["code"]) == (401, "unauthorized"), header
        outside = {header: "203.0.113.9", "host": "interlock.example.org", **bearer("read")}
        assert (await ask(headers=outside))[0] == 200, header


async def test_a_token_may_be_wanted_from_everybody() -> None:
    assert (await ask(strict=True))[0] == 401
    assert (await ask(strict=True, headers=bearer("read")))[0] == 200
    assert (await ask(path="/healthz", strict=True))[0] == 200


@pytest.mark.parametrize(
    "given",
    [
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic ilk_operator",
        "ilk_operator",
        "Bearer ilk_operator x",
        "Bearer ilk_operato",
        "Bearer ilk_operatorr",
        "Bearer ILK_OPERATOR",
        "Bearer \xff",
    ],
)
async def test_no_good_token_is_refused_wherever_it_comes_from(given: str) -> None:
    for server in (HOME, AWAY):
        status, fault = await ask(server=server, headers={"authorization": given})
        assert (status, fault["code"]) == (401, "unauthorized")
        assert "ilk_" not in json.dumps(fault)


READS = [("GET", "/api/limits"), ("GET", "/metrics"), ("GET", "/openapi.json"), ("HEAD", RUN), ("GET", RUN + "/logs")]
REPORTS = [
    ("POST", "/api/workflow-runs/claim-next"),
    *(
        ("POST", f"{RUN}/{what}")
        for what in ("claim", "start", "heartbeat", "complete", "fail", "release", "defer", "block", "log", "usage")
    ),
]
COMMANDS = [
    ("POST", "/api/workflow-runs"),
    ("POST", RUN + "/cancel"),
    ("POST", RUN + "/answer"),
    ("PUT", "/api/routing/review"),
    ("DELETE", "/api/routing/claim"),
    ("PUT", "/api/templates/claim"),
    ("POST", "/api/dispatcher/pause"),
    ("POST", "/api/dispatcher/drain"),
    ("POST", "/api/elsewhere/claim"),
    ("PUT", RUN + "/claim"),
    ("POST", RUN + "/claim/"),
    ("OPTIONS", RUN),
    ("NEW", "/api/limits"),
]


@pytest.mark.parametrize("server", [HOME, AWAY])
async def test_how_far_a_token_reaches(server: tuple[str, int]) -> None:
    """A token that is sent counts at home as well: an agent on this machine can be held to its scope."""
    for asked, needs in ((READS, Scope.READ), (REPORTS, Scope.AGENT), (COMMANDS, Scope.OPERATOR)):
        for method, path in asked:
            for scope in Scope:
                status, fault = await ask(method, path, server=server, headers=bearer(scope))
                if list(Scope).index(scope) >= list(Scope).index(needs):
                    assert status == 200, (scope, method, path)
                else:
                    assert (status, fault["code"]) == (403, "forbidden"), (scope, method, path)
                    assert f"--scope {needs}" in fault["hint"]


def test_an_unknown_path_is_for_operators() -> None:
    assert scope_for("POST", "/api/whatever/new") is Scope.OPERATOR


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:7420", "LOCALHOST", "127.0.0.1:7420", "127.0.0.2", "[::1]:7420", "[::ffff:127.0.0.1]"],
)
async def test_names_that_this_machine_goes_by(host: str) -> None:
    assert (await ask(headers={"host": host}))[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7420",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example@localhost",
        "localhost:x",
        "localhost:",
        "[::1",
        "[::1]x",
        "::1",
        "0.0.0.0",
        "192.168.1.2",
        "",
        "-",
    ],
)
async def test_another_name_that_points_here_is_refused(host: str) -> None:
    """DNS rebinding: a page of evil.example has its own name resolve to 127.0.0.1, and asks its "own" server."""
    for method in ("GET", "POST"):
        status, fault = await ask(method, headers={"host": host})
        assert (status, fault["code"]) == (403, "forbidden")
        assert "server.hosts" in fault["hint"]
    assert (await ask(path="/healthz", headers={"host": host}))[0] == 403


async def test_a_name_that_the_configuration_knows() -> None:
    assert (await ask(headers={"host": "box.local:7420"}, hosts=("Box.local",)))[0] == 200
    # Elsewhere the token is what counts: no page has it.
    assert (await ask(server=AWAY, headers={"host": "box.local", **bearer("read")}))[0] == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://localhost:3000",
        "http://localhost",
        "http://127.0.0.1:7420",
        "http://[",
        "http://",
        "localhost:7420",
        "file://localhost:7420",
        "",
    ],
)
async def test_pages_of_others_are_refused(origin: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        for server in (HOME, AWAY, ("/data/api.sock", None)):
            headers = {"origin": origin, **bearer("operator")}
            status, fault = await ask(method, server=server, headers=headers)
            assert (status, fault["code"]) == (403, "forbidden"), (method, server)
    assert (await ask("POST", server=None, headers={"host": "-", "origin": origin}))[0] == 403


async def test_a_page_of_ours_may_ask() -> None:
    own = {"origin": "http://localhost:7420", "sec-fetch-site": "same-origin", "content-type": "application/json"}
    assert (await ask("POST", RUN + "/cancel", headers=own))[0] == 200


async def test_what_a_browser_says_of_where_it_comes_from() -> None:
    for site in ("cross-site", "same-site", "new-word"):
        for method in ("GET", "POST"):
            status, fault = await ask(method, headers={"sec-fetch-site": site, "sec-fetch-mode": "no-cors"})
            assert (status, fault["code"]) == (403, "forbidden")
        followed = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
        assert (await ask("GET", "/docs", headers=followed))[0] == 200
        assert (await ask("POST", headers=followed))[0] == 403
    assert (await ask("POST", headers={"sec-fetch-site": "none"}))[0] == 200


async def test_a_body_without_a_type_is_not_taken_from_a_browser() -> None:
    """A page can send one to anybody without being asked whether it may."""
    path, size = RUN + "/cancel", {"content-length": "20"}
    assert (await ask("POST", path, headers=size))[0] == 200
    assert (await ask("POST", path, headers={"sec-fetch-site": "same-origin"}))[0] == 200
    for sign in ({"origin": "http://localhost:7420"}, {"sec-fetch-site": "none"}, {"sec-fetch-dest": "empty"}):
        for body in (size, {"transfer-encoding": "chunked"}):
            status, fault = await ask("POST", path, headers={**body, **sign})
            assert (status, fault["code"]) == (415, "invalid_input")
    assert (await ask("POST", path, headers={**size, "content-type": "text/plain"}))[0] == 415


async def test_sizes_come_before_everything() -> None:
    status, fault = await ask("POST", server=AWAY, headers={"content-length": str(4 * 1024 * 1024 + 1)})
    assert (status, fault["code"]) == (413, "too_large")


def test_names_within_hosts() -> None:
    assert [host_name(host) for host in ("a:1", "a", "[::1]:2", "[::1]", "a:b", "a:1:2")] == [
        "a",
        "a",
        "::1",
        "::1",
        "a:b",
        "a:1",
    ]
