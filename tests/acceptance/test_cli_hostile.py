"""What tasks and agents say is printed, never obeyed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import interlock

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07clear",
    "[red]markup[/red] [link=file:///etc/passwd]x[/link] :smile:",
    "two\nlines\rback",
    "\x9b31mC1",
    "right \u202eto left",
    "emoji 👩\u200d🚀 日本語 שלום",
    "\x00nul",
    "{{braces}} %s $HOME `id`",
    "[/]",
    "x" * 5000,
)
COMMANDS = (
    ("ps",),
    ("ps", "--json"),
    ("show", "{}"),
    ("show", "{}", "--json"),
    ("why", "{}"),
    ("why", "{}", "--json"),
    ("hold", "{}"),
    ("unhold", "{}"),
    ("set", "{}", "--priority", "1"),
    ("limits",),
    ("export",),
)
# Anything but a line break that a terminal would obey, or that turns the direction of the text.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f]")


@pytest.fixture
async def desk(yard: Any) -> Any:
    """A queue of hostile tasks; in one, everything that can hold words holds them."""
    words = HOSTILE[0] + HOSTILE[1] + HOSTILE[4]
    context = interlock.TaskContext(description=words, files=(words,))
    async with interlock.open(yard.folder / ".interlock", dispatch=False) as il:
        for title in HOSTILE:
            await il.submit(interlock.Task(title=title))
        await il.submit(
            interlock.Task(
                title=words,
                content=words,
                context=context,
                tags=(words,),
                project=words,
                role=words,
                type=words,
                agent=words,
                tracker=words,
                unique=words,
                id=words,
            )
        )
    return yard


async def test_nothing_reaches_the_terminal(desk: Any) -> None:
    last = len(HOSTILE) + 1
    for number in range(1, last + 1):
        for command in COMMANDS if number == last else (("show", "{}"), ("why", "{}")):
            arguments = [part.format(number) for part in command]
            done = desk.interlock(*arguments)
            assert done.returncode == 0, (arguments, done.stderr)
            assert not OBEYED.search(done.stdout), arguments
            assert not OBEYED.search(done.stderr), arguments


async def test_on_a_terminal_either(desk: Any) -> None:
    for arguments in (("export", "--format", "csv"), ("show", str(len(HOSTILE) + 1)), ("ps",)):
        shown = desk.terminal(*arguments, columns=100)
        text = shown.read()
        shown.close()
        assert shown.exitstatus == 0
        # Colours are rich's own; everything else is words.
        assert not OBEYED.search(re.sub(r"\x1b\[[0-9;]*m|\r\n", "", text)), arguments
    assert "[red]markup[/red]" in text
    assert "\\x1b[2J" in text
    assert ":smile:" in desk.interlock("ps").stdout


async def test_a_title_is_one_line_of_a_table(desk: Any) -> None:
    lines = desk.interlock("ps").stdout.splitlines()
    assert len(lines) == len(HOSTILE) + 3
    assert max(map(len, lines)) < 600


async def test_json_has_the_words_as_they_are(desk: Any) -> None:
    titles = [run["task"]["title"] for run in reversed(json.loads(desk.interlock("ps", "--json").stdout))]
    assert titles[: len(HOSTILE)] == list(HOSTILE)


async def test_what_an_agent_says(yard: Any) -> None:
    yard.write(
        "interlock.yaml",
        "dispatch: {defaultAgent: rude, retry: {maxRetries: 0}}\n"
        "agents:\n  rude: {command: \"printf '\\\\033[2Jgone\\\\a\\\\n'; exit 3\"}\n",
    )
    yard.interlock("init")
    yard.interlock("add", "be rude")
    daemon = yard.start("up")
    yard.until(lambda: yard.states() == ["failed"], "the run ends")
    assert yard.interlock("stop").returncode == 0
    out, err = daemon.communicate()
    raw = yard.interlock("logs", "1")
    assert raw.stdout == "\x1b[2Jgone\x07\n"
    for text in (out, err, yard.interlock("show", "1").stdout, yard.interlock("ps", "-a").stdout):
        assert not OBEYED.search(text)
    shown = yard.terminal("logs", "1")
    text = shown.read()
    shown.close()
    assert text == "\\x1b[2Jgone\\x07\r\n"
