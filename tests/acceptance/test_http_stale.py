"""Offers that nobody takes, claims that fall silent and work that takes too long, in real time over HTTP."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest

CONFIG = """\
dispatch:
  mode: pull
  claimTimeout: 200ms
  leases: {remote: 1s, grace: 100ms}
  retry: {baseDelayMs: 10, maxDelayMs: 10}
server:
  listen: 127.0.0.1:0
"""


class Desk:
    """A daemon, and what an agent would ask of it."""

    def __init__(self, yard: Any) -> None:
        yard.write("interlock.yaml", CONFIG)
        self.yard = yard
        log = yard.folder / "up.log"
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "interlock", "up"],
                cwd=yard.folder,
                env=yard.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        found = yard.until(lambda: re.search(r"http://127\.0\.0\.1:\d+", log.read_text()), "it serves")
        self.url = found[0] + "/api/workflow-runs"

    def ask(self, path: str, body: Any = None) -> Any:
        """The answer, or the fault."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as refusal:
            return json.loads(refusal.read())["error"]

    def run(self, number: int) -> Any:
        """As it is."""
        return self.ask(f"/{number}")["run"]

    def events(self, number: int) -> list[str]:
        """What happened to it."""
        return [event["event"] for event in self.ask(f"/{number}/events")["events"]]


@pytest.fixture
def desk(yard: Any) -> Any:
    made = Desk(yard)
    yield made
    made.process.kill()
    made.process.wait()


def test_an_offer_that_nobody_takes_is_made_again_and_then_withdrawn(desk: Desk) -> None:
    number = desk.ask("", {"title": "one", "workflow_type": "build"})["runs"][0]["number"]

    def somebody_looks() -> bool:
        desk.ask("/pending?agent_session=looks")
        return "withdraw" in desk.events(number)

    desk.yard.until(somebody_looks, "the offer is withdrawn")
    assert desk.events(number)[:6] == ["submit", "dispatch", "redispatch", "redispatch", "redispatch", "withdraw"]
    run = desk.run(number)
    assert (run["status"], run["dispatch_count"]) == ("queued", 4)
    assert run["not_before"] is not None
    assert "no agent took it" in desk.yard.interlock("why", str(number)).stdout


def test_a_claim_that_falls_silent_goes_back_and_its_agent_is_told(desk: Desk) -> None:
    number = desk.ask("", {"title": "one"})["runs"][0]["number"]
    claim = desk.ask("/claim-next", {"agent_session": "silent", "wait": 20})
    under = {"agent_session": "silent", "fence": claim["fence"]}
    assert desk.ask(f"/{number}/heartbeat", under)["continue"] is True
    desk.yard.until(lambda: desk.run(number)["status"] == "dispatched", "the claim lapses")
    assert desk.ask(f"/{number}/heartbeat", under)["code"] == "stale_claim"
    assert desk.ask(f"/{number}/complete", {**under, "result": "late"})["code"] == "stale_claim"
    again = desk.ask("/claim-next", {"agent_session": "other", "wait": 20})
    assert (again["run"]["number"], again["fence"]) == (number, claim["fence"] + 1)
    done = desk.ask(f"/{number}/complete", {"agent_session": "other", "fence": again["fence"]})
    assert done["status"] == "completed"
    assert [event for event in desk.events(number) if event not in ("redispatch", "note")] == [
        "submit",
        "dispatch",
        "claim",
        "start",
        "release",
        "claim",
        "complete",
    ]


def test_what_takes_too_long_is_stopped_and_timed_out(desk: Desk) -> None:
    number = desk.ask("", {"title": "one", "timeout_seconds": 0.3})["runs"][0]["number"]
    claim = desk.ask("/claim-next", {"agent_session": "slow", "wait": 20})
    under = {"agent_session": "slow", "fence": claim["fence"]}

    def told_to_stop() -> bool:
        return desk.ask(f"/{number}/heartbeat", under)["continue"] is False

    desk.yard.until(told_to_stop, "its heartbeat says so")
    ended = desk.ask(f"/{number}/fail", {**under, "message": "stopped"})
    assert ended["status"] == "timed_out"
