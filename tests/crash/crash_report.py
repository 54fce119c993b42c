"""Writes docs/reliability.md from what campaigns left: ``python tests/crash/crash_report.py [RESULTS.jsonl] [--check]``."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "reliability.md"
RESULTS = DOCS / "reliability.jsonl"
COMMAND = (
    "python tests/crash/crash_campaign.py docs/reliability.jsonl --kills 1000 && python tests/crash/crash_report.py"
)
DAEMON = ("at ", "inside ", "one of", "the other", "asleep", "beside")
MODES = {
    "cgroup": "agents are commands, held in cgroups",
    "plain": "agents are commands, held without cgroups",
    "pull": "agents come from outside and pull",
}

HEAD = """\
# Reliability

<!-- Written by tests/crash/crash_report.py from reliability.jsonl; do not edit. -->

What is promised: nothing that was acknowledged is lost; a run completes once; at every moment at most one process tree of a
local run lives, and no limit is exceeded; no process is left over; slots equal a recount; the event log replays to the states
in the table. This page says how that was tried, and what came of it.

## The campaign

Real daemons, real agents, real clients, `kill -9`. In rounds chosen by a seed, a daemon dies at a named point of its code, at a
random moment, inside a commit or a checkpoint, beside a second one on the same folder, or in its sleep (SIGSTOP); agents
die, or their keepers, or whole trees; agents from outside die with their claims, or sleep past their leases and
come back; clients that submit, cancel, interrupt, hold and set priorities die in the middle of what they ask for.
All the while a process that shares no code with Interlock samples `/proc`. After every round, and at the end, the books are
balanced by a program that knows the database's tables and the table of the state diagrams, and nothing else of Interlock:

- everything that a client was told was accepted is there, and every cancel that was acknowledged had its effect;
- what agents wrote down themselves shows no second begin under a claim, no line of an earlier attempt after a later one
  had begun, no second good end;
- every event of the log is a move of the diagram from where the run was, under the fence of then; it leads to the state that the
  run has; after no event were more runs active than a limit allows;
- slots and their counts equal a recount from the runs; attempts are numbered without a gap, and ended in words;
- no agent's process, no cgroup, no folder without an attempt, no dispatcher that is signed on is left.
"""

AGAIN = f"""\
## To repeat it

```sh
{COMMAND}
```

It runs unattended, in chunks of 20 kills; broken off, it goes on where it was (without the file: from the beginning). A
chunk that does not balance leaves its folder, its seed and its round. Forty kills are part of the tests: `pytest tests/crash`
(`INTERLOCK_CRASH_KILLS`, `INTERLOCK_CRASH_SEED`).
"""

BESIDE = (
    (
        "the disk fills up: once, again and again, with and without a daemon that dies meanwhile",
        "nothing acknowledged is lost, no work is done twice; `interlock why` and `interlock ps` say that the disk is full; "
        "it goes on by itself",
    ),
    (
        "the file system goes read-only under load; is remounted read-only, and back",
        "the same; questions are answered all the while; an exit status that could not be written down counts as lost",
    ),
    (
        "the wall clock jumps by an hour, both ways",
        "no timeout, deadline, stall, lease or backoff is early or late by it; a time that somebody asked for stays",
    ),
    (
        "a daemon stands still for longer than a lease",
        "it keeps its runs, since it holds its lock; taken from it by force, they are others', and the late writer is refused",
    ),
    (
        "an agent from outside stands still for longer than its lease and grace",
        "its late completion is `stale_claim`; the other's counts",
    ),
    (
        "two daemons on one folder",
        "the second one is refused in words; peers hold the limits together, each run runs once",
    ),
    ("a daemon dies while it makes its database", "the next one makes it"),
)

LIMITS = """\
## What it does not show

A killed process leaves its writes to the system; a loss of power does not. Commits are made with `synchronous=FULL`, and
whether the disk keeps what it has acknowledged is the disk's affair: the tests do not pull its plug. One host, local file
systems; no network file system. A remote agent's work may be done twice (its right has lapsed, its process cannot be seen);
its result is recorded once.
"""


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown."""
    columns = list(head)
    lines = [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    return "\n".join([*lines, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)])


def totals(results: list[dict[str, Any]]) -> str:
    """The sums of all chunks, by mode."""

    modes = [mode for mode in MODES if any(result["mode"] == mode for result in results)]

    def row(words: str, number: Callable[[dict[str, Any]], int]) -> list[object]:
        of = [sum(number(result) for result in results if mode in (None, result["mode"])) for mode in (None, *modes)]
        return [words, *of]

    names = {
        "daemon_kills": "daemons killed",
        "rounds": "rounds",
        "runs": "runs",
        "acknowledged": "acknowledged",
        "attempts": "attempts",
        "adopted": "takeovers of a live agent or its remains",
        "events": "events replayed",
        "operations": "operations acknowledged",
        "fenced": "late writers refused",
        "samples": "looks at /proc",
    }
    rows = [row(words, itemgetter(name)) for name, words in names.items()]
    ends = [
        row(f"ended {state}", lambda result, state=state: result["states"].get(state, 0))
        for state in ("completed", "failed", "cancelled", "timed_out")
    ]
    return table(["what", "all", *modes], [*rows[:4], *(end for end in ends if end[1]), *rows[4:]])


def written(results: list[dict[str, Any]]) -> str:
    """The page."""
    faults = [fault for result in results for fault in result["faults"]]
    kills = Counter[str]()
    for result in results:
        kills.update(result["kills"])
    days = sorted({result["day"] for result in results})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    machines = sorted({result["machine"] for result in results})
    recovery = max(result["longest_recovery_seconds"] for result in results)
    of_daemons = {kind: n for kind, n in kills.items() if kind.startswith(DAEMON)}
    others = {kind: n for kind, n in kills.items() if kind not in of_daemons}
    verdict = (
        "**Everything balanced**: nothing acknowledged lost, nothing completed twice, no run alive twice, no orphan."
    )
    if faults:
        verdict = f"**{len(faults)} faults** in {sum(bool(result['faults']) for result in results)} chunks:"
    parts = [
        HEAD,
        "## Its result\n",
        f"{sum(of_daemons.values())} daemons killed in {len(results)} chunks with seeds {results[0]['seed']} to "
        f"{results[-1]['seed']}, {when}, on {'; '.join(machines)}, shared with other work. {verdict}\n",
        *(f"- {fault.splitlines()[0]}\n" for fault in faults),
        "\n".join(f"- `{mode}`: {words}" for mode, words in MODES.items()) + "\n",
        totals(results) + "\n",
        f"The longest way from the start of a killed daemon's successor to the moment at which it looked after everything that was "
        f"left: {recovery:g} s, the start of Python included; {sum(r['recoveries'] for r in results)} were timed.\n",
        "### How daemons died\n",
        table(["where", "times"], sorted(of_daemons.items(), key=lambda pair: (-pair[1], pair[0]))) + "\n",
        "### What else was killed, or slept\n",
        table(["who", "times"], sorted(others.items(), key=lambda pair: (-pair[1], pair[0]))) + "\n",
        AGAIN,
        "## Beside the campaign\n",
        "`tests/crash` has, with real processes as well:\n",
        table(("what happens", "what is shown"), BESIDE) + "\n",
        LIMITS,
    ]
    return "\n".join(parts)


def main() -> int:
    """Write it, or say whether it is current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--check", action="store_true")
    wanted = parser.parse_args()
    results = sorted((json.loads(line) for line in wanted.results.read_text().splitlines()), key=lambda r: r["seed"])
    page = written(results)
    if wanted.check:
        if PAGE.read_text() == page:
            return 0
        print(f"{PAGE} is not what {wanted.results} says: run this without --check")
        return 1
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
