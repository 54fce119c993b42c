"""What lies in the data folder beside the database: the folders of attempts."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from interlock.domain.attempt_files import AttemptFiles
from interlock.ports.store import Tx


def attempt_folders(data: Path) -> Iterator[tuple[str, int]]:
    """(folder relative to ``data``, run number) of every attempt folder on disk."""
    top = data / "attempts"
    with suppress(FileNotFoundError):
        for shelf in sorted(entry.name for entry in os.scandir(top) if entry.is_dir(follow_symlinks=False)):
            for entry in sorted(os.scandir(top / shelf), key=lambda found: found.name):
                number = entry.name.partition(".")[0]
                if entry.is_dir(follow_symlinks=False) and number.isdigit():
                    yield f"attempts/{shelf}/{entry.name}", int(number)


def without_attempt(tx: Tx, folders: Iterable[tuple[str, int]]) -> list[str]:
    """Those folders that no attempt in the database has."""
    stray = []
    known: dict[int, set[str | None]] = {}
    for folder, number in folders:
        if number not in known:
            known = {number: {attempt.folder for attempt in tx.attempts(number)}}
        if folder not in known[number]:
            stray.append(folder)
    return stray


def remove_folder(data: Path, folder: str) -> bool:
    """Remove an attempt's folder, unless a process still holds its lock. Whether it is gone."""
    path = data / folder
    try:
        descriptor = os.open(AttemptFiles(path).lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        descriptor = None
    except OSError:
        return False
    try:
        if descriptor is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        shutil.rmtree(path, ignore_errors=True)
    finally:
        if descriptor is not None:
            os.close(descriptor)
    with suppress(OSError):
        # The last of its shelf takes the shelf along.
        path.parent.rmdir()
    return not path.exists()
