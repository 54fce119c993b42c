"""What the file system says of a data folder."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from interlock.store.disk import trouble


@pytest.mark.parametrize(
    ("said", "root", "words"),
    [
        ({}, False, None),
        ({"f_flag": os.ST_RDONLY}, False, "read-only"),
        ({"f_bavail": 3}, False, "the disk is full"),
        ({"f_bavail": 3}, True, None),
        ({"f_bavail": 0, "f_bfree": 3}, True, "the disk is full"),
    ],
)
def test_it_is_put_into_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: dict[str, Any], root: bool, words: str | None
) -> None:
    fine = {"f_flag": 0, "f_frsize": 4096, "f_bavail": 1000, "f_bfree": 1000}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**{**fine, **said}))
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    found = trouble(tmp_path)
    assert (words is None and found is None) or (words is not None and words in (found or ""))


def test_of_a_folder_that_is_gone_nothing_is_said(tmp_path: Path) -> None:
    assert trouble(tmp_path / "gone") is None
