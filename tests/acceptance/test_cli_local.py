"""Commands that work on the database, with no dispatcher anywhere."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
import subprocess
import sys
from typing import Any

import pytest

CONFIG = """
dispatch:
  defaultAgent: worker
agents:
  worker: {command: "true"}
"""


@pytest.fixture
def desk(yard: Any) -> Any:
    """A folder with a configuration and an empty queue."""
    yard.write("interlock.yaml", CONFIG)
    assert yard.interlock("init").returncode == 0
    return yard


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def refused(done: subprocess.CompletedProcess[str], status: int) -> str:
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    return done.stderr


def listed(desk: Any, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ok(desk.interlock("ps", "--json", *arguments)))
    return found


def test_init_writes_what_is_not_there(yard: Any) -> None:
    (yard.folder / ".git").mkdir()
    said = ok(yard.interlock("init"))
    assert "Wrote" in said
    assert "git ignores it" in said
    assert yard.read(".interlock/.gitignore") == "*\n"
    assert "agents:" in yard.read("interlock.yaml")
    yard.write("interlock.yaml", "version: 1\n")
    assert "already" in ok(yard.interlock("init"))
    assert yard.read("interlock.yaml") == "version: 1\n"
    assert "is sound" in ok(yard.interlock("config", "check"))


def test_add_says_number_id_and_what_comes_next(desk: Any) -> None:
    said = ok(desk.interlock("add", "Fix the parser"))
    (run,) = listed(desk)
    assert said == f"#1 added ({run['id']}). No dispatcher is running: `interlock up` starts one.\n"


def test_add_takes_every_field(desk: Any) -> None:
    run = json.loads(
        ok(
            desk.interlock(
                *("add", "Fix", "--content", "-", "--file", "a.py", "--file", "b.py", "--tag", "x", "--tag", "y"),
                *("--priority", "7", "--project", "p", "--tracker", "t", "--role", "r", "--type", "review"),
                *("--agent", "worker", "--timeout", "5m", "--unique", "k", "--held", "--id", "mine", "--json"),
                stdin="in full\nwith lines\n",
            )
        )
    )
    task = run["task"]
    assert task["content"] == "in full\nwith lines\n"
    assert task["context"]["files"] == ["a.py", "b.py"]
    assert (task["tags"], task["priority"], task["timeout_ms"]) == (["x", "y"], 7, 300_000)
    assert (run["held"], run["unique_key"], task["id"]) == (True, "k", "mine")
    again = json.loads(ok(desk.interlock("add", "Other", "--unique", "k", "--json")))
    assert again["number"] == run["number"]
    assert "nothing was added" in ok(desk.interlock("add", "Other", "--unique", "k"))


def test_add_at_a_time(desk: Any) -> None:
    desk.env["TZ"] = "Asia/Tokyo"
    there = json.loads(ok(desk.interlock("add", "x", "--at", "2036-07-01T09:00", "--json")))
    zoned = json.loads(ok(desk.interlock("add", "x", "--at", "2036-07-01T00:00Z", "--json")))
    assert there["not_before_ms"] == zoned["not_before_ms"]
    ok(desk.interlock("add", "x", "--in", "2h"))
    assert "1h59m" in ok(desk.interlock("ps"))


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("",), "TITLE"),
        (("two\nlines",), "TITLE"),
        (("\x1b[31mred",), "U+001B"),
        (("x" * 501,), "TITLE"),
        (("x", "--timeout", "5"), "--timeout"),
        (("x", "--timeout", "soon"), "--timeout"),
        (("x", "--priority", "high"), "--priority"),
        (("x", "--priority", "99999999"), "--priority"),
        (("x", "--in", "5m", "--at", "2036-01-01T00:00Z"), "--at"),
        (("x", "--at", "tomorrow"), "--at"),
        (("x", "--needs", "#99"), "#99"),
        (("x", "--agent", "./agent.sh --fast"), "no agent './agent.sh --fast'"),
        (("x", "--nope"), "--nope"),
        ((), "TITLE"),
        (("x", "y"), "y"),
    ],
)
def test_add_refuses_in_words(desk: Any, arguments: tuple[str, ...], names: str) -> None:
    assert names in refused(desk.interlock("add", *arguments), 2)
    assert listed(desk) == []


def test_arguments_that_are_no_text(desk: Any) -> None:
    done = subprocess.run(
        [sys.executable.encode(), b"-m", b"interlock", b"show", b"\xff\xfe"],
        cwd=desk.folder,
        env=desk.env | {"PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "not UTF-8" in refused(done, 2)


def test_runs_are_named_by_number_id_and_prefix(desk: Any) -> None:
    ok(desk.interlock("add", "one"))
    (run,) = listed(desk)
    for name in ("1", "#1", run["id"], run["id"][:6]):
        assert json.loads(ok(desk.interlock("show", name, "--json")))["run"]["number"] == 1
    ok(desk.interlock("add", "two"))
    assert "more than one" in refused(desk.interlock("show", "r"), 3)
    for name in ("7", "#7", "nope", "", "%", "'; DROP TABLE runs"):
        refused(desk.interlock("show", name), 3)


@pytest.mark.parametrize("command", ["show", "logs", "why", "cancel", "retry", "hold", "unhold"])
def test_a_run_that_is_not_there(desk: Any, command: str) -> None:
    refused(desk.interlock(command, "99"), 3)


def test_hold_set_cancel_retry(desk: Any) -> None:
    for title in ("one", "two", "three"):
        ok(desk.interlock("add", title))
    assert "on hold" in ok(desk.interlock("hold", "1", "#2"))
    assert [run["held"] for run in listed(desk)] == [False, True, True]
    assert "on hold" in ok(desk.interlock("ps"))
    ok(desk.interlock("unhold", "1", "2"))
    assert "priority 9" in ok(desk.interlock("set", "3", "--priority", "9"))
    assert "is cancelled" in ok(desk.interlock("cancel", "1"))
    partly = desk.interlock("cancel", "1", "2", "77")
    assert "#2" in partly.stdout
    refused(partly, 4)
    assert "run again as #4" in ok(desk.interlock("retry", "1", "#1"))
    refused(desk.interlock("retry", "3"), 4)
    assert [run["state"] for run in listed(desk, "--all")] == ["queued", "queued", "cancelled", "cancelled"]


def test_cancel_all_takes_dependants_first(desk: Any) -> None:
    ok(desk.interlock("add", "first"))
    ok(desk.interlock("add", "second", "--needs", "1"))
    ok(desk.interlock("add", "third", "--needs", "2"))
    assert ok(desk.interlock("cancel", "--all")) == "3 runs cancelled.\n"
    assert {run["state"] for run in listed(desk, "--all")} == {"cancelled"}


def test_cancel_by_tag(desk: Any) -> None:
    ok(desk.interlock("add", "one", "--tag", "gpu"))
    ok(desk.interlock("add", "two"))
    ok(desk.interlock("cancel", "--tag", "gpu"))
    assert [run["task"]["title"] for run in listed(desk)] == ["two"]
    for arguments in ((), ("1", "--all"), ("--all", "--tag", "x")):
        refused(desk.interlock("cancel", *arguments), 2)


def test_what_asks_nothing_cannot_be_answered(desk: Any) -> None:
    ok(desk.interlock("add", "one"))
    assert "asked nothing" in refused(desk.interlock("answer", "1", "yes"), 4)


def test_pause_and_resume(desk: Any) -> None:
    assert "Paused" in ok(desk.interlock("pause", "--message", "no budget"))
    assert "no budget" in ok(desk.interlock("pause"))
    assert "PAUSED" in ok(desk.interlock("ps"))
    ok(desk.interlock("add", "x"))
    assert "no budget" in ok(desk.interlock("why", "1"))
    assert "goes on" in ok(desk.interlock("resume"))
    assert "not paused" in ok(desk.interlock("resume"))


def test_why_names_every_reason_with_its_remedy(desk: Any) -> None:
    ok(desk.interlock("add", "one", "--held"))
    ok(desk.interlock("add", "two", "--needs", "1", "--in", "1h"))
    text = ok(desk.interlock("why", "2"))
    reasons = json.loads(ok(desk.interlock("why", "2", "--json")))["reasons"]
    assert [reason["kind"] for reason in reasons] == ["need", "not_before", "no_dispatcher"]
    for reason in reasons:
        assert reason["message"].partition(": in ")[0] in text
        assert reason["remedy"] in text
    assert "interlock unhold" in ok(desk.interlock("why", "1"))


def test_routes(desk: Any) -> None:
    assert "No routes" in ok(desk.interlock("routes"))
    ok(desk.interlock("routes", "set", "review", "worker", "--max-concurrent", "none", "--timeout", "2h"))
    ok(desk.interlock("routes", "set", "review", "--priority", "5"))
    (route,) = json.loads(ok(desk.interlock("routes", "list", "--json")))
    assert (route["agent_id"], route["priority"]) == ("worker", 5)
    assert (route["max_concurrent"], route["timeout_minutes"]) == (None, 120)
    refused(desk.interlock("routes", "set", "x", "worker", "--timeout", "90s"), 2)
    refused(desk.interlock("routes", "set", "x", "worker", "--max-concurrent", "many"), 2)
    refused(desk.interlock("routes", "set", "new"), 2)
    refused(desk.interlock("routes", "remove", "nope"), 3)
    ok(desk.interlock("routes", "remove", "review"))
    assert json.loads(ok(desk.interlock("routes", "list", "--json"))) == []


def test_numbers(desk: Any) -> None:
    ok(desk.interlock("add", "one"))
    assert json.loads(ok(desk.interlock("limits", "--json")))[0]["key"] == "global"
    assert "global" in ok(desk.interlock("limits"))
    assert json.loads(ok(desk.interlock("stats", "--json")))["states"] == {"queued": 1}
    assert "1 queued" in ok(desk.interlock("stats", "--since", "1h"))
    refused(desk.interlock("stats", "--since", "5"), 2)


def test_export_as_lines_array_and_tables(desk: Any) -> None:
    assert ok(desk.interlock("export")) == ""
    assert json.loads(ok(desk.interlock("export", "--format", "json"))) == []
    for title in ("one", 'two, "quoted"', "three"):
        ok(desk.interlock("add", title))
    lines = [json.loads(line) for line in ok(desk.interlock("export")).splitlines()]
    assert [line["number"] for line in lines] == [1, 2, 3]
    assert lines[0]["events"][0]["event"] == "submit"
    assert len(json.loads(ok(desk.interlock("export", "--format", "json", "--table", "events")))) == 3
    rows = list(csv.DictReader(io.StringIO(ok(desk.interlock("export", "--format", "csv")))))
    assert [row["title"] for row in rows] == ["one", 'two, "quoted"', "three"]


def test_backup_is_a_database(desk: Any) -> None:
    ok(desk.interlock("add", "one"))
    ok(desk.interlock("backup", "copy.db"))
    with sqlite3.connect(desk.folder / "copy.db") as copy:
        assert copy.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    refused(desk.interlock("backup", "copy.db"), 4)
    refused(desk.interlock("backup", "nowhere/copy.db"), 5)


def test_prune(desk: Any) -> None:
    ok(desk.interlock("add", "one"))
    ok(desk.interlock("add", "two"))
    ok(desk.interlock("cancel", "1"))
    assert "No run" in ok(desk.interlock("prune", "--older-than", "1d"))
    assert "1 run" in ok(desk.interlock("prune", "--older-than", "1ms", "--dry-run"))
    assert len(listed(desk, "--all")) == 2
    assert "Deleted 1 run" in ok(desk.interlock("prune", "--older-than", "1ms"))
    assert [run["number"] for run in listed(desk, "--all")] == [2]
    refused(desk.interlock("prune"), 2)
    refused(desk.interlock("prune", "--older-than", "x"), 2)


def test_doctor_finds_and_mends_files_without_a_run(desk: Any) -> None:
    assert "All is sound" in ok(desk.interlock("doctor"))
    stray = desk.folder / ".interlock/attempts/00000/7.1.abcdef"
    stray.mkdir(parents=True)
    (stray / "output.log").write_text("old")
    done = desk.interlock("doctor", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["sound"] is False
    assert "mended" in ok(desk.interlock("doctor", "--repair"))
    assert not stray.exists()
    assert json.loads(ok(desk.interlock("doctor", "--json")))["sound"] is True


def test_forget_is_refused_where_nothing_is_to_be_forgotten(desk: Any) -> None:
    ok(desk.interlock("add", "one"))
    refused(desk.interlock("doctor", "--forget", "1"), 4)


def test_diagrams(desk: Any) -> None:
    assert ok(desk.interlock("diagram")).startswith("stateDiagram")
    assert "|" in ok(desk.interlock("diagram", "worker", "--format", "md"))
    ok(desk.interlock("add", "one"))
    ok(desk.interlock("hold", "1"))
    ok(desk.interlock("cancel", "1"))
    text = ok(desk.interlock("diagram", "--run", "1"))
    assert "cancelled" in text
    ok(desk.interlock("diagram", "--run", "1", "-o", "way.dot"))
    assert desk.read("way.dot").startswith("digraph")
    refused(desk.interlock("diagram", "attempt", "--run", "1"), 2)
    refused(desk.interlock("diagram", "--run", "9"), 3)
    desk.env["PATH"] = "/nowhere"
    assert "dot" in refused(desk.interlock("diagram", "--format", "svg"), 5)


def test_config_check(desk: Any) -> None:
    assert "worker" in ok(desk.interlock("config", "check"))
    desk.write("interlock.yaml", "dispatch:\n  concurency: {global: 3}\n")
    said = refused(desk.interlock("config", "check"), 2)
    assert "interlock.yaml:2" in said
    assert "concurrency" in said
    refused(desk.interlock("ps"), 2)
    desk.write("interlock.yaml", "agents:\n  ghost: {command: /no/such/program}\n")
    done = desk.interlock("config", "check")
    assert done.returncode == 1
    assert "/no/such/program" in done.stdout
    assert "ghost" in json.loads(desk.interlock("config", "check", "--json").stdout)["agents"]
    refused(desk.interlock("config", "check", "nope.yaml"), 3)


def test_keys_without_effect_are_named(desk: Any) -> None:
    desk.write("interlock.yaml", "dispatch:\n  reconcile: {enabled: true}\n")
    done = desk.interlock("ps")
    assert "reconcile" in done.stderr
    assert "reconcile" not in done.stdout
    assert "reconcile" in ok(desk.interlock("config", "check"))


def test_no_data_folder(yard: Any) -> None:
    for arguments in (("ps",), ("show", "1"), ("stop",), ("doctor",), ("export",)):
        assert "interlock init" in refused(yard.interlock(*arguments), 3)
    assert not (yard.folder / ".interlock").exists()


def test_no_dispatcher_to_stop(desk: Any) -> None:
    assert "interlock up" in refused(desk.interlock("stop"), 5)


def test_a_file_that_is_no_database(yard: Any) -> None:
    (yard.folder / ".interlock").mkdir()
    yard.write(".interlock/interlock.db", "not a database, not at all\n" * 100)
    refused(yard.interlock("ps"), 5)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written(desk: Any) -> None:
    (desk.folder / ".interlock").chmod(0o500)
    try:
        refused(desk.interlock("add", "x"), 5)
    finally:
        (desk.folder / ".interlock").chmod(0o700)


def test_a_data_folder_that_is_a_file(yard: Any) -> None:
    yard.write("file", "")
    refused(yard.interlock("--data", "file", "up"), 5)
    refused(yard.interlock("--data", "file/below", "init"), 5)


def test_readers_that_leave_and_outputs_that_are_gone(desk: Any) -> None:
    for number in range(3):
        ok(desk.interlock("add", f"task {number}"))
    for script, status in (
        ("interlock export | head -c 1 > /dev/null; true", 0),
        ("interlock ps >&-", 0),
        ("interlock ps --json >&-", 0),
        ("interlock show 1 >&- 2>&-", 0),
        ("interlock export > /dev/full", 5),
        ("interlock ps > /dev/full", 5),
    ):
        shell = script.replace("interlock ", f"{sys.executable} -m interlock ")
        done = subprocess.run(
            ["sh", "-c", shell], cwd=desk.folder, env=desk.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, (script, done.stderr)
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr


def test_a_fault_of_ours_is_called_one(desk: Any) -> None:
    ok(desk.interlock("add", "x"))
    database = sqlite3.connect(desk.folder / ".interlock/interlock.db")
    database.execute("INSERT INTO adhoc_agents VALUES ('broken', '[1]')")
    database.commit()
    database.close()
    done = desk.interlock("why", "1")
    assert done.returncode == 70
    assert "fault of Interlock" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in desk.interlock("why", "1", "--verbose").stderr
