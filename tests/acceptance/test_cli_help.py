"""Every command explains itself, in the same way, and at once."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import click
import pytest

from interlock.cli.group import COMMANDS
from interlock.cli.main import make_group

LISTINGS = ("ps", "show", "why", "routes list", "limits", "stats", "doctor", "config check", "add", "cancel", "retry")


def all_commands(group: click.Group, ctx: click.Context, before: str = "") -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield f"{before}{name}", command
        if isinstance(command, click.Group):
            yield from all_commands(command, click.Context(command, parent=ctx, info_name=name), f"{before}{name} ")


def commands() -> dict[str, click.Command]:
    group = make_group()
    return dict(all_commands(group, click.Context(group, info_name="interlock")))


@pytest.mark.parametrize("name", commands())
def test_every_command_has_a_help_text_with_an_example(name: str) -> None:
    command = commands()[name]
    text = command.help or ""
    assert "Example" in text, f"{name} has no example"
    assert f"interlock {name}" in text, f"the example of {name} does not call it"
    for option in command.params:
        if isinstance(option, click.Option) and option.name not in ("help", "version"):
            assert option.help, f"{name}: {option.opts[0]} has no help"


@pytest.mark.parametrize("name", LISTINGS)
def test_every_listing_has_json(name: str) -> None:
    assert "--json" in {opt for option in commands()[name].params for opt in option.opts}


def test_the_list_of_commands_needs_none_of_them() -> None:
    text = make_group().get_help(click.Context(make_group(), info_name="interlock"))
    for name, entry in COMMANDS.items():
        assert f"  {name} " in text
        assert entry.short_help.endswith(".")


def test_version_and_help_need_none_of_the_big_packages() -> None:
    check = (
        "import sys; from interlock.__main__ import LazyHost; from interlock.cli.main import execute; "
        "assert execute(LazyHost(), ['version']) == 0; assert execute(LazyHost(), ['--help']) == 0; "
        "print([name for name in ('trio', 'rich', 'sqlite3', 'statemachine', 'yaml') if name in sys.modules])"
    )
    # coverage, when it is measured, needs some of them
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run([sys.executable, "-c", check], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version_takes_little_time(yard: Any) -> None:
    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    took = []
    for _ in range(3):
        before = used()
        assert yard.interlock("version").stdout.startswith("interlock ")
        took.append(used() - before)
    # CPU time: the machine may be busy with something else. On an idle one it is about 0.15 s.
    assert min(took) < 0.5


def test_a_wrong_command_is_answered_with_the_nearest(yard: Any) -> None:
    done = yard.interlock("shwo", "1")
    assert done.returncode == 2
    assert "Did you mean 'show'?" in done.stderr
    assert "hint:" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(yard: Any, shell: str) -> None:
    done = yard.interlock("completion", shell)
    assert done.returncode == 0
    assert "_INTERLOCK_COMPLETE" in done.stdout


def test_completion_answers_the_shell(yard: Any) -> None:
    yard.env |= {"_INTERLOCK_COMPLETE": "bash_complete", "COMP_WORDS": "interlock unh", "COMP_CWORD": "1"}
    # The shell calls it by name, and the name says which variable is meant.
    assert "unhold" in yard.interlock().stdout


def test_global_options_stand_on_either_side(yard: Any) -> None:
    assert yard.interlock("--data", "here", "init").returncode == 0
    for arguments in (
        ("--data", "here", "ps", "--json"),
        ("ps", "--json", "--data", "here"),
        ("routes", "list", "--data", "here", "--json"),
    ):
        done = yard.interlock(*arguments)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == []
