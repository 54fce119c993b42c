"""Runs the benchmarks and prints their table."""

from __future__ import annotations

import argparse
import datetime as dt
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks import choosing, draining, fleet, gateway, keeping, latency, lifecycles, running
from benchmarks.probe import Plan, fsync_ms, machine, say
from benchmarks.table import Row, table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
HEAD = """# Performance

Written by `python -m benchmarks --write`. Every figure that means something is a ratio within one run: the machine is shared,
and its disk has good and bad moments (the last column: a 4 KiB fdatasync before and after the rows of a group). What is compared
was measured in turn; a ratio is the median of the rounds' ratios. Everything durable is so with `synchronous=FULL`: what was
acknowledged is on disk. How each row is measured stands at the top of its module in `benchmarks/`.
"""
GROUPS: dict[str, Callable[[Plan], list[Row]]] = {
    "lifecycles": lifecycles.rows,
    "drain": draining.rows,
    "latency": latency.rows,
    "run": running.rows,
    "choose": choosing.rows,
    "fleet": fleet.rows,
    "gateway": gateway.rows,
    "size": keeping.rows,
}


def measure(names: list[str], plan: Plan) -> list[Row]:
    """The rows of some groups, each with the probe of its group."""
    found: list[Row] = []
    for name in names:
        say(f"{name}:")
        before = fsync_ms(plan.folder)
        rows = GROUPS[name](plan)
        probe = f"{before:.2f} / {fsync_ms(plan.folder):.2f}"
        found += [msgspec.structs.replace(row, probe=probe) for row in rows]
    return found


def main() -> None:
    """Run, print, and write if asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=GROUPS, metavar="GROUP", help=f"one of {', '.join(GROUPS)}")
    parser.add_argument("--times", type=int, default=3, help="rounds; medians are taken [default: 3]")
    parser.add_argument("--small", action="store_true", help="every row once with little work; nothing is judged")
    parser.add_argument(
        "--folder", type=Path, help="measure on the file system of this folder [default: the temporary one]"
    )
    parser.add_argument("--write", action="store_true", help="write docs/performance.md")
    chosen = parser.parse_args()
    if chosen.times < 1:
        parser.error("--times: at least 1")
    if chosen.write and (chosen.small or chosen.only):
        parser.error("--write: only of the whole suite, in full")
    with tempfile.TemporaryDirectory(prefix="interlock-bench-", dir=chosen.folder) as folder:
        plan = Plan(folder=Path(folder), small=chosen.small, times=1 if chosen.small else chosen.times)
        rows = measure(chosen.only or list(GROUPS), plan)
    head = f"Measured {dt.datetime.now(dt.UTC):%Y-%m-%d} on {machine()}; rounds: {plan.times}."
    text = f"{head}\n\n{table(rows, judged=not plan.small)}\n"
    print(text, end="")
    if chosen.write:
        PAGE.write_text(f"{HEAD}\n{text}", "utf-8")


if __name__ == "__main__":
    main()
