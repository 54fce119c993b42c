"""What an agent's command comes down to, and whether it could run: looked up, never tried.

An argv list is run as it is. So is a shell string without shell syntax (``claude -p --model x``): splitting it here
saves a shell per attempt. Any other string goes to one ``/bin/sh -c``. A program is looked up along the PATH of the
agent's environment, as seen from its working folder, and handed on with a slash in it: whoever executes it looks no
further.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from interlock.domain.settings import Agent

# Quotes and backslashes are not here: shlex treats them as sh does, once the rest of these is ruled out.
_SHELL_SYNTAX = frozenset("|&;<>()$`*?[]{}#~!^\n\r\0")

# true and false are left out: the programs of these names do the same.
_BUILTINS = """! { } case do done elif else esac fi for if in then until while
. : [ alias bg break cd chdir command continue echo eval exec exit export fc fg getopts hash jobs kill local
printf pwd read readonly return set shift test time times trap type ulimit umask unalias unset wait"""
_SHELL_WORDS = frozenset(_BUILTINS.split())

_FIRST_WORD = re.compile(r"[ \t]*([A-Za-z0-9_./+@%:,-]+)(?=[ \t\n;|&<>]|$)(?![ \t]*\()")


class NoProgram(Exception):
    """A command that cannot run. ``str()`` is a sentence that says what to put right."""


@lru_cache(maxsize=256)
def plain_words(command: str) -> tuple[str, ...] | None:
    """The words of a shell string that needs no shell; None when it does."""
    if not _SHELL_SYNTAX.isdisjoint(command):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if not words or not words[0] or "=" in words[0] or words[0] in _SHELL_WORDS:
        return None
    return tuple(words)


def program_argv(agent: Agent, cwd: Path, env: Mapping[str, str]) -> list[str]:
    """The argv that runs ``agent``, its first word with a slash. Raises :class:`NoProgram`."""
    command = agent.command
    if not command or (isinstance(command, str) and not command.strip()):
        raise NoProgram(f"agent {agent.name!r} has no command: set agents.{agent.name}.command.")
    if not cwd.is_dir():
        what = "is not a folder" if cwd.exists() else "does not exist"
        raise NoProgram(f"the working folder {cwd} of agent {agent.name!r} {what}.")
    words = command
    if isinstance(command, str):
        words = plain_words(command) or ()
        if not words:
            _check_shell_string(command, cwd, env)
            return ["/bin/sh", "-c", command]
    return [find_program(words[0], cwd, env), *words[1:]]


def _check_shell_string(command: str, cwd: Path, env: Mapping[str, str]) -> None:
    if "\0" in command:
        raise NoProgram("the command holds a NUL character.")
    first = _FIRST_WORD.match(command)
    # assignments, expansions and subshells: only the shell can tell
    if first is not None and first[1] not in _SHELL_WORDS:
        find_program(first[1], cwd, env)
    if _SHELL_SYNTAX.isdisjoint(command):
        try:
            shlex.split(command)
        except ValueError as error:
            raise NoProgram(f"the shell command is cut short ({error}): {command}") from error


def find_program(word: str, cwd: Path, env: Mapping[str, str]) -> str:
    """Where the program is: an absolute path, or one relative to ``cwd``. Raises :class:`NoProgram`."""
    if not word:
        raise NoProgram("the first word of the command is empty.")
    if "/" in word:
        reason = _why_not(word, cwd, env)
        if reason:
            raise NoProgram(reason)
        return word
    search = env.get("PATH", os.defpath)
    refusal = None
    for entry in search.split(os.pathsep):
        candidate = os.path.join(cwd, entry, word)
        if not os.path.isfile(candidate):
            continue
        if os.access(candidate, os.X_OK):
            reason = _why_not(candidate, cwd, env)
            if reason:
                raise NoProgram(reason)
            return candidate
        refusal = refusal or _why_not(candidate, cwd, env)
    raise NoProgram(refusal or f"{word} is not on the PATH ({search}): install it, or give its full path.")


def _why_not(program: str, cwd: Path, env: Mapping[str, str]) -> str | None:
    path = os.path.join(cwd, program)
    if os.path.isdir(path):
        return f"{program} is a directory, not a program."
    if not os.path.exists(path):
        if os.path.islink(path):
            return f"{program} is a link to {os.readlink(path)}, which does not exist."
        return f"{program} does not exist" + ("." if os.path.isabs(program) else f" in {cwd}.")
    if not os.access(path, os.X_OK):
        return f"{program} is not executable: chmod +x {shlex.quote(path)}."
    return _why_no_interpreter(program, path, cwd, env)


def _why_no_interpreter(program: str, path: str, cwd: Path, env: Mapping[str, str]) -> str | None:
    first = b""
    # unreadable, yet executable: fine for a binary
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        first = file.read(256)
    if not first.startswith(b"#!"):
        return None
    line = first[2:].split(b"\n", 1)[0]
    if line.endswith(b"\r"):
        return f"the first line of {program} ends in a carriage return: convert it to Unix line ends."
    words = os.fsdecode(line).split()
    if not words:
        return None
    interpreter = os.path.join(cwd, words[0])
    if not os.path.exists(interpreter):
        return f"{program} names the interpreter {words[0]} in its first line, which does not exist."
    if os.path.basename(words[0]) != "env":
        return None
    after = words[2:] if words[1:2] == ["-S"] else words[1:]
    # other options may take arguments: which word is the program is env's business then
    if not after or after[0].startswith("-") or "/" in after[0] or "=" in after[0]:
        return None
    wanted = after[0]
    for entry in env.get("PATH", os.defpath).split(os.pathsep):
        if os.access(os.path.join(cwd, entry, wanted), os.X_OK):
            return None
    return f"{program} needs {wanted}, which is not on the PATH: install it."
