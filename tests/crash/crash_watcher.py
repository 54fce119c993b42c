"""A witness that knows nothing of Interlock: it reads /proc and nothing else.

An agent's process is one whose environment names a data folder, a run and a fence. A sample is a walk over /proc, and so
takes a moment; before two processes are said to have lived at once, both are looked at again. One that was seen in
the walk and is still there afterwards lived when the walk ended: that makes an accusation certain.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

SAMPLE_SECONDS = 0.02
STRANGER_SECONDS = 0.5


@dataclass(frozen=True)
class Seen:
    """A living process of an agent."""

    pid: int
    start_ticks: str
    run: str
    fence: int
    name: str


def look_at(pid: int, data: str) -> Seen | None:
    """The agent's process behind a pid; None when it is none (any more). Zombies and the dying have no environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            content = file.read()
        if b"INTERLOCK_FENCE=" not in content:
            return None
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            stat = file.read()
    except OSError:
        return None
    environment = dict(entry.split(b"=", 1) for entry in content.split(b"\0") if b"=" in entry)
    if environment.get(b"INTERLOCK_DATA", b"").decode() != data or b"INTERLOCK_RUN_ID" not in environment:
        return None
    name, rest = stat.split(b"(", 1)[1].rsplit(b")", 1)
    fields = rest.split()
    if fields[0] in (b"Z", b"X", b"x"):
        return None
    run, fence = environment[b"INTERLOCK_RUN_ID"].decode(), int(environment[b"INTERLOCK_FENCE"])
    return Seen(pid, fields[19].decode(), run, fence, name.decode(errors="replace"))


def pids() -> list[int]:
    """Every pid there is."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def agents_of(data: str) -> list[Seen]:
    """Every living agent's process of a data folder, by a fresh look."""
    return [seen for pid in pids() if (seen := look_at(pid, data)) is not None]


class Watcher:
    """Samples /proc in a thread of its own. ``faults`` are sentences; empty is good."""

    def __init__(
        self, data: str, limit: int, tag_limits: Mapping[str, int], tags_of: Callable[[str], Iterable[str]]
    ) -> None:
        self.data = data
        self.limit = limit
        self.tag_limits = tag_limits
        self.tags_of = tags_of
        self.faults: list[str] = []
        self.samples = 0
        self.most = 0
        self.live: list[Seen] = []
        self.runs_seen: set[str] = set()
        self._strangers: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self.sample()

    def sample(self) -> None:
        """One look, and what is wrong with what it shows."""
        now = time.monotonic()
        found: list[Seen] = []
        for pid in pids():
            # A pid that was no agent's for a while does not become one within the next half second.
            known = self._strangers.get(pid)
            if known is not None and 0.2 < now - known < STRANGER_SECONDS:
                continue
            seen = look_at(pid, self.data)
            if seen is not None:
                self._strangers.pop(pid, None)
                found.append(seen)
            elif known is None or now - known >= STRANGER_SECONDS:
                self._strangers[pid] = now
        if len(self._strangers) > 5000:
            self._strangers.clear()
        self.samples += 1
        self.live = found
        self.runs_seen.update(seen.run for seen in found)
        self.most = max(self.most, len({seen.run for seen in found}))
        if self._complaints(found):
            # Those that are there still lived at one moment.
            self.faults += self._complaints([seen for seen in found if look_at(seen.pid, self.data) == seen])

    def _complaints(self, found: list[Seen]) -> list[str]:
        complaints = []
        fences: dict[str, set[int]] = {}
        for seen in found:
            fences.setdefault(seen.run, set()).add(seen.fence)
        for run, some in fences.items():
            if len(some) > 1:
                who = [seen for seen in found if seen.run == run]
                complaints.append(f"run {run} lives under fences {sorted(some)} at once: {who}")
        if len(fences) > self.limit:
            complaints.append(f"{len(fences)} runs live under a limit of {self.limit}: {sorted(fences)}")
        for tag, limit in self.tag_limits.items():
            tagged = [run for run in fences if tag in self.tags_of(run)]
            if len(tagged) > limit:
                complaints.append(f"{len(tagged)} runs with tag {tag} live under a limit of {limit}: {sorted(tagged)}")
        return complaints
