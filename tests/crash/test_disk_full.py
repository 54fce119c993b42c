"""A data folder on a file system of its own that fills up, or is read-only: nothing is lost, and it goes on by itself."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from crash_yard import Yard, until

from interlock.domain.errors import Unavailable

libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def on_small_file_system(tmp_path: Path, mount: Callable[[Path], None]) -> Iterator[Yard]:
    """A yard whose folder is a mount of its own. The agents' and the test's own books stay where there is room."""
    place = tmp_path / "small"
    place.mkdir()
    mount(place)
    try:
        with Yard(place / "yard") as yard:
            for name in ("journal", "marks", "tags"):
                old = yard.base / name
                shutil.move(old, tmp_path / name)
                old.symlink_to(tmp_path / name)
            (yard.base / "go").symlink_to(tmp_path / "go")
            yard.log_folder = tmp_path
            yield yard
    finally:
        libc.umount2(os.fsencode(place), 2)


def mount_tmpfs(place: Path) -> None:
    """A few megabytes."""
    if libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, b"size=8m") != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {os.strerror(ctypes.get_errno())}")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Yard]:
    """A yard on a tmpfs of 8 MB."""
    with on_small_file_system(tmp_path, mount_tmpfs) as yard:
        yield yard


def ballast(yard: Yard) -> Path:
    return yard.base.parent / "ballast"


def fill(yard: Yard) -> None:
    """To the last block."""
    with ballast(yard).open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return


def submit_into_trouble(yard: Yard, kind: str, count: int) -> tuple[list[Any], int]:
    """Runs that were accepted, and how many were refused."""
    accepted: list[Any] = []
    refused = 0
    for _ in range(count):
        try:
            accepted += yard.submit(kind)
        except Unavailable:
            refused += 1
    return accepted, refused


def test_a_full_disk_pauses_and_nothing_acknowledged_is_lost(small: Yard) -> None:
    yard = small
    yard.configure(concurrency={"global": 4})
    with yard.watcher(4) as witness:
        daemon = yard.up()
        before = yard.submit(*["nap"] * 6, "waits")
        until(lambda: yard.begun(before[0]))
        yard.until_ready(before[-1])
        fill(yard)
        # It ends while nothing can be written.
        yard.go()
        accepted, refused = submit_into_trouble(yard, "blink", 20)
        until(lambda: refused or b"waits for the store" in daemon.log.read_bytes(), what="the outage")
        assert daemon.alive
        ballast(yard).unlink()
        for run in [*before, *accepted]:
            yard.until_state(run, "completed", seconds=60)
            assert yard.begun(run) == [1], "its work was done once, and is not asked for again"
        (after,) = yard.submit("blink")
        yard.until_state(after, "completed")
    assert witness.faults == []
    assert yard.faults() == []
    daemon.signal(signal.SIGTERM)
    assert daemon.until_ended() == 0
    assert yard.processes() == []


def test_whoever_asks_is_told_that_the_disk_is_full(small: Yard) -> None:
    yard = small
    yard.configure(concurrency={"global": 1})
    daemon = yard.up()
    running, waiting = yard.submit("waits", "blink")
    yard.until_ready(running)
    fill(yard)
    yard.go()
    until(lambda: b"waits for the store" in daemon.log.read_bytes(), what="the outage")
    assert b"the disk is full" in daemon.log.read_bytes()
    refused = yard.run_command("add", "one more")
    assert refused.returncode == 5
    assert "the disk is full" in refused.stderr
    assert "Traceback" not in refused.stderr
    listed = yard.run_command("ps")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "the disk is full" in listed.stdout
    assert "blink" in listed.stdout
    why = yard.run_command("why", f"#{waiting.number}")
    assert why.returncode == 0, why.stderr
    assert "disk is full" in why.stdout, why.stdout
    ballast(yard).unlink()
    for run in (running, waiting):
        yard.until_state(run, "completed", seconds=60)
        assert yard.begun(run) == [1]


@pytest.mark.parametrize("end", ["killed", "alive"])
def test_a_disk_that_is_full_again_and_again_under_load(small: Yard, end: str) -> None:
    """With and without a daemon that dies while it is full: the next one cannot even sign on before there is room."""
    yard = small
    yard.configure(concurrency={"global": 4, "perTag": {"gpu": 1}})
    accepted: list[Any] = []
    with yard.watcher(4, gpu=1) as witness:
        daemon = yard.up()
        for _ in range(3):
            accepted += yard.submit("blink", "writes", "flaky", "nap")
            fill(yard)
            more, refused = submit_into_trouble(yard, "blink", 6)
            accepted += more
            if end == "killed":
                daemon.kill()
                daemon = yard.daemon()
            else:
                log = daemon.log
                until(lambda refused=refused, log=log: refused or b"waits for the store" in log.read_bytes())
                assert daemon.alive
            ballast(yard).unlink()
            if not daemon.alive:
                assert b"disk is full" in daemon.log.read_bytes()
                daemon = yard.daemon()
            until(lambda daemon=daemon: not daemon.alive or b"is up" in daemon.log.read_bytes())
            if not daemon.alive:
                daemon = yard.up()
        for run in accepted:
            yard.until_state(run, "completed", seconds=60)
    assert witness.faults == []
    assert yard.faults() == []


def test_a_read_only_folder_is_said_and_questions_are_answered(small: Yard) -> None:
    """Remounted while nothing has it open for writing (the system refuses it else), and back."""
    yard = small
    daemon = yard.up()
    done, waits = yard.submit("blink", "waits")
    yard.until_state(done, "completed")
    yard.until_ready(waits)
    assert subprocess.run(["mount", "-o", "remount,ro", yard.base.parent], capture_output=True, check=False).returncode
    daemon.kill()
    yard.go()
    until(lambda: not yard.processes())
    yard.store.close()
    subprocess.run(["mount", "-o", "remount,ro", yard.base.parent], check=True)
    try:
        up = yard.run_command("up")
        assert up.returncode == 5, up
        assert "read-only" in up.stderr.lower()
        assert "Traceback" not in up.stderr
        shown = yard.run_command("show", f"#{done.number}")
        assert shown.returncode == 0, shown.stderr
        assert "completed" in shown.stdout
        refused = yard.run_command("add", "one more")
        assert refused.returncode == 5
        assert "read-only" in refused.stderr.lower()
    finally:
        subprocess.run(["mount", "-o", "remount,rw", yard.base.parent], check=True)
    yard.reopen()
    yard.up()
    assert yard.begun(yard.until_state(waits, "completed")) == [1]
    assert yard.faults() == []


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[tuple[Yard, Callable[[], None], Callable[[], None]]]:
    """A yard on an ext4 of its own, what makes the kernel go read-only on it as on a fault of the disk, and what mends it."""
    image, place = tmp_path / "image", tmp_path / "small"
    with image.open("wb") as file:
        file.truncate(24 * 1024 * 1024)

    def mount(at: Path) -> None:
        for command in (["mkfs.ext4", "-q", "-F", image], ["mount", "-o", "loop,errors=remount-ro", image, at]):
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except OSError as error:
                pytest.skip(f"{command[0]} cannot be run here: {error}")
            if done.returncode:
                pytest.skip(f"no loop file system here: {done.stderr}")
        if not trigger().exists():
            pytest.skip("this kernel has no trigger_fs_error")

    def trigger() -> Path:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        device = next(words[0] for words in mounts if words[1] == str(place))
        return Path("/sys/fs/ext4", os.path.basename(device), "trigger_fs_error")

    def go_read_only() -> None:
        trigger().write_text("a fault that a test made")

    def mend() -> None:
        subprocess.run(["umount", place], check=True)
        subprocess.run(["e2fsck", "-f", "-p", image], capture_output=True, check=False)
        subprocess.run(["mount", "-o", "loop", image, place], check=True)

    with on_small_file_system(tmp_path, mount) as yard:
        yield yard, go_read_only, mend


def test_a_disk_that_goes_read_only_under_load(broken: Any) -> None:
    yard, go_read_only, mend = broken
    yard.configure(concurrency={"global": 3})
    with yard.watcher(3) as witness:
        daemon = yard.up()
        before = yard.submit("blink", "blink", "writes")
        for run in before:
            yard.until_state(run, "completed")
        started = yard.submit("waits", "nap")
        queued = yard.submit("blink", "blink", "blink")
        yard.until_ready(started[0])
        go_read_only()
        accepted, _ = submit_into_trouble(yard, "blink", 3)
        until(lambda: b"waits for the store" in daemon.log.read_bytes(), what="the outage")
        assert daemon.alive
        yard.go()
        until(lambda: not yard.processes())
        daemon.kill()
        yard.store.close()
        mend()
        yard.reopen()
        yard.up()
        for run in [*before, *started, *queued, *accepted]:
            yard.until_state(run, "completed")
            # Whose exit status could be written nowhere is lost, and tried again; of what had ended before nobody is.
            states = [str(attempt.state) for attempt in yard.attempts(run)]
            assert states[-1] == "succeeded"
            assert set(states[:-1]) <= (set() if run in before else {"lost", "interrupted"})
    assert witness.faults == []
    assert yard.faults() == []
