"""Cgroups as folders: what a system without them, with some of them, or with somebody's files in them makes of each call."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock.runtimes import cgroup

MOUNT = "41 31 0:38 / {mounted} rw,relatime - cgroup2 cgroup2 rw"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cgroup of this process, as /proc tells it: a plain folder, in which new folders stay empty."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "cgroup.procs").touch()
    told = {"mountinfo": MOUNT.format(mounted=tmp_path), "cgroup": "0::/own\n"}
    original = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path, *words, **more: told[path.name] if path.parts[1] == "proc" else original(path, *words, **more),
    )
    return own


def test_a_cgroup_that_nobody_can_be_moved_into_is_not_used(own: Path) -> None:
    assert cgroup.usable_parent() is None
    assert list((own / cgroup.PARENT).iterdir()) == [], "the probe is gone"


def test_no_place_in_the_own_cgroup(own: Path) -> None:
    (own / cgroup.PARENT).write_text("a file")
    assert cgroup.usable_parent() is None
    (own / "cgroup.procs").unlink()
    (own / cgroup.PARENT).unlink()
    assert cgroup.usable_parent() is None
    assert not (own / cgroup.PARENT).exists(), "nothing is tried where nobody may be moved"


def test_every_attempt_s_cgroup_is_found_by_its_name(own: Path, tmp_path: Path) -> None:
    (own / cgroup.PARENT / "attempt-1").mkdir(parents=True)
    (tmp_path / "other" / cgroup.PARENT / "attempt-2").mkdir(parents=True)
    (tmp_path / "other" / "attempt-3").mkdir()
    assert cgroup.existing() == {
        "attempt-1": own / cgroup.PARENT / "attempt-1",
        "attempt-2": tmp_path / "other" / cgroup.PARENT / "attempt-2",
    }


def test_a_system_without_mountinfo_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path, **_: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert cgroup.existing() == {}
    assert cgroup.usable_parent() is None


def test_a_parent_that_was_removed_is_made_again(tmp_path: Path) -> None:
    path = cgroup.make(tmp_path / "own" / cgroup.PARENT, "attempt-1")
    assert path == tmp_path / "own" / cgroup.PARENT / "attempt-1"
    assert path.is_dir()
    assert cgroup.make(path.parent, path.name) == path, "left by a crash"


def test_none_is_made_where_there_is_no_place_for_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert cgroup.make(tmp_path / "file", "attempt-1") is None
    assert cgroup.make(tmp_path / "dangling", "attempt-1") is None


def test_members_are_those_below_it_as_well(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "cgroup.procs").write_text("11\n12\n")
    (tmp_path / "inner" / "cgroup.procs").write_text("13\n")
    (tmp_path / "going").mkdir()
    assert sorted(cgroup.members(tmp_path)) == [11, 12, 13]
    assert cgroup.members(tmp_path / "gone") == []


def test_members_that_cannot_be_told_are_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").mkdir()
    with pytest.raises(IsADirectoryError):
        cgroup.members(tmp_path)


def test_a_kernel_that_cannot_kill_a_cgroup_says_so(tmp_path: Path) -> None:
    assert not cgroup.kill(tmp_path)
    (tmp_path / "cgroup.kill").symlink_to("/dev/full")
    assert not cgroup.kill(tmp_path)
    (tmp_path / "cgroup.kill").unlink()
    (tmp_path / "cgroup.kill").touch()
    assert cgroup.kill(tmp_path)
    assert (tmp_path / "cgroup.kill").read_bytes() == b"1"


def test_it_is_removed_with_the_empty_ones_inside(tmp_path: Path) -> None:
    path = tmp_path / "attempt-1"
    (path / "inner" / "innermost").mkdir(parents=True)
    assert cgroup.remove(path)
    assert not path.exists()
    assert cgroup.remove(path), "gone already"


def test_one_that_somebody_lives_in_stays(tmp_path: Path) -> None:
    path = tmp_path / "attempt-1"
    (path / "inner").mkdir(parents=True)
    (path / "inner" / "somebody").touch()
    assert not cgroup.remove(path)
    (path / "inner" / "somebody").rename(path / "somebody")
    assert not cgroup.remove(path)
    assert not (path / "inner").exists()
    assert not cgroup.remove(path)
    assert not cgroup.remove(path / "somebody"), "a file in its place"


def test_its_time_is_told_in_microseconds(tmp_path: Path) -> None:
    assert cgroup.cpu_microseconds(tmp_path) is None
    (tmp_path / "cpu.stat").write_text("nr_periods 0\nusage_usec 1234\nuser_usec 1000\n")
    assert cgroup.cpu_microseconds(tmp_path) == 1234
    (tmp_path / "cpu.stat").write_text("user_usec 1000\n")
    assert cgroup.cpu_microseconds(tmp_path) is None
