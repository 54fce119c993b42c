"""What becomes of everything that goes wrong below the group."""

from __future__ import annotations

from typing import Any

import click
import pytest

from interlock.cli.main import execute
from interlock.domain.errors import Conflict, InvalidInput, NotFound, Unavailable


class Failing:
    """A host whose version is an error."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def version(self) -> str:
        raise self.error


def outcome(error: BaseException, capsys: Any, *arguments: str) -> tuple[int, str]:
    status = execute(Failing(error), ["version", *arguments])  # type: ignore[arg-type]
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"), [(NotFound("x"), 3), (Conflict("x"), 4), (InvalidInput("x"), 2), (Unavailable("x"), 5)]
)
def test_refusals(error: Exception, status: int, capsys: Any) -> None:
    assert outcome(error, capsys) == (status, "error: x\n")


def test_groups_are_unwrapped(capsys: Any) -> None:
    inner = ExceptionGroup("", [NotFound("no\x1b", hint="look")])
    assert outcome(BaseExceptionGroup("", [inner, KeyboardInterrupt()]), capsys) == (3, "error: no\\x1b\nhint: look\n")


def test_interruptions_are_quiet(capsys: Any) -> None:
    assert outcome(KeyboardInterrupt(), capsys) == (130, "")
    assert outcome(BaseExceptionGroup("", [KeyboardInterrupt()]), capsys) == (130, "")
    assert outcome(click.exceptions.Abort(), capsys) == (130, "")


def test_exits_pass(capsys: Any) -> None:
    assert outcome(SystemExit(7), capsys) == (7, "")
    assert outcome(BaseExceptionGroup("", [click.exceptions.Exit(1)]), capsys) == (1, "")


def test_faults_of_ours(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INTERLOCK_DEBUG", raising=False)
    status, said = outcome(ExceptionGroup("", [ValueError("odd"), NotFound("x")]), capsys)
    assert status == 70
    assert "ValueError: odd" in said
    assert "fault of Interlock" in said
    assert "Traceback" not in said
    assert "Traceback" in outcome(ValueError("odd"), capsys, "--verbose")[1]
