"""The compiled tables are what the machines say today."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock.machines import compile as compiling


def test_the_module_is_current() -> None:
    assert compiling.TARGET.read_text("utf-8") == compiling.compiled(), f"renew with: {compiling.COMMAND}"


def test_it_says_how_it_was_made() -> None:
    assert f"python -m {compiling.__name__}" == compiling.COMMAND
    assert f"Compiled by `{compiling.COMMAND}`" in compiling.compiled().splitlines()[0]


def test_it_is_written_as_the_formatter_would() -> None:
    text = compiling.compiled()
    assert 'final=("stopped",),\n' in text
    assert 'final=(\n            "completed",\n' in text


def test_a_stale_module_is_named_and_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "TARGET", tmp_path / "compiled.py")
    assert compiling.main(["--check"]) == 1
    complaint = capsys.readouterr().err
    assert str(tmp_path / "compiled.py") in complaint
    assert compiling.COMMAND in complaint
    assert compiling.main([]) == 0
    assert compiling.main(["--check"]) == 0
    compiling.TARGET.write_text(compiling.TARGET.read_text("utf-8").replace('"queued"', '"running"', 1), "utf-8")
    assert compiling.main(["--check"]) == 1


def test_the_command_takes_its_arguments_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["compile", "--check"])
    assert compiling.main() == 0
    monkeypatch.setattr("sys.argv", ["compile", "--help"])
    with pytest.raises(SystemExit):
        compiling.main()
    help_ = capsys.readouterr().out
    assert f"usage: {compiling.COMMAND} [-h] [--check]" in help_
    assert "Compile the state machines" in help_
    assert "write nothing" in help_
