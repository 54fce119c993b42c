"""Whether a command could run, and what is said when it could not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from interlock.domain.settings import Agent
from interlock.runtimes.program import NoProgram, plain_words, program_argv


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("claude -p", ["claude", "-p"]),
        ("true", ["true"]),
        ("agent --model=x 'a b' \"c d\" e\\ f", ["agent", "--model=x", "a b", "c d", "e f"]),
        ("a | b", None),
        ("a; b", None),
        ("a > b", None),
        ("echo $HOME", None),
        ("a *.py", None),
        ("a ~/x", None),
        ("X=1 a", None),
        ("exec a", None),
        ("cd x", None),
        ("echo x", None),
        ("if", None),
        ("a\nb", None),
        ("a 'b", None),
        ("", None),
        ("''", None),
    ],
)
def test_which_strings_need_a_shell(command: str, words: list[str] | None) -> None:
    assert plain_words(command) == (words and tuple(words))


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def script(path: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    path.write_text(text, newline="")
    path.chmod(mode)
    return path


def refusal(command: str | tuple[str, ...], cwd: Path, path: object = os.defpath) -> str | None:
    try:
        program_argv(Agent(name="a", command=command), cwd, {"PATH": str(path)})
    except NoProgram as reason:
        return str(reason)
    return None


def test_programs_are_found_along_the_path(bin_folder: Path) -> None:
    tool = script(bin_folder / "tool")
    cwd = bin_folder.parent
    for path in (bin_folder, f"/nowhere:{bin_folder}", "bin"):
        assert program_argv(Agent(name="a", command="tool x"), cwd, {"PATH": str(path)}) == [str(tool), "x"]
    assert program_argv(Agent(name="a", command="./bin/tool"), cwd, {}) == ["./bin/tool"]
    assert program_argv(Agent(name="a", command="tool | x"), cwd, {"PATH": str(bin_folder)}) == [
        "/bin/sh",
        "-c",
        "tool | x",
    ]


@pytest.mark.parametrize("command", ["gone", ("gone",), "gone | cat", "gone;true", "gone 'x"])
def test_a_program_that_is_missing(bin_folder: Path, command: str | tuple[str, ...]) -> None:
    assert "gone is not on the PATH" in (refusal(command, bin_folder) or "")


def test_what_can_be_wrong_with_a_program(bin_folder: Path) -> None:
    script(bin_folder / "plain", mode=0o644)
    script(bin_folder / "lost", "#!/no/such/interpreter -x\n")
    script(bin_folder / "windows", "#!/bin/sh\r\n")
    script(bin_folder / "needy", "#!/usr/bin/env nodeish\n")
    script(bin_folder / "split", "#!/usr/bin/env -S nodeish --flag\n")
    script(bin_folder / "cleared", "#!/usr/bin/env -u X nodeish\n")
    script(bin_folder / "nameless", "#!\n")
    (bin_folder / "dangling").symlink_to("/no/where")
    (bin_folder / "folder").mkdir()
    for command, words in {
        "plain": "chmod +x",
        "lost": "/no/such/interpreter",
        "windows": "carriage return",
        "needy": "needs nodeish",
        "split": "needs nodeish",
        "./dangling": "link to /no/where",
        "./folder": "is a directory",
        "./gone": "does not exist in",
        "/gone/x": "/gone/x does not exist.",
    }.items():
        assert words in (refusal(command, bin_folder, f"{bin_folder}:/bin:/usr/bin") or ""), command
    for command in ("cleared", "nameless"):
        assert refusal(command, bin_folder, bin_folder) is None, command
    script(bin_folder / "nodeish")
    assert refusal("needy", bin_folder, bin_folder) is None


@pytest.mark.parametrize(
    "command",
    ["cd x && y", "X=1 gone", "(gone)", "$X", '"go"ne', "gone() { :; }; gone", "if gone; then :; fi", ": gone"],
)
def test_what_only_the_shell_can_tell_is_left_to_it(bin_folder: Path, command: str) -> None:
    assert refusal(command, bin_folder) is None or command == '"go"ne'


@pytest.mark.parametrize(("command", "words"), [("sh 'x", "cut short"), ("sh \0; x", "NUL"), ("  ", "no command")])
def test_strings_that_are_no_commands(bin_folder: Path, command: str, words: str) -> None:
    assert words in (refusal(command, bin_folder) or "")


def test_an_argv_without_a_program(bin_folder: Path) -> None:
    assert "empty" in (refusal(("", "x"), bin_folder) or "")
