"""The compiled tables are what the machines say today."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock.machines import compile as compiling


def test_the_module_is_current() -> None:
    assert compiling.TARGET.read_text("utf-8") == compiling.compiled(), f"renew with: {compiling.COMMAND}"


def test_a_stale_module_is_named_and_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "TARGET", tmp_path / "compiled.py")
    assert compiling.main(["--check"]) == 1
    assert compiling.COMMAND in capsys.readouterr().err
    assert compiling.main([]) == 0
    assert compiling.main(["--check"]) == 0
    compiling.TARGET.write_text(compiling.TARGET.read_text("utf-8").replace('"queued"', '"running"', 1), "utf-8")
    assert compiling.main(["--check"]) == 1
