"""The served description says what the server does: schemathesis tries every operation, with what is allowed and what is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import trio

from interlock.api.desk import Desk
from interlock.api.gateway import Gateway
from interlock.api.listening import Listen, Listening
from interlock.domain.settings import Agent, Limits, Mode, Settings
from interlock.domain.task import Task
from interlock.service import Service
from interlock.store.clock import SystemClock
from interlock.store.sqlite import SqliteStore

HERE = Path(__file__).resolve().parent
EXAMPLES = 8
"""Of each operation, beside those at the bounds of every field, which are several hundred."""
SECONDS = 45
"""After so many nothing further is drawn; those at the bounds are tried in any case."""
CLAIMED = 4
OFFERED = 8
REFUSALS = {"401", "403", "404", "409", "413", "415", "422", "503"}


class Dispatching:
    """The dispatcher as the desk sees it; it never ends."""

    draining = False
    ready = True

    def drain(self) -> None:
        """Asked to end."""


async def _serve(data: Path, up: threading.Event, told: dict[str, Any]) -> None:
    store = SqliteStore(data, create=True)
    settings = Settings(
        mode=Mode.PULL, agents={"worker": Agent(name="worker", command="true")}, limits=Limits(total=1000)
    )
    service = Service(store, SystemClock(), settings, rng=Random(5))
    gateway = Gateway(Desk(service, Dispatching(), data=data, folder=data, version="1"), Listening(Listen(port=0)))
    await service.submit_all([Task(title=f"run {n}") for n in range(OFFERED)])
    await service.dispatch(owner="o1")
    for number in range(1, CLAIMED + 1):
        await service.claim(number, holder="s")
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.run)
        told |= {"url": gateway.addresses[0], "scope": nursery.cancel_scope, "trio": trio.lowlevel.current_trio_token()}
        up.set()
    store.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway in a thread of its own, with runs that are offered and claimed."""
    told: dict[str, Any] = {}
    up = threading.Event()
    thread = threading.Thread(target=trio.run, args=(_serve, tmp_path_factory.mktemp("api") / "data", up, told))
    thread.start()
    assert up.wait(60)
    yield told["url"]
    told["trio"].run_sync_soon(told["scope"].cancel)
    thread.join(60)


def test_schemathesis_finds_nothing(url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"),
            "--config-file",
            HERE / "schemathesis.toml",
            "--no-color",
            "run",
            f"{url}/openapi.json",
            "--phases=examples,coverage,fuzzing",
            # Its answer has no end.
            "--exclude-operation-id=stream_events",
            f"--max-examples={EXAMPLES}",
            f"--max-time={SECONDS}",
            "--generation-deterministic",
            "--continue-on-failure",
            "--request-timeout=30",
            "--warnings=off",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tried = re.search(r"Operations:\s+(\d+) selected / (\d+) total", done.stdout)
    assert tried is not None, done.stdout
    assert int(tried[1]) == int(tried[2]) - 1
    made = re.search(r"(\d+) generated", done.stdout)
    assert made is not None, done.stdout
    assert int(made[1]) > 500


@pytest.fixture(scope="module")
def operations(url: str) -> dict[str, dict[str, Any]]:
    """Every operation by its id."""
    document = httpx.get(f"{url}/openapi.json").json()
    return {
        one["operationId"]: {**one, "path": path} for path, under in document["paths"].items() for one in under.values()
    }


def test_every_operation_says_how_it_may_be_refused(url: str, operations: dict[str, dict[str, Any]]) -> None:
    document = httpx.get(f"{url}/openapi.json").json()
    assert len(operations) == sum(len(path) for path in document["paths"].values()) >= 30
    for name, one in operations.items():
        assert set(one["responses"]) >= REFUSALS, name
        assert one["summary"], name
        assert one["description"], name
        assert one["tags"], name
        if "requestBody" in one:
            assert one["requestBody"]["content"]["application/json"]["example"], name
    for status in sorted(REFUSALS):
        said = document["components"]["responses"][status]["content"]["application/json"]["schema"]
        assert said == {"$ref": "#/components/schemas/Envelope"}
    assert document["components"]["schemas"]["Envelope"]["required"] == ["error"]
    assert all(tag["description"] for tag in document["tags"])


def test_no_body_takes_fields_that_nobody_looks_at(url: str, operations: dict[str, dict[str, Any]]) -> None:
    schemas = httpx.get(f"{url}/openapi.json").json()["components"]["schemas"]
    for name, one in operations.items():
        text = json.dumps(one.get("requestBody", {}))
        for taken in re.findall(r'"#/components/schemas/(\w+)"', text):
            assert schemas[taken]["additionalProperties"] is False, name


def test_examples_are_taken(url: str, operations: dict[str, dict[str, Any]]) -> None:
    """Those of the description can be sent as they are: nothing in them is invalid, whatever they are about is not there."""
    for name, one in operations.items():
        if "requestBody" not in one:
            continue
        example = one["requestBody"]["content"]["application/json"]["example"]
        document = httpx.get(f"{url}/openapi.json").json()
        method = next(verb for verb, each in document["paths"][one["path"]].items() if each["operationId"] == name)
        path = one["path"].format(ref="99", workflow_type="review", name="review")
        if "wait" in example:
            example["wait"] = 0
        answer = httpx.request(method.upper(), url + path, json=example, timeout=40)
        assert answer.status_code in (200, 201, 404), (name, answer.text)
        if answer.status_code == 404:
            assert "#99" in answer.json()["error"]["message"], name
