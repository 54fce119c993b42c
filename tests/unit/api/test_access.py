"""Tokens over real sockets: another address of this machine, loopback that wants tokens, the socket file; and what is logged."""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from interlock.api.listening import Listen
from interlock.domain.token import Scope

RUNS = "/api/workflow-runs"


def _own_address(family: socket.AddressFamily, towards: str) -> str | None:
    """An address of this machine that is not loopback, if it has any. Nothing is sent."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((towards, 9))
            address: str = asked.getsockname()[0]
    except OSError:
        return None
    return address


OUTSIDE = {
    "IPv4": _own_address(socket.AF_INET, "192.0.2.77"),
    "IPv6": _own_address(socket.AF_INET6, "2001:db8::77"),
}


class TestFromOutside:
    """A gateway on an address that other machines reach."""

    @pytest.fixture(params=list(OUTSIDE))
    def address(self, request: pytest.FixtureRequest) -> str:
        """One that is not loopback."""
        found = OUTSIDE[request.param]
        if found is None or found.startswith(("127.", "fe80:")) or found == "::1":
            pytest.skip(f"this machine has no {request.param} address besides loopback")
        return found

    @pytest.fixture
    def listen(self, address: str, tmp_path: Path) -> Listen:
        """On every address of its kind."""
        return Listen(host="::" if ":" in address else "0.0.0.0", port=0, folder=tmp_path / "data")

    @pytest.fixture
    def outside(self, site: Any, address: str) -> str:
        """Where it is for others."""
        port = site.gateway.addresses[0].rpartition(":")[2]
        return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"

    async def test_nothing_without_a_token(self, site: Any, outside: str) -> None:
        async with httpx.AsyncClient(base_url=outside) as client:
            for path in (RUNS, "/metrics", "/openapi.json", "/nope", f"{RUNS}/1/logs"):
                answer = await client.get(path)
                assert answer.status_code == 401, path
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["error"]["code"] == "unauthorized"
            answer = await client.post(RUNS, json={"title": "from outside"})
            assert answer.status_code == 401
            assert (await client.get("/healthz")).status_code == 200
        assert (await site.service.find(_everything())) == []

    async def test_as_far_as_the_token_reaches(self, site: Any, outside: str) -> None:
        secrets = {scope: await site.service.create_token(str(scope), scope) for scope in Scope}
        clients = {
            scope: httpx.AsyncClient(base_url=outside, headers={"Authorization": f"Bearer {secret}"})
            for scope, secret in secrets.items()
        }
        task, claim = {"title": "from outside"}, {"agent_session": "s"}
        assert (await clients[Scope.READ].post(RUNS, json=task)).status_code == 403
        assert (await clients[Scope.AGENT].post(RUNS, json=task)).status_code == 403
        assert (await clients[Scope.OPERATOR].post(RUNS, json=task)).status_code == 201
        await site.service.dispatch(owner="o1")
        assert (await clients[Scope.READ].post(f"{RUNS}/1/claim", json=claim)).status_code == 403
        assert (await clients[Scope.AGENT].post(f"{RUNS}/1/claim", json=claim)).status_code == 200
        assert (await clients[Scope.READ].get(f"{RUNS}/1")).json()["run"]["status"] == "claimed"
        assert (await clients[Scope.READ].get("/openapi.json")).status_code == 200
        await site.service.revoke_token("read")
        assert (await clients[Scope.READ].get(f"{RUNS}/1")).status_code == 401, "from the next request on"
        for client in clients.values():
            await client.aclose()

    async def test_loopback_of_the_same_gateway_is_open(self, site: Any, outside: str) -> None:
        port = outside.rpartition(":")[2]
        inside = "[::1]" if "[" in outside else "127.0.0.1"
        async with httpx.AsyncClient(base_url=f"http://{inside}:{port}") as client:
            assert (await client.post(RUNS, json={"title": "from here"})).status_code == 201
            # Its own address by the name of loopback, and loopback by another's.
            lured = await client.get(RUNS, headers={"Host": f"evil.example:{port}"})
            assert lured.status_code == 403
        async with httpx.AsyncClient(base_url=outside) as client:
            assert (await client.get(RUNS, headers={"Host": f"localhost:{port}"})).status_code == 401


def _everything() -> Any:
    from interlock.service.reads import Filter

    return Filter(limit=10)


class TestStrict:
    """A gateway that wants tokens on loopback as well."""

    @pytest.fixture
    def listen(self, tmp_path: Path) -> Listen:
        """On loopback and the socket file."""
        return Listen(port=0, folder=tmp_path / "data", strict=True)

    async def test_loopback_wants_a_token_and_the_socket_file_none(self, site: Any) -> None:
        assert (await site.client.get(RUNS)).status_code == 401
        secret = await site.service.create_token("me", Scope.READ)
        assert (await site.client.get(RUNS, headers={"Authorization": f"Bearer {secret}"})).status_code == 200
        transport = httpx.AsyncHTTPTransport(uds=str(site.data / "api.sock"))
        async with httpx.AsyncClient(transport=transport, base_url="http://interlock") as client:
            assert (await client.post(RUNS, json={"title": "by file"})).status_code == 201


async def test_the_socket_file_is_for_its_owner(site: Any) -> None:
    path = site.data / "api.sock"
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_uid == os.getuid()
    assert stat.S_IMODE(site.data.stat().st_mode) & 0o077 == 0, "and so is its folder"


@pytest.fixture
def everything_logged() -> Iterator[list[str]]:
    """What any logger of this process has to say, down to the last detail."""
    lines: list[str] = []

    class Kept(logging.Handler):
        """Keeps it."""

        def emit(self, record: logging.LogRecord) -> None:
            """One record, with its traceback."""
            lines.append(logging.Formatter().format(record))

    handler = Kept(0)
    # The client of these tests has a log of its own.
    handler.addFilter(lambda record: not record.name.startswith(("httpcore", "httpx")))
    root = logging.getLogger()
    names = ["", "interlock", "interlock.http", "uvicorn", "uvicorn.error", "uvicorn.access", "litestar", "asyncio"]
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(1)
    root.addHandler(handler)
    yield lines
    root.removeHandler(handler)
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


async def test_tokens_and_prompts_are_in_no_log(
    everything_logged: list[str], site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = await site.service.create_token("me", Scope.OPERATOR)
    bearer = {"Authorization": f"Bearer {secret}"}
    words = ["the-content", "the-answer", "the-output", "the-result", "the-question", "the-param"]
    content, answer, output, result, question, parameter = words
    client = site.client
    await client.post(RUNS, json={"title": "t", "content": content}, headers=bearer)
    await client.post(RUNS, json={"title": "t", "content": content, "metadata": [answer]}, headers=bearer)
    await client.post(RUNS, json={"title": "t", "template": "none", "params": {"x": parameter}}, headers=bearer)
    await client.post(RUNS, content=f'{{"title": "{content}', headers=bearer)
    await site.service.dispatch(owner="o1")
    claim = await site.post("/claim-next", {"agent_session": "s"}, headers=bearer)
    assert content in claim["prompt"]
    under = {"agent_session": "s", "fence": claim["fence"]}
    await site.post("/1/log", {**under, "offset": 0, "text": output}, headers=bearer)
    await site.post("/1/block", {**under, "question": question}, headers=bearer)
    await site.post("/1/answer", {"text": answer}, headers=bearer)
    await site.refused("/1/complete", {**under, "result": result}, status=409, code="stale_claim", headers=bearer)
    wrong = f"{secret[:-1]}~"
    assert (await client.get(RUNS, headers={"Authorization": f"Bearer {wrong}"})).status_code == 401

    async def broken(*_: Any) -> None:
        raise ValueError("it fell over")

    monkeypatch.setattr(site.gateway.desk, "answer", broken)
    assert (await client.post(f"{RUNS}/1/answer", json={"text": answer}, headers=bearer)).status_code == 500
    said = "\n".join(everything_logged)
    assert "it fell over" in said, "what goes wrong is there"
    assert f"POST {RUNS}/1/answer" in said
    assert [word for word in [secret, wrong, secret[:12], *words] if word in said] == []
