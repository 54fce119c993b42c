"""One look at all processes, shared by whoever asks in the same turn; what it shows, and what it cannot."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from interlock.runtimes import attempt_lock, cgroup
from interlock.runtimes.process import ProcessStat, read_stat
from interlock.runtimes.snapshot import MARK, Snapshot, fresh_snapshot, held_locks, holds_lock, marked_folder


@pytest.fixture
def child() -> Iterator[ProcessStat]:
    """A process that is marked as an agent of the folder ``/marked``."""
    with subprocess.Popen(["sleep", "1000"], env={MARK: "/marked", "PATH": os.defpath}) as started:
        # for a moment after its exec it shows no environment yet
        end = time.monotonic() + 20
        while marked_folder(started.pid) != b"/marked":
            assert time.monotonic() < end
            time.sleep(0.001)
        stat = read_stat(started.pid)
        assert stat is not None
        yield stat
        started.kill()


def keys(stats: list[ProcessStat]) -> set[tuple[int, int]]:
    return {stat.key for stat in stats}


def test_marks_are_read_as_far_back_as_is_asked_for(child: ProcessStat, monkeypatch: pytest.MonkeyPatch) -> None:
    from interlock.runtimes import snapshot

    read: list[int] = []

    def counted(pid: int) -> bytes | None:
        read.append(pid)
        return marked_folder(pid)

    monkeypatch.setattr(snapshot, "marked_folder", counted)
    taken = Snapshot(above=child.pid - 1)
    assert taken.marked(b"/marked", child.start_ticks + 1) == []
    assert keys(taken.marked(b"/marked", child.start_ticks)) == {child.key}
    assert keys(taken.marked(b"/marked", 0)) == {child.key}
    assert taken.marked(b"/other", 0) == []
    assert read.count(child.pid) == 1, "each environment is read once"


async def test_who_asks_in_the_same_turn_gets_the_same() -> None:
    got: list[Snapshot] = []

    async def ask() -> None:
        got.append(await fresh_snapshot())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
    assert len(got) == 3
    assert got[0] is got[1] is got[2]
    assert await fresh_snapshot() is not got[0], "one that was begun after the call"


def test_locks_and_cgroups_are_looked_for_once(yard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from interlock.domain.attempt_files import AttemptFiles
    from interlock.runtimes import snapshot

    files = AttemptFiles(yard.folder())
    lock = attempt_lock.take(files)
    assert lock is not None
    try:
        taken = Snapshot(above=os.getpid() - 1)
        assert os.getpid() in {stat.pid for stat in taken.holding(files.lock)}
        calls = []
        monkeypatch.setattr(snapshot, "held_locks", lambda pid: calls.append(pid) or set())
        monkeypatch.setattr(cgroup, "existing", lambda: calls.append("cgroups") or {"attempt-1": Path("/x")})
        assert os.getpid() in {stat.pid for stat in taken.holding(files.lock)}
        assert taken.holding(Path("/elsewhere/lock")) == []
        assert taken.cgroup("attempt-1") == Path("/x")
        assert taken.cgroup("attempt-2") is None
        assert calls == ["cgroups"]
    finally:
        os.close(lock)


def test_of_a_process_that_is_gone_nothing_is_seen(yard: Any) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    lock = yard.folder() / "lock"
    lock.touch()
    assert held_locks(gone.pid) == set()
    assert not holds_lock(gone.pid, lock.stat())
    assert marked_folder(gone.pid) is None
