"""Killed while it makes its database: the next start makes it, or finds it made."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from crash_yard import Yard


@pytest.fixture
def empty(tmp_path: Path) -> Yard:
    """A yard whose data folder is not there yet. Its own store comes when a daemon has made it."""
    yard = Yard(tmp_path / "yard")
    yard.store.close()
    for file in yard.data.iterdir():
        file.unlink()
    yard.data.rmdir()
    return yard


@pytest.mark.parametrize("at", ["migrate:1", "migrate:1+500", "before_commit:1"])
def test_a_first_start_that_was_cut_off_is_made_good(empty: Yard, at: str) -> None:
    with empty as yard:
        assert yard.daemon(crash_at=at).until_ended() == -signal.SIGKILL
        yard.up()
        yard.reopen()
        (run,) = yard.submit("blink")
        yard.until_state(run, "completed")
        assert yard.faults() == []
