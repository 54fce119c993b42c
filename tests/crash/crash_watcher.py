"""A witness that knows nothing of Interlock: a process of its own that reads /proc and nothing else.

    python -I -S crash_watcher.py DATA REPORT LIMIT [TAG=LIMIT...] [--tags FILE]

It runs isolated and without site-packages, so that it cannot import what it watches. Every fault is a line of REPORT as soon
as it is certain; when standard input ends, a last line sums up. FILE has a line ``RUN TAG`` for every tag of a run.

An agent's process is one whose environment names a data folder, a run and a fence. A sample is a walk over /proc, and so
takes a moment; before two processes are said to have lived at once, both are looked at again. One that was seen in
the walk and is still there afterwards lived when the walk ended: that makes an accusation certain.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SAMPLE_SECONDS = 0.02
STRANGER_SECONDS = 0.5


@dataclass(frozen=True)
class Seen:
    """A living process of an agent. ``root``: it is the agent itself, which leads a session."""

    pid: int
    start_ticks: str
    run: str
    fence: int
    name: str
    root: bool = False


def look_at(pid: int, data: str) -> Seen | None:
    """The agent's process behind a pid; None when it is none (any more). Zombies and the dying have no environment."""
    try:
        content = _read(pid, "environ")
        if b"INTERLOCK_FENCE=" not in content:
            return None
        stat = _read(pid, "stat")
        arguments = _read(pid, "cmdline").split(b"\0")
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
    root = int(fields[3]) == pid and any(word.endswith(b"agent.sh") for word in arguments[1:2])
    return Seen(pid, fields[19].decode(), run, fence, name.decode(errors="replace"), root)


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        return file.read()


def pids() -> list[int]:
    """Every pid there is."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def agents_of(data: str) -> list[Seen]:
    """Every living agent's process of a data folder, by a fresh look."""
    return [seen for pid in pids() if (seen := look_at(pid, data)) is not None]


class Watch:
    """Samples /proc. ``faults`` are sentences; empty is good."""

    def __init__(self, data: str, limit: int, tag_limits: Mapping[str, int], tags: Path | None = None) -> None:
        self.data = data
        self.limit = limit
        self.tag_limits = tag_limits
        self.faults: list[str] = []
        self.samples = 0
        self.most = 0
        self.runs: set[str] = set()
        self.cgroups: set[str] = set()
        self._tags_file = tags
        self._tags: dict[str, set[str]] = {}
        self._read_to = 0
        self._known: set[tuple[int, str]] = set()
        self._strangers: dict[int, float] = {}

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
        self._remember(found)
        if self._complaints(found):
            # Those that are there still lived at one moment.
            self.faults += self._complaints([seen for seen in found if look_at(seen.pid, self.data) == seen])

    def _remember(self, found: list[Seen]) -> None:
        self.most = max(self.most, len({seen.run for seen in found}))
        for seen in found:
            self.runs.add(seen.run)
            if (seen.pid, seen.start_ticks) in self._known:
                continue
            self._known.add((seen.pid, seen.start_ticks))
            try:
                lines = _read(seen.pid, "cgroup").decode().splitlines()
            except OSError:
                continue
            # What moved there a moment later is told by another process of its tree.
            self.cgroups.update(line[3:] for line in lines if line.startswith("0::") and "/attempt-" in line)

    def _complaints(self, found: list[Seen]) -> list[str]:
        complaints = []
        fences: dict[str, set[int]] = {}
        roots: dict[tuple[str, int], list[int]] = {}
        for seen in found:
            fences.setdefault(seen.run, set()).add(seen.fence)
            if seen.root:
                roots.setdefault((seen.run, seen.fence), []).append(seen.pid)
        for run, some in fences.items():
            if len(some) > 1:
                who = [seen for seen in found if seen.run == run]
                complaints.append(f"run {run} lives under fences {sorted(some)} at once: {who}")
        for (run, fence), doubled in roots.items():
            if len(doubled) > 1:
                complaints.append(f"run {run} was started twice under fence {fence}: pids {doubled}")
        if len(fences) > self.limit:
            complaints.append(f"{len(fences)} runs live under a limit of {self.limit}: {sorted(fences)}")
        for tag, limit in self.tag_limits.items():
            tagged = [run for run in fences if tag in self._tags_of(run)]
            if len(tagged) > limit:
                complaints.append(f"{len(tagged)} runs with tag {tag} live under a limit of {limit}: {sorted(tagged)}")
        return complaints

    def _tags_of(self, run: str) -> set[str]:
        if run not in self._tags and self._tags_file is not None:
            with open(self._tags_file, "rb") as file:
                file.seek(self._read_to)
                for line in file.read().splitlines(keepends=True):
                    if line.endswith(b"\n"):
                        self._read_to += len(line)
                        name, tag = line.decode().split()
                        self._tags.setdefault(name, set()).add(tag)
        return self._tags.get(run, set())


def main() -> None:
    """Sample until standard input ends."""
    words = sys.argv[1:]
    tags = None
    if "--tags" in words:
        at = words.index("--tags")
        tags = Path(words[at + 1])
        del words[at : at + 2]
    data, report, limit, *others = words
    watch = Watch(
        data, int(limit), {tag: int(count) for tag, _, count in (word.partition("=") for word in others)}, tags
    )
    with open(report, "a", buffering=1) as out:
        print(json.dumps({"watches": os.getpid()}), file=out)
        while True:
            told = len(watch.faults)
            watch.sample()
            for fault in watch.faults[told:]:
                print(json.dumps({"fault": fault}), file=out)
            if select.select([sys.stdin], [], [], SAMPLE_SECONDS)[0] and not os.read(0, 4096):
                break
        sums = {"samples": watch.samples, "most": watch.most, "runs": len(watch.runs), "cgroups": sorted(watch.cgroups)}
        print(json.dumps(sums), file=out)


if __name__ == "__main__":
    main()
