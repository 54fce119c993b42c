"""What becomes of everything that goes wrong below the group."""

from __future__ import annotations

import os
import sys
from typing import Any

import click
import pytest

from interlock.cli import main
from interlock.cli.main import execute, make_group
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


def test_readers_that_are_gone_end_it_quietly(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = []
    monkeypatch.setattr(os, "dup2", lambda _, number: given_up.append(number))
    assert outcome(BaseExceptionGroup("", [BrokenPipeError(), KeyboardInterrupt()]), capsys) == (141, "")
    assert given_up == [1]


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [(BrokenPipeError(), 141, ""), (OSError(28, "No space left on device"), 5, "cannot be written: No space left")],
)
def test_an_output_that_fails_at_the_very_end(
    error: OSError, status: int, said: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(os, "dup2", lambda *_: None)
        patched.setattr(sys.stdout, "flush", fail)
        # click would flush, too
        patched.setattr(main, "_execute", lambda *_: 0)
        assert execute(Failing(error), []) == status  # type: ignore[arg-type]
    assert said in capsys.readouterr().err


def test_without_a_command_it_shows_what_there_is(capsys: Any) -> None:
    assert execute(Failing(LookupError()), []) == 0  # type: ignore[arg-type]
    assert "Usage: interlock" in capsys.readouterr().out
    assert execute(Failing(LookupError()), ["config"]) == 2  # type: ignore[arg-type]


def test_what_is_no_fault_of_usage_has_no_hint(capsys: Any) -> None:
    assert outcome(click.ClickException("no"), capsys) == (2, "error: no\n")


def test_below_the_terminal_s_own_words(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert outcome(KeyboardInterrupt(), capsys) == (130, "\n")


def test_a_command_is_imported_once() -> None:
    group = make_group()
    context = click.Context(group)
    assert group.get_command(context, "nope") is None
    assert group.get_command(context, "ps") is group.get_command(context, "ps")


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
