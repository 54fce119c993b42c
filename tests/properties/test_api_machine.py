"""Random calls of the HTTP API against a small model: every answer, every refusal, and the state that each leaves behind."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

import interlock
from interlock.api.desk import Desk
from interlock.api.gateway import Gateway
from interlock.api.listening import Listen, Listening
from interlock.domain.settings import Limits, Mode, Settings

RUNS = "/api/workflow-runs"
SESSIONS = ("a", "b", "c")
ENDINGS = ("complete", "fail", "release", "defer", "block")
AFTER = {"complete": "completed", "fail": "failed", "defer": "queued", "block": "blocked"}


class Dispatching:
    """Stands in for the daemon's own dispatcher."""

    draining = False
    ready = True

    def drain(self) -> None:
        """Not asked."""


class Server(threading.Thread):
    """A dispatcher in pull mode with its gateway, in a thread."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._end = trio.Event()
        self.up = threading.Event()
        self.port = 0

    def run(self) -> None:
        trio.run(self._main)

    async def _main(self) -> None:
        config = Settings(mode=Mode.PULL, limits=Limits(total=1_000_000))
        self._token = trio.lowlevel.current_trio_token()
        async with interlock.open(self._folder / "data", config) as il, trio.open_nursery() as nursery:
            desk = Desk(il.service, Dispatching(), data=il.data, folder=self._folder, version="0")
            gateway = Gateway(desk, Listening(Listen(port=0)))
            await nursery.start(gateway.run)
            self.port = int(gateway.addresses[0].rpartition(":")[2])
            self.up.set()
            await self._end.wait()
            nursery.cancel_scope.cancel()

    def end(self) -> None:
        """Have it end."""
        self._token.run_sync_soon(self._end.set)
        self.join()


class Model(msgspec.Struct):
    """What a run should be. ``claims``: (session, how it ended) by fence, None while it is live."""

    number: int
    state: str = "dispatched"
    claims: dict[int, tuple[str, str | None]] = {}
    releases: int = 0
    stopping: bool = False

    @property
    def live(self) -> bool:
        """Whether an agent has it."""
        return self.state in ("claimed", "running")


class Api(RuleBasedStateMachine):
    """One walk. The server is the same for all; each walk looks at runs of its own."""

    server: ClassVar[Server]
    link: ClassVar[http.client.HTTPConnection]
    runs: ClassVar[Bundle[Model]] = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.models: list[Model] = []

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and answer."""
        content = None if body is None else json.dumps(body)
        self.link.request(method, RUNS + path, content, {"Content-Type": "application/json"})
        answer = self.link.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None

    def refused(self, code: str, path: str, body: Any) -> None:
        """A POST that changes nothing."""
        status, answer = self.ask("POST", path, body)
        assert (status, answer["error"]["code"]) == (409, code), (path, body, answer)

    @rule(target=runs)
    def submit(self) -> Model:
        status, answer = self.ask("POST", "", {"title": "t"})
        assert status == 201
        model = Model(number=answer["runs"][0]["number"])
        self.models.append(model)
        return model

    @rule(model=runs, session=st.sampled_from(SESSIONS))
    def claim(self, model: Model, session: str) -> None:
        path, body = f"/{model.number}/claim", {"agent_session": session}
        if model.live:
            holder, _ = model.claims[max(model.claims)]
            if holder == session:
                status, answer = self.ask("POST", path, body)
                assert (status, answer["fence"]) == (200, max(model.claims))
            else:
                self.refused("already_claimed", path, body)
        elif model.state == "dispatched":
            status, answer = self.ask("POST", path, body)
            assert status == 200, answer
            assert answer["fence"] == len(model.claims) + 1, "fences are given out one after the other"
            model.claims[answer["fence"]] = (session, None)
            model.state = "claimed"
        else:
            self.refused("illegal_transition", path, body)

    @rule(model=runs, data=st.data(), call=st.sampled_from(("start", "heartbeat", "usage")))
    def work(self, model: Model, data: st.DataObject, call: str) -> None:
        session, fence, live = self._a_claim(model, data)
        path, body = f"/{model.number}/{call}", {"agent_session": session, "fence": fence}
        if not live:
            self.refused("stale_claim", path, body)
            return
        status, answer = self.ask("POST", path, body)
        assert status in (200, 204)
        if call != "usage":
            model.state = "running"
        if call == "heartbeat":
            assert answer["continue"] is not model.stopping

    @rule(model=runs, data=st.data(), call=st.sampled_from(ENDINGS))
    def end(self, model: Model, data: st.DataObject, call: str) -> None:
        session, fence, live = self._a_claim(model, data)
        more = {"fail": {"message": "no", "permanent": True}, "block": {"question": "?"}}.get(call, {})
        path, body = f"/{model.number}/{call}", {"agent_session": session, "fence": fence, **more}
        held = model.claims.get(fence)
        if not live:
            if held is not None and held == (session, call):
                assert self.ask("POST", path, body)[0] == 200, "the same ending again is answered"
            else:
                self.refused("stale_claim", path, body)
            return
        status, answer = self.ask("POST", path, body)
        assert status == 200, answer
        model.claims[fence] = (session, call)
        if model.stopping:
            model.state, model.stopping = "cancelled", False
        elif call == "release":
            # The second one goes to the queue, and is offered again from there.
            model.releases += 1
            model.state = "dispatched"
        else:
            model.state = AFTER[call]

    @rule(model=runs)
    def answer(self, model: Model) -> None:
        path, body = f"/{model.number}/answer", {"text": "so"}
        if model.state == "blocked":
            assert self.ask("POST", path, body)[0] == 200
            model.state = "dispatched"
        else:
            status, answer = self.ask("POST", path, body)
            assert status == 409, answer

    @rule(model=runs)
    def cancel(self, model: Model) -> None:
        path = f"/{model.number}/cancel"
        if model.state in ("completed", "failed"):
            self.refused("conflict", path, {})
            return
        status, answer = self.ask("POST", path, {})
        assert status == 200, answer
        if model.live:
            model.stopping = True
        else:
            model.state = "cancelled"

    @rule(model=consumes(runs))
    def forget(self, model: Model) -> None:
        """Other runs get their turn."""

    def _a_claim(self, model: Model, data: st.DataObject) -> tuple[str, int, bool]:
        """Session and fence of a claim that is, was or never was, and whether it is the live one."""
        fences = sorted(model.claims)
        fence = data.draw(st.sampled_from([*fences, *fences[-1:], len(fences) + 1]))
        own = model.claims[fence][0] if fence in model.claims else "a"
        session = data.draw(st.sampled_from([own, own, own, "somebody"]))
        live = model.live and fence == len(fences) and session == own and fence in model.claims
        return session, fence, live

    @invariant()
    def the_server_is_where_the_model_is(self) -> None:
        for model in self.models[-5:]:
            until = time.monotonic() + 20
            while True:
                _, story = self.ask("GET", f"/{model.number}")
                run = story["run"]
                # What is ready is offered a moment later.
                if run["status"] == model.state or run["status"] != "queued" or time.monotonic() > until:
                    break
            assert (run["status"], run["stopping"]) == (model.state, model.stopping)
            assert run["fence"] == len(model.claims)
            assert len(story["attempts"]) == len(model.claims)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    made.start()
    assert made.up.wait(30)
    yield made
    made.end()


def test_random_calls(server: Server) -> None:
    Api.server = server
    Api.link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            Api,
            settings=settings(
                max_examples=60,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        Api.link.close()
