"""A PostgreSQL cluster of our own, for the peer that needs one: made, started and removed here, in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def programs() -> Path | None:
    """The folder of ``initdb`` and ``pg_ctl``: Debian keeps them off the PATH. None when there is no PostgreSQL."""
    found = [Path(path).resolve().parent for path in [shutil.which("initdb")] if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if (folder / "initdb").exists() and (folder / "pg_ctl").exists()), None)


@contextmanager
def cluster() -> Iterator[Path]:
    """A running cluster with the superuser ``bench`` and PostgreSQL's own, durable defaults. Yields the folder of its socket."""
    where = programs()
    assert where is not None, "ask programs() first"
    # A short path of its own: that of a socket ends at 107 bytes. Root may not run PostgreSQL; somebody else then owns it.
    folder = Path(tempfile.mkdtemp(prefix="bench-pg-"))
    data, owner = folder / "data", _owner()
    try:
        if owner is not None:
            os.chown(folder, owner.pw_uid, owner.pw_gid)

        def run(*words: str | Path) -> None:
            done = subprocess.run(
                words,
                cwd=folder,
                user=None if owner is None else owner.pw_uid,
                group=None if owner is None else owner.pw_gid,
                extra_groups=None if owner is None else [],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            if done.returncode:
                raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stderr[-2000:]}")

        folder.chmod(0o755)
        run(where / "initdb", "-D", data, "-U", "bench", "--auth=trust", "-E", "UTF8", "--no-locale")
        options = f"-c listen_addresses='' -c unix_socket_directories='{folder}'"
        run(where / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start")
        try:
            yield folder
        finally:
            run(where / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _owner() -> pwd.struct_passwd | None:
    """Whom it runs as, when we are root; None for ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("root may not run PostgreSQL, and there is no user postgres or nobody")
