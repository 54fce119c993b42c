"""What is asked of the machine itself: spare memory, its cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock.runtimes import available_memory_bytes, memory
from interlock.runtimes.cgroup import cgroup_name, own_cgroup

CGROUP2 = "41 31 0:38 {root} {mount} rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate"
CGROUP1 = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"


def test_available_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    available = available_memory_bytes()
    assert available is not None
    assert available > 1_000_000
    for content, expected in (
        ("MemAvailable:  12 kB\n", 12288),
        ("MemFree: 1 kB\n", None),
        ("MemAvailable: x\n", None),
    ):
        (tmp_path / "meminfo").write_text(content)
        monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
        assert available_memory_bytes() == expected
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "missing")
    assert available_memory_bytes() is None


@pytest.mark.parametrize(
    ("root", "mount", "membership", "expected"),
    [
        ("/", "/sys/fs/cgroup", "0::/user.slice/x.scope", "/sys/fs/cgroup/user.slice/x.scope"),
        ("/", "/sys/fs/cgroup/unified", "5:cpu:/a\n0::/", "/sys/fs/cgroup/unified"),
        ("/docker/abc", "/sys/fs/cgroup", "0::/docker/abc/in", "/sys/fs/cgroup/in"),
        ("/", "/sys/fs/c\\040group", "0::/x", "/sys/fs/c group/x"),
        ("/docker/abc", "/sys/fs/cgroup", "0::/other", None),
        ("/", "/sys/fs/cgroup", "0::/../other", None),
        ("/", "/sys/fs/cgroup", "5:cpu:/a", None),
    ],
)
def test_where_the_own_cgroup_is(root: str, mount: str, membership: str, expected: str | None) -> None:
    mountinfo = f"{CGROUP1}\n{CGROUP2.format(root=root, mount=mount)}\n"
    assert own_cgroup(mountinfo, membership) == (expected and Path(expected))
    assert own_cgroup(CGROUP1, membership) is None


def test_names_of_cgroups_are_derived_from_the_folder() -> None:
    assert cgroup_name(Path("/data/ü b/1.1.g")) == cgroup_name(Path("/data/ü b/1.1.g"))
    assert cgroup_name(Path("/data/1.1.g")) != cgroup_name(Path("/data/1.2.g"))
