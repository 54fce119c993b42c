"""A gateway over a real socket, beside a service of its own; requests go by the wire, as an agent's do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import trio

from interlock.api.desk import Desk
from interlock.api.gateway import Gateway
from interlock.api.listening import Listen, Listening
from interlock.domain.run import Run
from interlock.domain.settings import Agent, Limits, Mode, Settings
from interlock.domain.task import Task
from interlock.service import Service
from interlock.store.clock import SystemClock
from interlock.store.sqlite import SqliteStore

RUNS = "/api/workflow-runs"


class Dispatching:
    """The dispatcher as the desk sees it."""

    draining = False
    ready = True

    def drain(self) -> None:
        """Asked to end."""
        self.draining = True


class Site:
    """A gateway that is up, its service, and a client of it."""

    def __init__(self, gateway: Gateway, service: Service, client: httpx.AsyncClient, data: Path) -> None:
        self.gateway = gateway
        self.service = service
        self.client = client
        self.data = data

    async def offer(self, *titles: str, **fields: Any) -> list[Run]:
        """Runs that are offered."""
        done = await self.service.submit_all([Task(title=title, **fields) for title in titles])
        await self.service.dispatch(owner="o1")
        return [await self.service.get(made.run) for made in done]

    async def post(self, path: str, body: Any = None, **more: Any) -> Any:
        """The answer to a POST that is expected to succeed."""
        answer = await self.client.post(RUNS + path, json=body, **more)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    async def refused(self, path: str, body: Any = None, *, status: int, code: str, **more: Any) -> dict[str, Any]:
        """The fault of a POST that is expected to be refused."""
        answer = await self.client.post(RUNS + path, json=body, **more)
        assert answer.status_code == status, answer.text
        fault: dict[str, Any] = answer.json()["error"]
        assert fault["code"] == code
        assert fault["message"]
        return fault

    async def get(self, path: str, **params: Any) -> Any:
        """The answer to a GET that is expected to succeed."""
        answer = await self.client.get(path, params=params)
        assert answer.is_success, answer.text
        return answer.json()

    async def claimed(self, title: str = "one", session: str = "s1", **fields: Any) -> tuple[Run, dict[str, Any]]:
        """A run that is claimed, and under what."""
        (run,) = await self.offer(title, **fields)
        claim = await self.post(f"/{run.number}/claim", {"agent_session": session})
        return run, {"agent_session": session, "fence": claim["fence"]}


@pytest.fixture
def settings() -> Settings:
    """Pull mode, with room."""
    return Settings(
        mode=Mode.PULL,
        agents={"worker": Agent(name="worker", command="true")},
        limits=Limits(total=100),
    )


@pytest.fixture
def listen(tmp_path: Path) -> Listen:
    """On loopback, and on the socket file."""
    return Listen(port=0, folder=tmp_path / "data")


@pytest.fixture
async def site(tmp_path: Path, settings: Settings, listen: Listen) -> AsyncIterator[Site]:
    """A gateway on a port of its own and a socket file."""
    data = tmp_path / "data"
    store = SqliteStore(data, create=True)
    service = Service(store, SystemClock(), settings, rng=Random(5))
    desk = Desk(service, Dispatching(), data=data, folder=tmp_path, version="1.2.3")
    gateway = Gateway(desk, Listening(listen))
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.run)
        async with httpx.AsyncClient(base_url=gateway.addresses[0], timeout=20) as client:
            yield Site(gateway, service, client, data)
        nursery.cancel_scope.cancel()
    store.close()
