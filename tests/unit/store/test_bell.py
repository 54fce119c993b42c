"""The bell: heard across processes, wherever the folder is, and never in the way."""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

sys.path.insert(0, str(Path(__file__).parent))

from store_files import python

from interlock.store.bell import Bell


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the sockets are; not made yet."""
    return tmp_path / "bells"


@pytest.fixture
def bell(folder: Path) -> Iterator[Bell]:
    """The bell of this process."""
    made = Bell(folder)
    yield made
    made.close()


@pytest.fixture
def other(folder: Path) -> Iterator[Bell]:
    """The bell of another process: one does not hear itself."""
    made = Bell(folder)
    yield made
    made.close()


def rings(heard: socket.socket) -> int:
    """How many rings wait to be heard."""
    count = 0
    while select.select([heard], [], [], 0)[0]:
        heard.recv(16)
        count += 1
    return count


def test_a_ring_is_heard_by_all_others(bell: Bell, other: Bell) -> None:
    first, second, own = other.listen(), other.listen(), bell.listen()
    assert first and second and own  # noqa: PT018 - all are needed for what follows
    bell.ring()
    assert [rings(heard) for heard, _ in (first, second, own)] == [1, 1, 0]
    bell.ring()
    bell.ring()
    assert rings(first[0]) == 2
    for _, close in (first, second, own):
        close()


RING = """
import sys
from pathlib import Path
from interlock.store.bell import Bell
bell = Bell(Path(sys.argv[1]))
bell.ring()
bell.close()
"""


async def test_another_process_is_heard(bell: Bell, folder: Path) -> None:
    listening = bell.listen()
    assert listening
    heard, close = listening
    process = python(RING, folder)
    with trio.fail_after(60):
        await trio.lowlevel.wait_readable(heard)
    assert await trio.to_thread.run_sync(process.communicate) == ("", "")
    assert rings(heard) == 1
    close()


HEAR = """
import select, sys
from pathlib import Path
from interlock.store.bell import Bell
bell = Bell(Path(sys.argv[1]))
heard, close = bell.listen()
print("listening", flush=True)
select.select([heard], [], [])
print("heard", flush=True)
close()
bell.close()
"""


def test_another_process_hears(bell: Bell, folder: Path) -> None:
    process = python(HEAR, folder)
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    bell.ring()
    assert process.stdout.readline() == "heard\n"
    assert process.communicate(timeout=60) == ("", "")
    assert list(folder.iterdir()) == []


def test_a_path_longer_than_a_sockets(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a folder with a long name"] * 8, "bells")
    deep.parent.mkdir(parents=True)
    assert len(os.fsencode(deep)) > 200
    bell, other = Bell(deep), Bell(deep)
    listening = other.listen()
    assert listening
    bell.ring()
    assert rings(listening[0]) == 1
    listening[1]()
    assert list(deep.iterdir()) == []
    bell.close()
    other.close()


def test_sockets_of_the_dead_are_removed(bell: Bell, other: Bell, folder: Path) -> None:
    folder.mkdir()
    for name in ("1-dead", "2-dead"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
            dead.bind(f"{folder}/{name}")
    (folder / "3-file").touch()
    (folder / "4-folder").mkdir()
    listening = other.listen()
    assert listening
    bell.ring()
    assert rings(listening[0]) == 1
    left = {path.name for path in folder.iterdir()}
    assert not left & {"1-dead", "2-dead", "3-file"}
    assert len(left) == 2
    bell.ring()
    assert rings(listening[0]) == 1
    listening[1]()


def test_a_listener_that_does_not_listen_blocks_nobody(bell: Bell, other: Bell) -> None:
    deaf, awake = other.listen(), other.listen()
    assert deaf and awake  # noqa: PT018 - both are needed for what follows
    for _ in range(2000):
        bell.ring()
        assert rings(awake[0]) == 1
    assert 0 < rings(deaf[0]) < 2000
    bell.ring()
    assert rings(deaf[0]) == 1
    for _, close in (deaf, awake):
        close()


def test_nobody_listens(bell: Bell, folder: Path) -> None:
    bell.ring()
    assert not folder.exists()
    listening = bell.listen()
    assert listening
    bell.ring()
    listening[1]()
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "bells", tmp_path / "file", tmp_path / "no" / "where"):
        bell = Bell(folder)
        assert bell.listen() is None
        bell.ring()
        bell.close()


def test_a_folder_in_which_nothing_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc is read-only to everyone, root too."""
    bell = Bell(Path("/proc/self/task"))
    assert bell.listen() is None
    bell.ring()
    bell.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write whatever the permissions say")
def test_a_read_only_folder(folder: Path, bell: Bell, other: Bell) -> None:
    folder.mkdir(mode=0o500)
    assert bell.listen() is None
    bell.ring()


def test_a_listener_that_closes_after_its_bell(
    bell: Bell, other: Bell, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not take the name for a file of the working folder."""
    monkeypatch.chdir(tmp_path)
    listening = bell.listen()
    assert listening
    (name,) = [path.name for path in folder.iterdir()]
    (tmp_path / name).write_text("precious")
    bell.close()
    listening[1]()
    assert (tmp_path / name).read_text() == "precious"
    other.ring()
    assert list(folder.iterdir()) == []


def test_the_folder_is_for_its_owner_only(bell: Bell, folder: Path) -> None:
    listening = bell.listen()
    assert listening
    assert folder.stat().st_mode & 0o777 == 0o700
    listening[1]()
