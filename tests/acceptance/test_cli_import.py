"""`interlock import`: what a person sees, and that nothing is taken half or twice."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/migration"
DUMP = str(FIXTURES / "workflow_runs.csv")
PICKUP = str(FIXTURES / "pickup.json")


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def refused(done: subprocess.CompletedProcess[str], status: int) -> str:
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("error: ")
    return done.stderr


def fates(text: str) -> dict[tuple[str, str], int]:
    return {(row["status"], row["fate"]): row["runs"] for row in json.loads(text)["runs"]}


def test_a_dry_run_makes_nothing(yard: Any) -> None:
    said = ok(yard.interlock("import", "dump", DUMP, "--dry-run"))
    assert re.search(r"running +1  on hold: in flight there", said)
    assert re.search(r"completed +1  left out \(--finished takes it as ended\)", said)
    assert re.search(r"timed_out +1  left out: here a run times out only in an attempt", said)
    assert "Nothing was changed" in said
    assert list(yard.folder.iterdir()) == []


def test_a_dump_is_imported_once(yard: Any) -> None:
    planned = fates(ok(yard.interlock("import", "dump", DUMP, "--dry-run", "--json")))
    done = ok(yard.interlock("import", "dump", DUMP, "--json"))
    assert fates(done) == planned
    assert json.loads(done)["numbers"] == [1, 2, 3, 4, 5]
    assert [(run["state"], run["held"]) for run in yard.runs()] == [("queued", 1)] * 3 + [("queued", 0)] * 2
    before = yard.runs()
    for file in (DUMP, str(FIXTURES / "workflow_runs.jsonl")):
        assert "Nothing new." in ok(yard.interlock("import", "dump", file))
    # The pickup file speaks of one of them again.
    said = ok(yard.interlock("import", "pickup", PICKUP))
    assert re.search(r"pending +1  imported before: nothing to do", said)
    assert "Imported 2 runs: #6 to #7." in said
    assert yard.runs()[: len(before)] == before


def test_a_newer_dump_ends_what_has_ended_there(yard: Any) -> None:
    ok(yard.interlock("import", "dump", DUMP))
    text = (
        Path(DUMP)
        .read_text()
        .replace("review.code,running", "review.code,completed")
        .replace(",queued,,", ",running,,")
    )
    newer = yard.write("newer.csv", text)
    said = ok(yard.interlock("import", "dump", str(newer)))
    assert re.search(r"completed +1  imported before, ended now as it did there", said)
    assert re.search(r"running +1  imported before, on hold now: in flight there", said)
    by_id = {run["task_key"]: run for run in yard.runs()}
    assert by_id["id:4124"]["state"] == "completed"
    assert (by_id["id:4130"]["state"], by_id["id:4130"]["held"]) == ("queued", 1)


def test_ended_ones_come_when_asked_for(yard: Any) -> None:
    ok(yard.interlock("import", "dump", DUMP, "--finished"))
    assert yard.states() == ["completed", "failed", "cancelled", *["queued"] * 5]


@pytest.mark.parametrize("arguments", [("dump",), ("pickup",)])
def test_standard_input(yard: Any, arguments: tuple[str, ...]) -> None:
    text = json.dumps({"runs": [{"id": 1, "title": "one", "status": "queued"}]})
    assert "Imported 1 run: #1." in ok(yard.interlock("import", *arguments, "-", stdin=text))
    assert yard.states() == ["queued"]


def test_nothing_is_taken_when_anything_is_wrong(yard: Any) -> None:
    rows = [{"id": n, "title": f"t{n}", "status": "queued"} for n in range(30)]
    rows[20]["status"] = "quued"
    rows[25]["priority"] = "high"
    file = yard.write("runs.json", json.dumps(rows, indent=1))
    said = refused(yard.interlock("import", "dump", str(file)), 2)
    assert f'{file}:102: record 21.status: "quued" is no status that is known (did you mean queued?)' in said
    assert "record 26.priority: a whole number is expected" in said
    assert not (yard.folder / ".interlock").exists()
    done = yard.interlock("import", "dump", str(file), "--skip-bad")
    assert "Imported 28 runs: #1 to #28." in ok(done)
    assert "record 21.status" in done.stderr
    assert "2 faults; the records are left out" in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "status", "words"),
    [
        ("a.json", "[{", 2, "a.json:1: expecting property name"),
        ("a.csv", "id,title,status\n1,x\n", 2, "a.csv:2: record 1: has 2 cells"),
        ("a.json", '[{"id": 1, "title": "x"}]', 2, "record 1.status: is missing"),
    ],
)
def test_faults_of_the_file(yard: Any, name: str, text: str, status: int, words: str) -> None:
    yard.write(name, text)
    assert words in refused(yard.interlock("import", "dump", name), status)
    assert not (yard.folder / ".interlock").exists()


def test_a_file_that_is_not_there(yard: Any) -> None:
    assert "no such file" in refused(yard.interlock("import", "pickup", "none.json"), 3)


def test_what_one_should_know(yard: Any) -> None:
    yard.write("p.json", '[{"id": 1, "title": "x", "agent_id": "ghost"}]')
    done = yard.interlock("import", "pickup", "p.json")
    ok(done)
    assert "1 record without a status: taken as waiting" in done.stderr
    assert "No such agent in the configuration yet: ghost" in done.stderr
    yard.write("p.json", "[]")
    assert "there is no run in it" in ok(yard.interlock("import", "pickup", "p.json"))
    rows = [{"id": 8, "title": "x", "status": "queued", "created_at": at} for at in (5, 4)]
    rows[1]["id"] = 9
    yard.write("d.json", json.dumps(rows))
    assert "not in the order of created_at" in yard.interlock("import", "dump", "d.json").stderr


def test_progress_is_for_terminals(yard: Any) -> None:
    rows = "".join(json.dumps({"id": n, "title": f"t{n}", "status": "queued"}) + "\n" for n in range(6000))
    yard.write("d.jsonl", rows)
    done = yard.interlock("import", "dump", "d.jsonl", "--dry-run")
    assert done.stderr == ""
    shown = yard.terminal("import", "dump", "d.jsonl", columns=120)
    shown.expect("Imported 6000 runs: #1 to #6000")
    shown.wait()
    assert len(yard.runs()) == 6000
    assert "\x1b[K" in shown.before


def test_memory_is_bounded(yard: Any) -> None:
    def peak(records: int) -> int:
        text = "".join(
            json.dumps({"id": n, "title": f"t{n}", "status": "queued", "input": "x" * 500}) + "\n"
            for n in range(records)
        )
        yard.write("d.jsonl", text)
        # The high-water mark of the program itself: that of the process would be its parent's.
        program = (
            "import re, sys; from interlock.__main__ import main; sys.argv[1:] = ['import', 'dump', 'd.jsonl', '--dry-run']\n"
            "try: main()\n"
            "except SystemExit: print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=yard.folder, env=yard.env, capture_output=True, text=True, check=True
        )
        return int(done.stdout.split()[-1])

    assert peak(40_000) - peak(1000) < 20 * 1024


def test_closing(yard: Any) -> None:
    ok(yard.interlock("import", "dump", DUMP))
    said = ok(yard.interlock("close", "1", "--message", "done by hand"))
    assert said == "#1 (Review pull request 315) is completed: done by hand\n"
    assert yard.states()[0] == "completed"
    assert "has ended already" in refused(yard.interlock("close", "1"), 4)
