"""Runs the benchmarks and prints their table."""

from __future__ import annotations

import argparse
import datetime as dt
from pathlib import Path

from benchmarks import choosing, latency, lifecycles, running
from benchmarks.probe import fsync_ms, machine

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
HEAD = """# Performance

Written by `python -m benchmarks --write`. Every figure that means something is a ratio within one run: the machine is shared,
and its disk has good and bad moments (see the fsync probe). Everything durable is so with `synchronous=FULL`: what was
acknowledged is on disk.
"""


def main() -> None:
    """Run, print, and write if asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/performance.md")
    parser.add_argument("--small", action="store_true", help="leave out what takes minutes (a million queued)")
    chosen = parser.parse_args()
    before = fsync_ms()
    rows = [*latency.rows(), *running.rows(), *lifecycles.rows()]
    rows += choosing.rows((1_000, 100_000) if chosen.small else (1_000, 100_000, 1_000_000))
    after = fsync_ms()
    lines = [
        f"Measured {dt.datetime.now(dt.UTC):%Y-%m-%d} on {machine()}; "
        f"a 4 KiB fdatasync took {before:.2f} ms before and {after:.2f} ms after.",
        "",
        "| what | figure | against |",
        "| --- | --- | --- |",
        *(f"| {what} | {figure} | {against} |" for what, figure, against in rows),
    ]
    print("\n".join(lines))
    if chosen.write:
        PAGE.write_text(HEAD + "\n" + "\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
