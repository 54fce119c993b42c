"""Submits runs one after the other and prints the id of each as soon as it is acknowledged: crash_submitter.py DATA AGENT N."""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from interlock.domain.settings import Settings
from interlock.domain.task import Task
from interlock.service import Service
from interlock.store.clock import SystemClock
from interlock.store.sqlite import SqliteStore


async def main() -> None:
    """Until all are in, or the process is killed."""
    data, agent, count = sys.argv[1:]
    store = SqliteStore(Path(data))
    service = Service(store, SystemClock(), Settings())
    for index in range(int(count)):
        submitted = await service.submit(Task(title=f"{agent} from outside {index}", agent=agent))
        print(submitted.run.id, flush=True)
    store.close()


trio.run(main)
