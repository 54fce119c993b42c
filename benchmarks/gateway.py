"""Claims over HTTP, the way from an offer to its claim under a long poll, and what a waiting agent costs.

A claim is durable when it is answered (synchronous=FULL), and its answer holds run and prompt. The floor is a POST that does
nothing, by Litestar on hypercorn's trio worker (:mod:`benchmarks.noop_server`), asked by the same client. Offer to claim: from the
answer to a submit until the agent that waits at a second connection has its claim, against a bare round trip of the same server
(``GET /healthz``) in the same moment.
"""

from __future__ import annotations

import importlib.util
import json
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.daemons import Daemon
from benchmarks.probe import Plan, Rounds, in_turn, percentile, say
from benchmarks.table import Bound, Row
from interlock.domain.places import CONFIG_FILE

RUNS = "/api/workflow-runs"
NEXT = f"{RUNS}/claim-next"


class Served(Daemon):
    """A daemon in pull mode that serves HTTP on a port of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "true", 1)
        (folder / CONFIG_FILE).write_text(
            "dispatch:\n  mode: pull\n  concurrency:\n    global: 1000000\nserver:\n  listen: 127.0.0.1:0\n", "utf-8"
        )

    @property
    def port(self) -> int:
        """Where it serves."""
        found: list[str] = []

        def said() -> bool:
            found[:] = re.findall(r"http://127\.0\.0\.1:(\d+)", (self.folder / "up.log").read_text("utf-8"))
            return bool(found)

        self.until(said)
        return int(found[-1])


def ask(port: int, method: str, path: str, body: object = None, connection: HTTPConnection | None = None) -> object:
    """One request."""
    link = connection or HTTPConnection("127.0.0.1", port, timeout=120)
    content = None if body is None else json.dumps(body)
    link.request(method, path, content, {"Content-Type": "application/json"})
    answer = link.getresponse()
    text = answer.read()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path}: {answer.status} {text[:500]!r}")
    return json.loads(text)


def offer(daemon: Served, count: int) -> None:
    """Have so many offers open."""
    for begin in range(0, count, 1000):
        ask(daemon.port, "POST", RUNS, [{"title": f"task {n}"} for n in range(begin, min(count, begin + 1000))])
    daemon.until(lambda: daemon.ask("SELECT count(*) FROM runs WHERE state = 'dispatched'") >= count)
    daemon.rest(quiet_seconds=0.3)


def _load(port: int, path: str, connections: int, count: int) -> tuple[float, int, int]:
    words = [sys.executable, "-m", "benchmarks.http_load", "127.0.0.1", str(port), path, str(connections), str(count)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    rate, claims, refused = done.stdout.split()
    return float(rate), int(claims), int(refused)


def _claims(plan: Plan, connections: int, count: int) -> float:
    with Served(plan.place("claims")) as daemon:
        daemon.start()
        offer(daemon, count)
        rate, claims, refused = _load(daemon.port, NEXT, connections, count)
        if claims != count or refused:
            raise RuntimeError(f"{claims} of {count} requests got a claim, {refused} were refused")
        return rate


@contextmanager
def _noop() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.noop_server"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            _load(port, "/noop", 4, 50)
            yield port
        finally:
            server.kill()


def _noops(count: int) -> float:
    with _noop() as port:
        return _load(port, "/noop", 32, count)[0]


def _latencies(plan: Plan, count: int) -> tuple[list[float], list[float]]:
    bare, found = [], []
    with Served(plan.place("long-poll")) as daemon:
        daemon.start()
        port = daemon.port
        here, there = (HTTPConnection("127.0.0.1", port, timeout=120) for _ in range(2))
        there.connect()
        assert there.sock is not None
        there.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for n in range(count):
            began = time.perf_counter()
            ask(port, "GET", "/healthz", connection=here)
            bare.append((time.perf_counter() - began) * 1000)
            there.request(
                "POST", NEXT, json.dumps({"agent_session": f"s{n}", "wait": 60}), {"Content-Type": "application/json"}
            )
            time.sleep(0.02)
            ask(port, "POST", RUNS, {"title": "one"}, here)
            offered = time.perf_counter()
            answer = there.getresponse()
            assert answer.read() != b"null"
            found.append((time.perf_counter() - offered) * 1000)
    return bare, found


def _memory_kb(plan: Plan, agents: int) -> float:
    with Served(plan.place("waiting")) as daemon:
        daemon.start()
        port = daemon.port
        # What the first requests bring along is nobody's in particular.
        for n in range(20):
            ask(port, "POST", NEXT, {"agent_session": f"warm{n}"})
        daemon.rest(quiet_seconds=0.5)
        before = daemon.memory_kb()
        links = [HTTPConnection("127.0.0.1", port, timeout=120) for _ in range(agents)]
        for n, link in enumerate(links):
            link.request(
                "POST", NEXT, json.dumps({"agent_session": f"s{n}", "wait": 60}), {"Content-Type": "application/json"}
            )
        daemon.until(lambda: daemon.ask("SELECT count(*) FROM pullers") >= agents)
        daemon.rest(quiet_seconds=0.5)
        grown = daemon.memory_kb() - before
        for link in links:
            link.close()
        return grown / agents


def _rate(rounds: Rounds, *, floored: bool) -> str:
    return f"{rounds.median('noop'):,.0f}/s" if floored else "not installed"


def rows(plan: Plan) -> list[Row]:
    """Claims per second, latency, memory."""
    count = plan.size(3000, 60)
    measures = {
        "32": lambda: _claims(plan, 32, count),
        "8": lambda: _claims(plan, 8, count),
        "1": lambda: _claims(plan, 1, plan.size(1000, 20)),
    }
    floored = importlib.util.find_spec("hypercorn") is not None
    if floored:
        measures = {"noop": lambda: _noops(plan.size(6000, 100)), **measures}
    rounds = in_turn(measures, plan.times)
    bare, found = _latencies(plan, plan.size(200, 5))
    over = statistics.median(found) - statistics.median(bare)
    memory = _memory_kb(plan, plan.size(500, 20))
    say(f"  memory: {memory:.1f} KiB for a waiting agent")
    floor = f"hypercorn trio + litestar, no-op POST, 32 connections ({_rate(rounds, floored=floored)})"
    return [
        Row(
            what="durable claims over HTTP, 32 connections",
            figure=f"{rounds.median('32'):,.0f}/s",
            against=floor,
            value=rounds.ratio("32", "noop") if floored else None,
            bound=Bound(must=2, stretch=5),
        ),
        *(
            Row(
                what=f"durable claims over HTTP, connections: {connections}",
                figure=f"{rounds.median(connections):,.0f}/s",
                value=rounds.ratio(connections, "noop") if floored else None,
            )
            for connections in ("8", "1")
        ),
        Row(
            what="offer to claim under a long poll, p50, over a bare round trip",
            figure=f"{statistics.median(found):.2f} ms (p99 {percentile(found, 0.99):.2f} ms)",
            against=f"bare round trip {statistics.median(bare):.2f} ms",
            value=over,
            bound=Bound(must=3, stretch=1, at_most=True, unit=" ms"),
        ),
        Row(
            what="memory of a waiting agent",
            figure=f"{memory:.1f} KiB",
            value=memory,
            bound=Bound(must=25, stretch=15, at_most=True, unit=" KiB"),
        ),
    ]
