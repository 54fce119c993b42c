"""The books of a data folder, balanced with nothing of Interlock's: SQL of our own, and the table of the state diagrams.

Each function yields sentences that say what does not balance; none is good.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[2] / "state_diagrams" / "run.md"
ACTIVE = ("dispatched", "claimed", "running")
NEW = "(new)"
Row = sqlite3.Row


@cache
def transitions() -> dict[tuple[str, str], str]:
    """(state, event) -> state, read from the table in state_diagrams/run.md."""
    events, states = TABLE.read_text().split("## States")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in states.splitlines() if line[:3] == "| `"]
    unfinished = [row[0].strip("`") for row in rows if row[1] != "final"]
    found = {}
    for line in events.splitlines():
        if line[:3] != "| `":
            continue
        event, sources, target = (cell.strip() for cell in line.strip("|").split("|")[:3])
        names = unfinished if sources == "any before the end" else re.findall(r"[\w()]+", sources)
        for name in names:
            found[name, event.strip("`")] = name if target == "same" else target.strip("`")
    return found


def opened(database: Path) -> closing[sqlite3.Connection]:
    """A connection that reads only."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, isolation_level=None, timeout=30)
    connection.row_factory = sqlite3.Row
    return closing(connection)


def faults(database: Path, *, limits: Mapping[str, int] | None = None) -> list[str]:
    """Everything that is wrong with the database. ``limits``: slot key -> how many at once, in force from the first event on."""
    with opened(database) as db:
        db.execute("BEGIN")
        return [*file_faults(db), *slot_faults(db), *replay_faults(db, limits or {}), *attempt_faults(db)]


def file_faults(db: sqlite3.Connection) -> Iterator[str]:
    """What SQLite itself finds."""
    yield from (f"integrity: {row[0]}" for row in db.execute("PRAGMA integrity_check") if row[0] != "ok")
    yield from (f"foreign key: {tuple(row)}" for row in db.execute("PRAGMA foreign_key_check"))


def slot_keys(run: Row) -> set[str]:
    """The slots that an active run must have, from its task."""
    task: dict[str, Any] = json.loads(run["task"])
    keys = {"global"} | {f"tag:{tag}" for tag in task.get("tags", ())}
    keys |= {f"{noun}:{task[noun]}" for noun in ("project", "tracker", "role") if task.get(noun)}
    if task.get("type"):
        keys.add(f"route:{task['type']}")
    return keys | ({f"agent:{run['agent']}"} if run["agent"] else set())


def slot_faults(db: sqlite3.Connection) -> Iterator[str]:
    """Slots, their counts, and a recount from the runs that are active."""
    recount: Counter[str] = Counter()
    held: defaultdict[int, set[str]] = defaultdict(set)
    for row in db.execute("SELECT run, key FROM slots"):
        held[row["run"]].add(row["key"])
    for run in db.execute("SELECT * FROM runs"):
        wanted = slot_keys(run) if run["state"] in ACTIVE else set()
        recount.update(wanted)
        if held.pop(run["number"], set()) != wanted:
            yield f"#{run['number']} is {run['state']} and should hold the slots {sorted(wanted)}"
    yield from (f"#{number} is not there and holds slots" for number in held)
    counts = {row["key"]: row["used"] for row in db.execute("SELECT key, used FROM slot_counts WHERE used <> 0")}
    if counts != dict(recount):
        yield f"slots are counted as {counts}, a recount gives {dict(recount)}"


@dataclass
class Replayed:
    """A run as its events tell it."""

    state: str = NEW
    fence: int = 0
    keys: set[str] = field(default_factory=set)
    moves: Counter[str] = field(default_factory=Counter)


def replay_faults(db: sqlite3.Connection, limits: Mapping[str, int]) -> Iterator[str]:
    """The event log from its beginning: every move is one of the diagram's, limits hold after each, and it ends at the states
    that the runs have.
    """
    runs = {row["number"]: row for row in db.execute("SELECT * FROM runs")}
    local = Counter(row["run"] for row in db.execute("SELECT run FROM attempts WHERE NOT remote"))
    story: defaultdict[int, Replayed] = defaultdict(Replayed)
    used: Counter[str] = Counter()
    events = {event for _, event in transitions()}
    last = 0
    for row in db.execute("SELECT * FROM run_events ORDER BY seq"):
        where = f"event {row['seq']} (#{row['run']} {row['event']})"
        if row["seq"] != last + 1:
            yield f"{where} follows event {last}: the log has a gap"
        last = row["seq"]
        if row["event"] not in events:
            continue
        run = story[row["run"]]
        target = transitions().get((run.state, row["event"]))
        before = None if run.state == NEW else run.state
        if target is None or row["from_state"] != before or row["to_state"] != target:
            yield f"{where} goes from {row['from_state']} to {row['to_state']}; it was {run.state}, and goes to {target}"
            return
        run.fence += row["event"] == "claim"
        if (row["fence"] or 0) != run.fence:
            yield f"{where} is under fence {row['fence']}, the claim of then has {run.fence}"
        _count(used, run, target, row, runs)
        for key, limit in limits.items():
            if used[key] > limit:
                yield f"after {where} {used[key]} runs are active under {key}, limited to {limit}"
        run.state = target
        run.moves[row["event"]] += 1
    for number, row in runs.items():
        run = story.pop(number, Replayed())
        if (run.state, run.fence) != (row["state"], row["fence"]):
            now = f"it is {row['state']} under fence {row['fence']}"
            yield f"#{number}: its events lead to {run.state} under fence {run.fence}, {now}"
        if (owners := run.moves["adopt"] + local[number]) != row["owner_epoch"]:
            yield f"#{number} has had {row['owner_epoch']} owners; local claims and takeovers are {owners}"
        if run.moves["complete"] > 1:
            yield f"#{number} completed {run.moves['complete']} times"
    yield from (f"#{number} has events and is not there" for number in story)


def _count(used: Counter[str], run: Replayed, target: str, event: Row, runs: Mapping[int, Row]) -> None:
    was, now = run.state in ACTIVE, target in ACTIVE
    if was and not now:
        used.subtract(run.keys)
    elif now and not was and event["run"] in runs:
        # Without the agent's own key: an offer that is open to all gets it later.
        run.keys = {key for key in slot_keys(runs[event["run"]]) if not key.startswith("agent:")}
        used.update(run.keys)


def attempt_faults(db: sqlite3.Connection) -> Iterator[str]:
    """Attempts: one for every claim, numbered without a gap, ended in words unless theirs is the live claim."""
    attempts: defaultdict[int, list[Row]] = defaultdict(list)
    for row in db.execute("SELECT * FROM attempts ORDER BY run, fence"):
        attempts[row["run"]].append(row)
    for run in db.execute("SELECT * FROM runs"):
        name, own = f"#{run['number']} ({run['title']})", attempts[run["number"]]
        if [row["fence"] for row in own] != list(range(1, run["fence"] + 1)):
            yield f"{name}: attempts {[row['fence'] for row in own]} under fence {run['fence']}"
        for row in own:
            live = run["state"] in ("claimed", "running") and row["fence"] == run["fence"]
            if (row["ended_ms"] is None) != live:
                yield f"{name}: attempt {row['fence']} is {row['state']}, the run is {run['state']}"
            if not live and not (row["reason"] and (row["message"] or "").strip()):
                yield f"{name}: attempt {row['fence']} ended without reason or message"
        if sum(row["state"] == "succeeded" for row in own) > 1:
            yield f"{name}: more than one attempt succeeded"
        if run["ended_ms"] is not None and not (run["reason"] and (run["message"] or "").strip()):
            yield f"{name}: it ended {run['state']} without reason or message"


def folder_faults(data: Path) -> Iterator[str]:
    """Folders of attempts that no attempt has, and marks of dispatchers that are gone."""
    with opened(data / "interlock.db") as db:
        known = {row["folder"] for row in db.execute("SELECT folder FROM attempts")}
        yield from (f"dispatcher {row['id']} is still signed on" for row in db.execute("SELECT id FROM instances"))
    for folder in (data / "attempts").glob("*/*"):
        if str(folder.relative_to(data)) not in known:
            yield f"{folder} belongs to no attempt"


def journal_faults(lines: Iterable[tuple[str, int, list[str]]], harmed: Iterable[str] = ()) -> Iterator[str]:
    """What agents themselves wrote, one line at their begin and one at their end: (run, fence, words), in order.

    A run's agent began at most once under a fence, wrote nothing after that of a later fence had begun, and ended well at most
    once. Of ``harmed`` runs (theirs were killed from outside) the last is not asked.
    """
    begun: set[tuple[str, int]] = set()
    latest: dict[str, int] = {}
    well: Counter[str] = Counter()
    for run, fence, words in lines:
        if words[0] == "begin":
            if (run, fence) in begun:
                yield f"the agent of {run} began twice under fence {fence}"
            begun.add((run, fence))
        if fence < latest.get(run, 0):
            yield f"the agent of {run} under fence {fence} said {words} after that of fence {latest[run]} had begun"
        latest[run] = max(fence, latest.get(run, 0))
        well[run] += words[:2] == ["end", "0"]
    spared = set(harmed)
    yield from (f"the agent of {run} ended well {n} times" for run, n in well.items() if n > 1 and run not in spared)
