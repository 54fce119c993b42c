"""`interlock run` on a terminal: whatever its size, and whatever tasks and agents say."""

from __future__ import annotations

import io
import re
import stat
from typing import Any

import pexpect
import pytest

TASKS = """\
- title: "[red]markup[/red]"
- title: 日本語のタイトルはとても幅が広いので切り取られるべきです
- title: a very long title that goes on and on and on and on and on and on and on and on
- title: fails
"""
AGENT = r"""#!/bin/sh
read -r _ name
printf '\033[2J\033[H\033[31mred\033[0m\r50%%\r\033]0;title\007done\n'
head -c 300000 /dev/zero | tr '\0' x
while [ ! -e go ]; do sleep 0.05; done
[ "$name" != fails ]
"""
# Colours, cursor up, clear line and screen below, the cursor shown or hidden: all that the view sends.
OURS = re.compile(r"\x1b\[(?:[0-9;]*m|[0-9]+A|K|J|\?25[lh])")


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 10), (20, 5), (200, 50), (3, 2)])
def test_the_view_fits_every_terminal(yard: Any, columns: int, rows: int) -> None:
    yard.write("tasks.yaml", TASKS)
    yard.write("agent.sh", AGENT).chmod(stat.S_IRWXU)
    terminal = yard.terminal(
        "run", "tasks.yaml", "--agent", "./agent.sh", "--max-retries", "0", rows=rows, columns=columns
    )
    terminal.logfile_read = io.StringIO()
    terminal.expect(re.escape("\x1b[?25l"))
    yard.until(lambda: "running" in yard.states(), "agents run")
    if columns >= 40:
        terminal.expect("4 running")
        terminal.expect("#1 ")
    terminal.setwinsize(max(rows - 2, 1), max(columns - 10, 1))
    yard.write("go", "")
    terminal.expect(pexpect.EOF)
    said = terminal.logfile_read.getvalue()
    terminal.close()
    assert terminal.exitstatus == 1
    assert yard.states() == ["completed"] * 3 + ["failed"]
    rest = OURS.sub("", said)
    assert "\x1b" not in rest
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", rest)
    assert said.rfind("\x1b[?25h") > said.rfind("\x1b[?25l")
    assert "4 tasks: 3 completed, 1 failed" in said


@pytest.mark.parametrize("changes", [{"TERM": "dumb"}, {"CI": "true"}])
def test_a_terminal_that_cannot_gets_lines(yard: Any, changes: dict[str, str]) -> None:
    yard.write("todo.md", "- [ ] one\n")
    yard.env |= changes
    terminal = yard.terminal("run", "todo.md", "--agent", "true")
    text = terminal.read()
    terminal.close()
    assert terminal.exitstatus == 0
    assert "\x1b" not in text
    assert "started" in text


def test_colour_is_left_out_when_not_wanted(yard: Any) -> None:
    yard.write("todo.md", "- [ ] one\n- [ ] two\n")
    yard.env["NO_COLOR"] = "1"
    terminal = yard.terminal("run", "todo.md", "--agent", "true")
    text = terminal.read()
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", text)
    assert "2 tasks: 2 completed" in text


def test_ctrl_z_gives_the_terminal_back_for_a_while(yard: Any) -> None:
    yard.write("todo.md", "- [ ] one\n")
    terminal = yard.terminal("run", "todo.md", "--agent", "while [ ! -e go ]; do sleep 0.05; done")
    terminal.expect(re.escape("\x1b[?25l"))
    terminal.expect("1 running")
    terminal.sendcontrol("z")
    terminal.expect(re.escape("\x1b[?25h"))
    yard.until(lambda: process_state(terminal.pid) == "T", "it is stopped")
    yard.write("go", "")
    terminal.kill(18)
    terminal.expect("1 task: 1 completed")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


def process_state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0]
