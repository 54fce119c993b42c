"""What an agent from outside keeps on disk: a folder per claim, from before it is asked for until its outcome was accepted.

A folder (a *ticket*) has the files of an attempt (:class:`~interlock.domain.attempt_files.AttemptFiles`) and three of its own,
each written whole and forced to the disk: ``asked.json`` (with it the same claim can be asked for again), ``claim.json``, and
``outcome.json`` once the command has ended. Which of them are there says how far it came. Whoever looks after a ticket holds
a lock on it, so that what a killed agent left is taken up by one other.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from interlock.client import Held
from interlock.decide.outcome import Outcome
from interlock.domain.attempt_files import AttemptFiles
from interlock.wire import Claimed

T = TypeVar("T")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that is asked for: of which server, as whom."""

    url: str
    agent_session: str
    request_id: str
    agent_id: str | None = None
    role: str | None = None
    types: tuple[str, ...] = ()


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that was made. ``run``: the run's id."""

    run: str
    number: int
    title: str
    agent_session: str
    fence: int
    heartbeat_seconds: float

    @property
    def held(self) -> Held:
        """As it is told to the server."""
        return Held(run=self.run, agent_session=self.agent_session, fence=self.fence)


class Ticket:
    """A folder of the spool that this process looks after."""

    def __init__(self, folder: Path, lock: int, asked: Asked) -> None:
        self.folder = folder
        self.files = AttemptFiles(folder)
        self.asked = asked
        self.taken: Taken | None = _read(folder / "claim.json", Taken)
        self.outcome: Outcome | None = _read(folder / "outcome.json", Outcome)
        self._lock = lock

    def take(self, claimed: Claimed) -> Taken:
        """Write down the claim, and the prompt. Raises OSError."""
        self.files.prompt.write_text(claimed.prompt, "utf-8", errors="replace")
        taken = Taken(
            run=claimed.run.id,
            number=claimed.run.number,
            title=claimed.run.title,
            agent_session=claimed.agent_session,
            fence=claimed.fence,
            heartbeat_seconds=claimed.heartbeat_seconds,
        )
        _write(self.folder / "claim.json", taken)
        self.taken = taken
        return taken

    def settle(self, outcome: Outcome) -> None:
        """Write down how it ended. Raises OSError."""
        self.outcome = outcome
        _write(self.folder / "outcome.json", outcome)

    def remove(self) -> None:
        """It is over, and nothing of it is kept."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Let another process take it up."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class Spool:
    """The folder of tickets. ``elsewhere``: how many were found that are for another server. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.elsewhere: dict[str, int] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def make(self, asked: Asked) -> Ticket:
        """A ticket for a claim that is about to be asked for. Raises OSError."""
        # Under a name that nobody takes up until it is whole.
        unready = self.folder / f".{asked.request_id}"
        unready.mkdir(mode=0o700)
        lock = _lock(unready)
        assert lock is not None
        try:
            _write(unready / "asked.json", asked)
            ready = self.folder / asked.request_id
            unready.rename(ready)
            _sync_folder(self.folder)
        except BaseException:
            os.close(lock)
            shutil.rmtree(unready, ignore_errors=True)
            raise
        return Ticket(ready, lock, asked)

    def left(self, url: str) -> Iterator[Ticket]:
        """Tickets for a server that nobody looks after any more; from here on this process does."""
        self.elsewhere.clear()
        for folder in sorted(self.folder.iterdir()):
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            try:
                lock = _lock(folder)
            except OSError:
                # removed just now, or not for this user
                continue
            if lock is None:
                continue
            asked = _read(folder / "asked.json", Asked)
            if asked is not None and asked.url == url:
                yield Ticket(folder, lock, asked)
                continue
            os.close(lock)
            if asked is not None:
                self.elsewhere[asked.url] = self.elsewhere.get(asked.url, 0) + 1


def _lock(folder: Path) -> int | None:
    """The lock of a ticket: a descriptor, None while somebody else has it. Raises OSError."""
    lock = os.open(folder / "held", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _read(path: Path, shape: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=shape)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(path: Path, value: msgspec.Struct) -> None:
    unready = path.with_suffix(".new")
    fd = os.open(unready, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(msgspec.json.encode(value))
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    unready.rename(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            # some file systems cannot
            os.fsync(fd)
    finally:
        os.close(fd)
