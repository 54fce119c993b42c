"""What a finished run leaves on the disk, and that retention bounds it: pages of deleted runs are used again."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import trio

from benchmarks.daemons import checkpoint
from benchmarks.filling import SETTINGS
from benchmarks.lifecycles import AT_ONCE, drive
from benchmarks.probe import Plan, say
from benchmarks.running import interlock_run
from benchmarks.table import Bound, Row
from interlock.domain.places import DATA_FOLDER, DATABASE
from interlock.service import Service
from interlock.store.clock import SystemClock
from interlock.store.sqlite import SqliteStore

ROUNDS = 5


def rows(plan: Plan) -> list[Row]:
    """Bytes per finished run, in the database and beside it; the file's size over rounds of work and pruning."""
    each = plan.size(60, 2)
    runs = each * AT_ONCE
    say(f"file size: {ROUNDS} rounds of {runs:,} runs")
    folder = plan.place("keep")
    with closing(SqliteStore(folder, create=True)):
        pass
    database = folder / DATABASE
    empty, sizes = checkpoint(database), []
    for _ in range(ROUNDS):
        trio.run(lambda: drive(folder, each, warm=0))
        sizes.append(checkpoint(database))
        trio.run(_prune_all, folder)
    beside, tasks = _beside(plan), plan.size(200, 5)
    shutil.rmtree(folder)
    return [
        Row(
            what="database per finished run (5 events, 1 attempt, indexes), checkpointed",
            figure=f"{(sizes[0] - empty) / runs:,.0f} bytes",
            against="stated",
        ),
        Row(
            what=f"attempt folder per finished run (`true`, {tasks} tasks)",
            figure=f"{beside[0]:,.0f} bytes of content, {beside[1]:,.0f} on disk, {beside[2]:.1f} files",
            against="stated",
        ),
        Row(
            what=f"database file after {ROUNDS} rounds of {runs:,} runs, each pruned before the next",
            figure=f"{sizes[-1] / 2**20:.1f} MiB",
            against=f"after one ({sizes[0] / 2**20:.1f} MiB)",
            value=sizes[-1] / sizes[0],
            bound=Bound(must=1.1, stretch=1.02, at_most=True),
        ),
        Row(
            what=f"data folder after `interlock prune` of {tasks} runs: attempt folders left",
            figure=f"{beside[3]:.0f}",
            against="none",
        ),
    ]


async def _prune_all(folder: Path) -> None:
    with closing(SqliteStore(folder)) as store:
        service = Service(store, SystemClock(), SETTINGS)
        while await service.prune(service.clock.now_ms() + 60_000):
            pass


def _beside(plan: Plan) -> tuple[float, float, float, float]:
    """Per run: bytes of content, bytes on disk, files; and how many attempt folders `interlock prune` leaves."""
    tasks, place = plan.size(200, 5), plan.place("folders")
    interlock_run(place, tasks)
    attempts = place / DATA_FOLDER / "attempts"
    found = [path.lstat() for path in attempts.glob("*/*/**/*")]
    folders = [path.lstat() for path in attempts.glob("*/*")]
    content = sum(each.st_size for each in found)
    on_disk = sum(each.st_blocks * 512 for each in [*found, *folders])
    time.sleep(1.5)
    subprocess.run(
        [sys.executable, "-m", "interlock", "prune", "--older-than", "1s"],
        cwd=place,
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    left = len(list(attempts.glob("*/*")))
    return content / tasks, on_disk / tasks, len(found) / tasks, left
