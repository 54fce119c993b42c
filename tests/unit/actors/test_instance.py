"""Who lives: the lock says so, and nothing else."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from interlock.actors import instance
from interlock.actors.instance import InstanceLock, alive_instances, is_alive
from interlock.domain.errors import Conflict, Unavailable
from interlock.domain.run import Instance


def test_an_instance_lives_as_long_as_its_lock(tmp_path: Path) -> None:
    lock = InstanceLock(tmp_path, alone=True)
    assert lock.id.split(":")[1] == str(os.getpid())
    assert is_alive(tmp_path, lock.id)
    lock.release()
    assert not is_alive(tmp_path, lock.id)


def test_a_second_one_is_refused_by_name_or_gets_the_next_place(tmp_path: Path) -> None:
    first = InstanceLock(tmp_path, alone=True)
    with pytest.raises(Conflict, match=first.id):
        InstanceLock(tmp_path, alone=True)
    peer = InstanceLock(tmp_path, alone=False)
    assert (first.ordinal, peer.ordinal) == (0, 1)
    assert is_alive(tmp_path, first.id)
    assert is_alive(tmp_path, peer.id)
    first.release()
    assert not is_alive(tmp_path, first.id)
    assert is_alive(tmp_path, peer.id)
    peer.release()


def test_a_held_lock_speaks_for_its_holder_only(tmp_path: Path) -> None:
    lock = InstanceLock(tmp_path, alone=True)
    host, _, stable = lock.id.split(":")
    assert not is_alive(tmp_path, f"{host}:1:{stable}")
    lock.release()


@pytest.mark.parametrize("odd", ["", "nonsense", "a:1:abc.x", "a:1:abc.999", "a:1:abc.²", "a:1:abc.-1"])
def test_an_odd_id_is_not_alive(tmp_path: Path, odd: str) -> None:
    assert not is_alive(tmp_path, odd)


def test_the_id_is_stable_for_host_and_folder(tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        lock = InstanceLock(tmp_path / "." if ids else tmp_path, alone=True)
        ids.append(lock.id)
        lock.release()
    assert ids[0] == ids[1]


def test_a_process_that_is_killed_lives_no_more(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from interlock.actors.instance import InstanceLock;"
        "print(InstanceLock(pathlib.Path(sys.argv[1]), alone=True).id, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert is_alive(tmp_path, name)
    finally:
        process.kill()
        process.communicate()
    assert not is_alive(tmp_path, name)
    InstanceLock(tmp_path, alone=True).release()


def test_who_only_looks_never_keeps_a_daemon_from_starting(tmp_path: Path) -> None:
    InstanceLock(tmp_path, alone=True).release()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            is_alive(tmp_path, "host:1:abc.0")

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(300):
            lock = InstanceLock(tmp_path, alone=True)
            assert lock.ordinal == 0
            lock.release()
    finally:
        over.set()
        for looker in lookers:
            looker.join()


def test_a_lock_that_is_shared_for_good_is_refused_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "LOOKS", 10)
    InstanceLock(tmp_path, alone=True).release()
    with open(tmp_path / "instances" / "0.lock", "rb") as shared:
        fcntl.flock(shared, fcntl.LOCK_SH)
        with pytest.raises(Conflict):
            InstanceLock(tmp_path, alone=True)


def test_a_folder_that_cannot_be_written_is_an_outage(tmp_path: Path) -> None:
    (tmp_path / "instances").write_text("a file in its place")
    with pytest.raises(Unavailable):
        InstanceLock(tmp_path, alone=True)


def test_alive_instances_are_those_that_live(tmp_path: Path) -> None:
    lock = InstanceLock(tmp_path, alone=True)
    made = [
        Instance(id=name, host="h", pid=1, boot_id="b", ordinal=0, state="active")
        for name in (lock.id, "h:1:x.0", "h:1:x.1")
    ]
    assert [one.id for one in alive_instances(tmp_path, made)] == [lock.id]
    lock.release()
