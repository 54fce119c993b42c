"""Every format draws every move of the machine, marks the way of a run, and is the same each time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest

from interlock.diagrams import FORMATS, MACHINES, picture, render
from interlock.diagrams.dot import quoted
from interlock.diagrams.markdown import table as markdown_table
from interlock.diagrams.picture import NEW, Picture, numbers
from interlock.domain.errors import InvalidInput, Unavailable
from interlock.domain.states import RunEvent
from interlock.machines.rules import RULES
from interlock.machines.table import TABLES as TYPED_TABLES

TABLES: dict[str, Any] = {**TYPED_TABLES}  # four machines, four types: a test looks at each in the same way

WAY = [
    ("", "submit", "queued"),
    ("queued", "dispatch", "dispatched"),
    ("dispatched", "claim", "claimed"),
    ("claimed", "start", "running"),
    ("running", "defer", "queued"),
    ("queued", "dispatch", "dispatched"),
    ("dispatched", "cancel", "cancelled"),
]

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")


def moves_in(drawn: Picture) -> set[tuple[str, str, str]]:
    """What a reader takes from the arrows: gates stand for their states, joined labels for each event."""
    behind = {gate.name: gate.members for gate in drawn.gates}
    return {
        (source, re.sub(r"^\[.*\] ", "", event), arrow.target)
        for arrow in drawn.arrows
        if arrow.label
        for event in arrow.label.split(" / ")
        for source in behind.get(arrow.source, (arrow.source,))
    }


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("way", [(), WAY], ids=["plain", "with a way"])
def test_the_arrows_are_the_moves_of_the_table(machine: str, way: list[tuple[str, str, str]]) -> None:
    if way and machine != "run":
        way = [(str(s), e, str(t)) for (s, e), t in list(TABLES[machine].moves.items())[::3]]
    wanted = {(str(s), e, str(t)) for (s, e), t in TABLES[machine].moves.items()}
    if machine == "run":
        wanted.add((NEW, "submit", "queued"))
    assert moves_in(picture(machine, taken=way)) == wanted


@pytest.mark.parametrize("machine", MACHINES)
def test_no_two_plain_arrows_join_the_same_two_states(machine: str) -> None:
    arrows = [(arrow.source, arrow.target) for arrow in picture(machine).arrows]
    assert len(arrows) == len(set(arrows))


def test_the_ends_of_an_attempt_hang_behind_one_gate() -> None:
    drawn = picture("attempt")
    (gate,) = drawn.gates
    assert gate.caption == "any state before the end"
    assert {arrow.target for arrow in drawn.arrows if arrow.source == gate.name} == drawn.final
    assert not [a for a in drawn.arrows if a.target in drawn.final and a.source != gate.name]
    assert len(drawn.arrows) < 30 < len(drawn.moves)
    assert [a.source for a in drawn.arrows if a.target == gate.name] == ["finishing"]


def test_a_taken_move_leaves_its_gate_and_the_gate_stays_true() -> None:
    arrows = {(a.source, a.target): a for a in picture("run", taken=WAY).arrows}
    assert arrows["dispatched", "cancelled"].taken
    assert arrows["dispatched", "cancelled"].label == "[7] cancel"
    assert arrows["gate1", "cancelled"].label == "cancel"
    assert arrows["queued", "dispatched"].label == "[2, 6] dispatch"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", FORMATS)
@needs_dot
def test_the_same_again_is_the_same_bytes(machine: str, kind: str) -> None:
    assert render(machine, kind) == render(machine, kind)


def test_the_same_under_another_hash_seed() -> None:
    program = (
        "from interlock.diagrams import MACHINES, render\n"
        "print(*[render(m, f) for m in MACHINES for f in ('mermaid', 'md', 'dot')])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1


# --- mermaid: the rules of stateDiagram-v2's grammar that this output has to keep

RESERVED = {"state", "class", "classdef", "note", "end", "default", "direction", "scale", "style", "click"}
STATEMENT = re.compile(
    r"""[ ]{4}(?:
        direction\ LR
      | state\ "[^"]+"\ as\ \w+
      | (?:\[\*\]|\w+)\ -->\ \w+(?:\ :\ [^:;\#\n"]+)?
      | classDef\ \w+\ [\w-]+:[^:,;]+(?:,[\w-]+:[^:,;]+)*
      | class\ \w+(?:,\ \w+)*\ \w+
    )""",
    re.VERBOSE,
)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_mermaid_line_is_one_of_five_statements(machine: str) -> None:
    way = WAY if machine == "run" else ()
    head, *lines = render(machine, "mermaid", taken=way, current=TABLES[machine].initial).splitlines()
    assert head == "stateDiagram-v2"
    for line in lines:
        assert STATEMENT.fullmatch(line), line
    names = {*TABLES[machine].states, *(gate.name for gate in picture(machine).gates)}
    assert not {name.lower() for name in names} & RESERVED
    assert lines[0].strip() == "direction LR"


@pytest.mark.parametrize("machine", MACHINES)
def test_mermaid_marks_the_beginning_and_the_ends(machine: str) -> None:
    text = render(machine, "mermaid")
    assert text.count("[*] --> ") == 1
    assert f"[*] --> {TABLES[machine].initial}" in text
    (ending,) = re.findall(r"class (.*) ending", text)
    assert set(ending.split(", ")) == TABLES[machine].final


def test_mermaid_joins_and_marks() -> None:
    assert "claimed --> queued : withdraw / retry / defer" in render("run", "mermaid")
    text = render("run", "mermaid", taken=WAY, current="cancelled")
    assert "running --> queued : withdraw / retry\n" in text
    assert "running --> queued : [5] defer\n" in text
    assert "class queued, dispatched, claimed, running passed" in text
    assert "class cancelled here" in text
    assert "linkStyle" not in text, "a state diagram takes it for the name of a state"


# --- dot, svg, png


def test_dot_marks_the_way() -> None:
    text = render("run", "dot", taken=WAY, current="cancelled")
    assert re.search(r'"running" -> "queued" \[label="\[5\] defer", color="#1565c0".*penwidth="2.5"\];', text)
    assert re.search(r'"running" -> "queued" \[label="withdraw / retry", color="#b0bec5"', text)
    assert re.search(r'"cancelled" \[peripheries="2".*color="#bf5b00".*\];', text)
    assert "#b0bec5" not in render("run", "dot"), "without a way nothing is dimmed"


def test_dot_quotes() -> None:
    assert quoted('a"b\\c\nd') == '"a\\"b\\\\c\\nd"'


@needs_dot
@pytest.mark.parametrize("machine", MACHINES)
def test_dot_takes_the_text_without_a_warning(machine: str) -> None:
    done = subprocess.run(
        ["dot", "-Tplain"],
        input=render(machine, "dot").encode(),
        capture_output=True,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    nodes = {line.split()[1].strip('"') for line in done.stdout.decode().splitlines() if line.startswith("node")}
    assert nodes == {NEW, *TABLES[machine].states, *(gate.name for gate in picture(machine).gates)}
    assert b"syntax" not in done.stderr


@needs_dot
def test_svg_does_not_name_the_version_that_drew_it() -> None:
    text = render("worker", "svg")
    assert text.rstrip().endswith("</svg>")
    assert "Generated by graphviz" not in text


@needs_dot
def test_png_is_a_png() -> None:
    assert render("run", "png", taken=WAY, current="cancelled").startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_without_graphviz_an_image_says_what_to_install(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable) as refused:
        render("run", kind)
    hint = refused.value.hint or ""
    assert "apt-get install graphviz" in hint
    assert "brew install graphviz" in hint
    assert "mermaid, md and dot work without it" in hint
    for other in ("mermaid", "md", "dot"):
        assert render("run", other)


def test_a_graphviz_that_fails_is_named_with_what_it_said(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    program = f"{tmp_path}/dot"
    with open(program, "w") as file:
        file.write("#!/bin/sh\necho 'no such plugin' >&2\nexit 3\n")
    os.chmod(program, 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(Unavailable, match="status 3 and said: no such plugin"):
        render("run", "svg")


# --- md


def cells(text: str, heading: str) -> list[list[str]]:
    part = text.split(f"## {heading}\n\n", maxsplit=1)[1].split("\n\n", maxsplit=1)[0]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in part.splitlines()]


def test_the_run_table_is_made_of_the_rules() -> None:
    head, _, *rows = cells(render("run", "md"), "Events")
    assert head == ["event", "from", "to", "by", "slots", "when"]
    assert [row[0] for row in rows] == [f"`{event}`" for event in RunEvent]
    assert rows[0][1:3] == ["(new)", "`queued`"]
    by_event = {row[0].strip("`"): row for row in rows}
    for event, rule in RULES.items():
        assert by_event[event][3:] == [", ".join(rule.by), rule.slots, rule.when]
    assert by_event["close"][1] == "any before the end"
    assert by_event["renew"][1:3] == ["`claimed`, `running`", "same"]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_second_table_lists_what_is_allowed(machine: str) -> None:
    text = render(machine, "md")
    listed = {line.split("|")[1].strip(" `"): line for line in text.split("## States")[1].splitlines() if "`" in line}
    for state in TABLES[machine].states:
        allowed = TABLES[machine].allowed(state)
        assert f"| {', '.join(f'`{event}`' for event in allowed) or 'nothing'} " in listed[state]
        assert ("| final" in listed[state]) == (state in TABLES[machine].final)


def test_md_shows_the_way() -> None:
    text = render("run", "md", taken=WAY, current="cancelled")
    way = cells(text, "The way that it took")
    assert way[2] == ["1", "`submit`", "(new)", "`queued`"]
    assert way[-1] == ["7", "`cancel`", "`dispatched`", "`cancelled`"]
    assert "**step 2, 6**" in text
    assert "**`cancelled`** (here)" in text
    assert "`running` (passed)" in text
    assert "It stands at **`cancelled`**." in text


def test_a_bar_does_not_break_a_table() -> None:
    assert markdown_table(("a", "b"), [("x|y", "1\n2")]).splitlines()[2] == "| x\\|y | 1 2 |"


@pytest.mark.parametrize(
    ("steps", "text"),
    [([1], "1"), ([2, 5, 6, 7], "2, 5-7"), ([1, 3, 5, 7], "1, 3, 5, 7"), ([1, 3, 5, 7, 9, 10], "6x")],
)
def test_step_numbers(steps: list[int], text: str) -> None:
    assert numbers(steps) == text


# --- refusals


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"machine": "toaster", "format": "md"}, "no such machine: toaster"),
        ({"machine": "run", "format": "gif"}, "no such diagram format: gif"),
        ({"machine": "run", "format": "md", "current": "asleep"}, "a run is never asleep"),
        (
            {"machine": "run", "format": "md", "taken": [("queued", "claim", "claimed")]},
            "no move queued -> claim -> claimed",
        ),
        ({"machine": "worker", "format": "md", "taken": [("", "submit", "starting")]}, "has no move"),
    ],
)
def test_what_the_machine_does_not_know_is_refused_with_a_hint(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as refused:
        render(**arguments)  # type: ignore[call-overload]
    assert refused.value.hint
