"""Containment by cgroup v2: the one way to hold a tree that no process can leave by itself.

Each attempt gets a cgroup below ``interlock`` in the dispatcher's own cgroup. Its name is derived from the attempt's
folder, and its path is written into the attempt's lock file before it is made (a file of its own would cost as
much as the cgroup). Where the system does not permit that
(most logins; a systemd unit needs ``Delegate=yes``) there is none, and :mod:`interlock.runtimes.tree` makes do.

Joining a cgroup may take many milliseconds on an otherwise idle kernel (an RCU grace period; ``favordynmods`` avoids
that). A process that is forked into it, as agents are where the system can do that, does not pay it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

PARENT = "interlock"
PREFIX = "attempt-"


def cgroup_name(folder: Path) -> str:
    """The name of the cgroup of an attempt folder (an absolute, resolved path)."""
    return PREFIX + hashlib.sha256(os.fsencode(folder)).hexdigest()[:20]


def own_cgroup(mountinfo: str, membership: str) -> Path | None:
    """Where this process's cgroup v2 folder is, from /proc/self/mountinfo and /proc/self/cgroup."""
    path = next((line[3:] for line in membership.splitlines() if line.startswith("0::/")), None)
    if path is None or ".." in path.split("/"):
        # the latter: outside of what this cgroup namespace shows
        return None
    for root, mounted in _mounts(mountinfo):
        below = os.path.relpath(path, root)
        if not below.startswith(".."):
            return Path(mounted, below)
    return None


def _mounts(mountinfo: str) -> list[tuple[str, str]]:
    """(root within the hierarchy, where it is mounted) of every cgroup2 mount."""
    found = []
    for line in mountinfo.splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            root, mounted = (_unescape(word) for word in fields.split(" ")[3:5])
            found.append((root, mounted))
    return found


def existing() -> dict[str, Path]:
    """All attempts' cgroups that can be seen, by name: also those below the cgroup that an earlier dispatcher was in.

    A walk over the whole hierarchy (some 50 us a cgroup), for attempts whose lock file names theirs no longer.
    """
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except FileNotFoundError:
        return {}
    found: dict[str, Path] = {}
    for _, mounted in _mounts(mountinfo):
        for where, names, _ in os.walk(mounted):
            if os.path.basename(where) == PARENT:
                found |= {name: Path(where, name) for name in names if name.startswith(PREFIX)}
    return found


def _unescape(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def usable_parent() -> Path | None:
    """The folder in which attempts' cgroups can be made, made itself if need be; None where that is not permitted."""
    try:
        own = own_cgroup(
            Path("/proc/self/mountinfo").read_text(errors="surrogateescape"),
            Path("/proc/self/cgroup").read_text(errors="surrogateescape"),
        )
        # a move needs the right to write to the common ancestor, too
        if own is None or not os.access(own / "cgroup.procs", os.W_OK):
            return None
        parent = own / PARENT
        parent.mkdir(exist_ok=True)
        probe = parent / f"probe-{os.getpid()}"
        probe.mkdir()
        usable = os.access(probe / "cgroup.procs", os.W_OK) and _read(probe / "cgroup.type").strip() in (
            "domain",
            "",
        )
        probe.rmdir()
    except OSError:
        return None
    return parent if usable else None


def make(parent: Path, name: str) -> Path | None:
    """Make an attempt's cgroup; None where that fails. One that is left by a crash before the spawn is used."""
    path = parent / name
    try:
        os.mkdir(path)
    except FileNotFoundError:
        with suppress(OSError):
            path.mkdir(parents=True)
            return path
        return None
    except FileExistsError:
        return path
    except OSError:
        return None
    return path


def _read(path: Path) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


def _with_descendants(path: Path) -> list[Path]:
    """Deepest first: an agent that runs agents of its own may have made cgroups inside."""
    return [Path(where) for where, _, _ in os.walk(path, topdown=False)]


def members(path: Path) -> list[int]:
    """The pids in a cgroup and those below it, living ones only; empty when it is gone. Raises OSError."""
    pids: list[int] = []
    for where in _with_descendants(path):
        try:
            pids += map(int, _read(where / "cgroup.procs").split())
        except OSError as error:
            # ENODEV: it went while it was read
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
    return pids


def kill(path: Path) -> bool:
    """KILL everyone in it at once, forks that are under way included; False where the kernel (before 5.14) cannot."""
    try:
        fd = os.open(path / "cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, b"1")
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def remove(path: Path) -> bool:
    """Remove it if nobody lives in it: True is the kernel's word that its tree is gone."""
    for _ in range(2):
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                return False
        else:
            return True
        inner = _with_descendants(path)[:-1]
        if not inner:
            return False
        for where in inner:
            with suppress(OSError):
                where.rmdir()
    return False


def cpu_microseconds(path: Path) -> int | None:
    """CPU time used in it so far; None when it is gone."""
    with suppress(OSError):
        for line in _read(path / "cpu.stat").splitlines():
            key, _, value = line.partition(" ")
            if key == "usage_usec":
                return int(value)
    return None
