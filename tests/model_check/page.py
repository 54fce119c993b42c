"""Writes the tables of docs/model-check.md: ``python tests/model_check/page.py [--deep]``.

``--check`` writes nothing and says whether they are current. The searches of ``--deep`` take long and much memory; without it
their rows stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from explore import Found
from pool_model import RULES, Searched, search
from rules_off import OFF, Off
from searched import searched, searched_without
from setting import Setting
from sizes import DEEP, SMALL

PAGE = Path(__file__).resolve().parents[2] / "docs" / "model-check.md"


def row(cells: Iterable[object]) -> str:
    """A line of a table."""
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def row_of_search(setting: Setting, found: Found) -> str:
    """What was visited in a world."""
    holders = ["local"] * setting.local + [f"{setting.remote} remote"] * bool(setting.remote)
    size = f"{setting.runs} x ({' + '.join(holders)}) x {setting.fences}"
    faults = ", ".join(
        ["kill", *["SIGSTOP"] * setting.stops, *["lost lock"] * setting.takeover, *sorted(setting.operator)]
    )
    return row(
        (
            setting.name,
            size,
            setting.dispatchers,
            setting.limit,
            faults,
            f"{found.states:,}",
            f"{found.steps:,}",
            found.depth,
        )
    )


def row_of_rule(off: Off, found: Found) -> str:
    """What goes wrong without a rule."""
    without = "; ".join(off.without)
    return row((off.name, without, found.fault, found.depth, " ... ".join(off.story)))


def row_of_pool(without: str, found: Searched) -> str:
    """The pool, whole or without a rule."""
    return row(
        (
            without or "(all rules in force)",
            found.fault or "",
            len(found.trace) - 1 if found.trace else "",
            f"{found.states:,}",
        )
    )


def tables(*, deep: bool) -> dict[str, list[str]]:
    """Marker -> rows."""
    made = {
        "small": [row_of_search(setting, searched(setting)[0]) for setting in SMALL],
        "rules": [row_of_rule(off, searched_without(off)) for off in OFF],
        "pool": [row_of_pool(name, search(RULES - {name})) for name in ("", *sorted(RULES))],
    }
    if deep:
        made["deep"] = [row_of_search(setting, searched(setting)[0]) for setting in DEEP]
    return made


def put(text: str, marker: str, rows: Sequence[str]) -> str:
    """``text`` with the rows of the table behind ``<!-- marker -->`` replaced."""
    head, found, rest = text.partition(f"<!-- {marker} -->\n")
    if not found:
        raise SystemExit(f"{PAGE.name} has no <!-- {marker} --> before a table: put it back")
    lines = rest.split("\n")
    end = next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return "\n".join([head + found + "\n".join(lines[:2]), *rows, *lines[end:]])


def main(arguments: list[str], *, make: Callable[..., dict[str, list[str]]] = tables) -> int:
    """Write the page, or say that it is stale."""
    before = after = PAGE.read_text("utf-8")
    for marker, rows in make(deep="--deep" in arguments).items():
        after = put(after, marker, rows)
    if after == before:
        return 0
    if "--check" in arguments:
        print(f"stale: {PAGE.name}; renew with: python tests/model_check/page.py")
        return 1
    PAGE.write_text(after, "utf-8")
    print(f"wrote {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
