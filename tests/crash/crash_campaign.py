"""One campaign: rounds of kills until there were enough, a last daemon that sees everything through, and the balance.

As a program it runs many, unattended, in chunks that can be broken off and resumed; see :mod:`crash_report` for its result:

    python tests/crash/crash_campaign.py RESULTS.jsonl --kills 1000 --seed 1 --folder SCRATCH
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import crash_books
from crash_rounds import LEASE_MS, PULLED, Rounds
from crash_witness import Witness
from crash_yard import Yard, until

LIMIT, GPU_LIMIT = 5, 1
MODES = ("cgroup", "plain", "pull")
CHUNK = 20
ENDS = {"hopeless": "failed"}
FAILURES = {"hopeless": 2, "flaky": 1}
Lines = list[tuple[str, int, list[str]]]


class Campaign:
    """A campaign in a fresh yard. ``faults``: sentences, with seed and round; empty is good."""

    def __init__(self, base: Path, *, seed: int, kills: int, mode: str) -> None:
        self.name = f"seed {seed}, {mode}"
        self.mode = mode
        self.seed = seed
        self.target = kills
        self.yard = Yard(base, contained=mode != "plain")
        dispatch: dict[str, Any] = {"concurrency": {"global": LIMIT, "perTag": {"gpu": GPU_LIMIT}}}
        if mode == "pull":
            dispatch |= {"mode": "pull", "leases": {"remote": f"{LEASE_MS}ms", "grace": "200ms"}}
        self.yard.configure(**dispatch)
        self.rounds = Rounds(self.yard, seed, pull=mode == "pull")
        self.faults: list[str] = []
        self.done = 0
        self.seconds = 0.0
        self.witness: Witness | None = None

    def run(self) -> None:
        """All of it. Whatever goes wrong is in ``faults`` afterwards."""
        began = time.monotonic()
        with ExitStack() as stack:
            stack.enter_context(self.yard)
            try:
                with self.yard.watcher(LIMIT, gpu=GPU_LIMIT) as self.witness:
                    while self.rounds.daemon_kills < self.target and not self.faults:
                        self.done += 1
                        self.rounds.round()
                        self._take_down([*self.witness.faults, *self.yard.faults(), *self._lost()])
                    if not self.faults:
                        self.see_through()
                self._take_down(self.balance())
            except Exception:  # noqa: BLE001 - a fault like any other: it is reported with seed and round
                self._take_down([traceback.format_exc()])
        self.seconds = time.monotonic() - began

    def _take_down(self, found: list[str]) -> None:
        where = f"{self.name}, round {self.done} ({self.rounds.plan}), folder {self.yard.base}"
        self.faults += [f"{where}: {fault}" for fault in found]

    def see_through(self) -> None:
        """A last daemon, which nobody kills, until all runs have ended; then it is told to stop."""
        yard, rounds = self.yard, self.rounds
        began = time.monotonic()
        last = yard.daemon()
        rounds.until_up(last, began)
        rounds.plan = "the end"
        with crash_books.opened(yard.data / "interlock.db") as db:
            held = [row["number"] for row in db.execute("SELECT number FROM runs WHERE held AND ended_ms IS NULL")]
        for number in held:
            # Whoever had put it on hold was killed before it let it go again.
            yard.unhold(number)
        if rounds.pull:
            rounds.start_pullers(3)
        until(
            lambda: not yard.store.read_now(lambda tx: tx.count_states(finished=False)),
            60 + 2 * rounds.daemon_kills,
            what=f"the end of all runs ({last.log})",
        )
        rounds.end_clients()
        last.signal(signal.SIGTERM)
        assert last.until_ended() == 0, last.log.read_text()

    def balance(self) -> list[str]:
        """Everything that is wrong with how it ended."""
        yard, rounds = self.yard, self.rounds
        lines = yard.journal()
        found = [*self.yard.faults(), *self._lost(), *crash_books.folder_faults(yard.data), *self._leftovers()]
        touched = {words[2] for words in rounds.said if words[:2] in (["try", "cancel"], ["try", "interrupt"])}
        found += crash_books.journal_faults(lines, rounds.harmed | touched)
        with crash_books.opened(yard.data / "interlock.db") as db:
            runs = {row["id"]: row for row in db.execute("SELECT * FROM runs")}
            attempts: dict[str, Counter[str]] = {name: Counter() for name in runs}
            for row in db.execute(
                "SELECT runs.id, attempts.state FROM attempts JOIN runs ON runs.number = attempts.run"
            ):
                attempts[row["id"]][row["state"]] += 1
            found += self._operations(db, runs)
            for name, row in runs.items():
                kind = rounds.acknowledged.get(name) or json.loads(row["task"])["title"].split()[0]
                found += self._end(
                    row, kind, attempts[name], lines, harmed=name in rounds.harmed, touched=name in touched
                )
        return found

    def _lost(self) -> list[str]:
        with crash_books.opened(self.yard.data / "interlock.db") as db:
            there = {row["id"] for row in db.execute("SELECT id FROM runs")}
        accepted = self.rounds.acknowledged.items()
        return [f"{name} ({kind}) was acknowledged and is lost" for name, kind in accepted if name not in there]

    def _leftovers(self) -> list[str]:
        assert self.witness is not None
        left = [f"{seen} is left over" for seen in self.rounds.living()]
        left += [f"cgroup {path} is left over, empty or not" for path in self.yard.cgroups()]
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in (Path(words[1]) for words in mounts if words[2] == "cgroup2"):
            left += [
                f"cgroup {path} is left over"
                for path in self.witness.sums["cgroups"]
                if Path(f"{mount}{path}").exists()
            ]
        return left

    def _operations(self, db: Any, runs: dict[str, Any]) -> list[str]:
        """What clients were told was done is in the log, and had its effect."""
        found = []
        events = "SELECT runs.id, event, run_events.reason FROM run_events JOIN runs ON runs.number = run_events.run"
        logged = {(row["id"], row["event"]) for row in db.execute(events)}
        # While an agent works on it, a cancel is an intent first.
        logged |= {
            (row["id"], "cancel")
            for row in db.execute(f"{events} WHERE event = 'stop' AND run_events.reason = 'cancel'")
        }
        for what, name, *more in self.rounds.said:
            row = runs.get(name)
            if what in ("cancel", "hold", "unhold", "priority") and (name, what) not in logged:
                found.append(f"{what} of {name} was acknowledged and is not in the log")
            if what == "cancel" and (row is None or row["state"] not in ("cancelled", "completed")):
                found.append(f"cancel of {name} was acknowledged, and it is {None if row is None else row['state']}")
            if what == "completed":
                found += self._pulled(db, row, name, int(more[0]))
        return found

    def _pulled(self, db: Any, row: Any, name: str, fence: int) -> list[str]:
        if row is None or row["state"] != "completed" or json.loads(row["result"]).get("fence") != fence:
            return [f"completion of {name} under fence {fence} was acknowledged, and the run is {row and tuple(row)}"]
        query = "SELECT fence FROM run_events WHERE run = ? AND event = 'complete'"
        fences = [event["fence"] for event in db.execute(query, (row["number"],))]
        return [] if fences == [fence] else [f"{name} completed under {fences}, {fence} was told that it was its doing"]

    def _end(
        self, row: Any, kind: str, states: Counter[str], lines: Lines, *, harmed: bool, touched: bool
    ) -> list[str]:
        """Whether a run ended as its kind does, and what it cost."""
        wanted = {ENDS.get(kind, "completed")}
        if touched:
            wanted.add("cancelled")
        if harmed:
            # Two agents killed in a row are two failures, and then it has failed.
            wanted.add("failed")
        title = f"#{row['number']} {row['id']} ({kind})"
        found = [] if row["state"] in wanted else [f"{title} is {row['state']}, not {wanted}: {row['message']}"]
        if harmed or touched or kind == PULLED:
            return found
        well = sum(1 for name, _, words in lines if name == row["id"] and words[:2] == ["end", "0"])
        if well != (kind != "hopeless") or states["succeeded"] != well:
            found.append(f"{title}: its agent ended well {well} times, recorded: {dict(states)}")
        failures = FAILURES.get(kind, 0)
        if states["failed"] != failures or row["failures"] != failures:
            found.append(f"{title}: {states['failed']} failed attempts, {row['failures']} failures counted")
        if states["deferred"] != (kind == "later"):
            found.append(f"{title}: deferred {states['deferred']} times")
        if kind == "writes" and json.loads(row["result"] or "null") != {"n": 7}:
            found.append(f"{title}: its result is {row['result']}")
        if states["lost"]:
            found.append(f"{title}: {states['lost']} attempts lost though nobody touched its agent")
        return found

    def result(self) -> dict[str, Any]:
        """Its figures, for the page."""
        rounds = self.rounds
        with crash_books.opened(self.yard.data / "interlock.db") as db:
            states = {row[0]: row[1] for row in db.execute("SELECT state, count(*) FROM runs GROUP BY state")}
            attempts = db.execute("SELECT count(*) FROM attempts").fetchone()[0]
            events = db.execute("SELECT count(*) FROM run_events").fetchone()[0]
            adopted = db.execute("SELECT count(*) FROM run_events WHERE event = 'adopt'").fetchone()[0]
        said = Counter(words[0] for words in rounds.said if words[0] != "try")
        refused = Counter(words[3] for words in rounds.said if words[0] == "refused")
        sums = self.witness.sums if self.witness is not None and not self.faults else {}
        return {
            "seed": self.seed,
            "mode": self.mode,
            "day": time.strftime("%Y-%m-%d"),
            "machine": machine(),
            "kills": dict(rounds.kills),
            "daemon_kills": rounds.daemon_kills,
            "rounds": self.done,
            "runs": sum(states.values()),
            "states": states,
            "attempts": attempts,
            "adopted": adopted,
            "events": events,
            "acknowledged": len(rounds.acknowledged),
            "operations": sum(said[what] for what in ("cancel", "interrupt", "hold", "unhold", "priority")),
            "fenced": refused["stale_claim"],
            "recoveries": len(rounds.recoveries),
            "longest_recovery_seconds": round(max(rounds.recoveries, default=0), 2),
            "samples": sums.get("samples", 0),
            "most_alive": sums.get("most", 0),
            "seconds": round(self.seconds),
            "faults": self.faults,
        }


def machine() -> str:
    """The machine in general words."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{os.cpu_count()} cores ({model}), Linux {os.uname().release.split('-')[0]}, Python {python}"


def main() -> int:
    """Chunk after chunk, each in a folder of its own; those that RESULTS has already are passed over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="a line of JSON for every chunk; is added to")
    parser.add_argument("--kills", type=int, default=1000, help="daemons to kill, all chunks together")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first chunk; the next has the next")
    parser.add_argument("--folder", type=Path, default=Path("crash-campaign"), help="scratch; folders with faults stay")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    wanted = parser.parse_args()
    done = [json.loads(line) for line in wanted.results.read_text().splitlines()] if wanted.results.exists() else []
    seeds = {result["seed"] for result in done}
    kills, seed, faulty = sum(result["daemon_kills"] for result in done), wanted.seed, 0
    while kills < wanted.kills:
        if seed not in seeds:
            mode = wanted.modes[seed % len(wanted.modes)]
            base = wanted.folder.absolute() / f"{seed}-{mode}"
            shutil.rmtree(base, ignore_errors=True)
            campaign = Campaign(base, seed=seed, kills=min(CHUNK, wanted.kills - kills), mode=mode)
            campaign.run()
            result = campaign.result()
            with wanted.results.open("a") as out:
                print(json.dumps(result), file=out)
            kills += result["daemon_kills"]
            faulty += bool(result["faults"])
            verdict = "\n".join(result["faults"]) or "balanced"
            print(f"{kills} of {wanted.kills}: {campaign.name}, {result['seconds']} s, {verdict}", flush=True)
            if not result["faults"]:
                shutil.rmtree(base)
        seed += 1
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
