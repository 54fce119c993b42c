"""Write the committed diagrams, or name the stale ones: ``python -m interlock.diagrams.generate [--check]``.

Committed is what is the same everywhere: mermaid, tables, dot. An svg changes with graphviz' version, and
GitHub draws the mermaid text by itself.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.diagrams import MACHINES, picture, render

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMAND = "python -m interlock.diagrams.generate"
NOTICE = f"Generated from src/interlock/machines by `{COMMAND}`. Do not edit."
FOLDER = Path("state_diagrams")
INTRODUCTION = """\
Drawn from the machines in [`src/interlock/machines`](../src/interlock/machines): each is written once, and
decides, guards the database and is drawn from there. A dot leads to the first state; a heavy border is an
end; a dashed box stands for every state that it names. `interlock diagram run --run ID` shows the way that
one run took."""


def files() -> dict[str, str]:
    """What the folder is to hold: name -> text."""
    made: dict[str, str] = {}
    for machine in MACHINES:
        made[f"{machine}.mmd"] = f"%% {NOTICE}\n{render(machine, 'mermaid')}"
        made[f"{machine}.md"] = f"<!-- {NOTICE} -->\n\n{render(machine, 'md')}"
        made[f"{machine}.dot"] = f"// {NOTICE}\n{render(machine, 'dot')}"
    made["README.md"] = _readme()
    return made


def write(folder: Path) -> None:
    """Bring the generated files up to date. Whatever else is there is not ours to delete."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files().items():
        (folder / name).write_bytes(content.encode())


def stale(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the files that are missing or differ, and of those that do not belong there (dotfiles may)."""
    wanted = files()
    there = {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}
    differ = [
        name
        for name, content in wanted.items()
        if name not in there or not there[name].is_file() or there[name].read_bytes() != content.encode()
    ]
    extra = sorted(name for name in there if name not in wanted and not name.startswith("."))
    return differ, extra


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 when the folder is current (afterwards), 1 when it is not."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description="Write the state diagrams, or check that they are current."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 and name what is stale")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="default: %(default)s in the working folder")
    options = parser.parse_args(arguments)
    folder: Path = options.folder
    if not options.check:
        write(folder)
    differ, extra = stale(folder)
    for name in differ:
        sys.stderr.write(f"{folder / name} is stale\n")
    for name in extra:
        sys.stderr.write(f"{folder / name} does not come from a machine: delete it\n")
    if differ:
        at = "" if folder == FOLDER else f" --folder {folder}"
        sys.stderr.write(f"renew with: {COMMAND}{at}\n")
    return 1 if differ or extra else 0


def _readme() -> str:
    parts = [
        f"<!-- {NOTICE} -->",
        "# State diagrams",
        INTRODUCTION,
    ]
    for machine in MACHINES:
        drawn = picture(machine)
        parts += [
            f"## {drawn.noun.capitalize()}",
            *_paragraphs(drawn.about),
            f"```mermaid\n{render(machine, 'mermaid')}```",
            f"[Table]({machine}.md) | [mermaid]({machine}.mmd) | [dot]({machine}.dot)",
        ]
    return "\n\n".join(parts) + "\n"


def _paragraphs(docstring: str) -> list[str]:
    """The first line and the first paragraph after it, as markdown: the essay itself stays in the module."""
    without_headings = re.sub(r"^.+\n-{3,}\n", "", docstring, flags=re.MULTILINE)
    blocks = [" ".join(block.split()) for block in without_headings.split("\n\n")]
    return [re.sub(r":\w+:`", "`", block).replace("``", "`") for block in blocks[:2]]


if __name__ == "__main__":
    raise SystemExit(main())
