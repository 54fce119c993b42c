"""The first commands in a fresh folder, and refusals that say what to do next."""

from __future__ import annotations

import json
import subprocess
from typing import Any


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(done: subprocess.CompletedProcess[str], status: int) -> str:
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("error: ")
    return done.stderr


def test_add_makes_the_data_folder(yard: Any) -> None:
    """As the help has it: `interlock add ... && interlock up`."""
    assert "#1 added" in ok(yard.interlock("add", "one", "--stall", "5m"))
    (run,) = json.loads(ok(yard.interlock("ps", "--json")))
    assert run["task"]["stall_ms"] == 300_000


def test_routes_alone_are_routes_list(yard: Any) -> None:
    yard.write("interlock.yaml", "agents: {worker: 'true'}\n")
    ok(yard.interlock("init"))
    ok(yard.interlock("routes", "set", "review", "worker"))
    alone = json.loads(ok(yard.interlock("routes", "--json")))
    assert alone == json.loads(ok(yard.interlock("routes", "list", "--json")))
    assert alone == json.loads(ok(yard.interlock("routes", "--json", "list")))
    assert alone[0]["agent_id"] == "worker"
    assert "--json" in refused(yard.interlock("routes", "--json", "remove", "review"), 2)
    assert "`interlock routes set triage worker`" in refused(yard.interlock("routes", "set", "triage"), 2)


def test_refusals_say_what_to_do_next(yard: Any) -> None:
    ok(yard.interlock("add", "one", "--unique", "k"))
    ok(yard.interlock("cancel", "1"))
    ok(yard.interlock("add", "one", "--unique", "k"))
    for arguments, status in (
        (("set", "1", "--priority", "3"), 4),
        (("set", "2", "--priority", "9000000"), 2),
        (("retry", "1"), 4),
        (("hold", "1"), 4),
    ):
        assert "\nhint: " in refused(yard.interlock(*arguments), status)
