"""``reasons.toml``: which mutants no test notices, and why that is as it should be."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("reasons.toml")


class Findings(NamedTuple):
    """Survivors without a reason, and reasons without a survivor."""

    unexplained: list[str]
    stale: list[str]


def read(path: Path) -> dict[str, dict[str, str]]:
    """File -> mutant's key -> reason. Raises ``ValueError`` for an empty reason or a mutant that is named twice."""
    found: dict[str, dict[str, str]] = {}
    for file, entries in tomllib.loads(path.read_text("utf-8")).items():
        of_file = found.setdefault(file, {})
        for entry in entries:
            reason = entry["reason"].strip()
            if not reason:
                raise ValueError(f"{path.name}: {file}: a reason says nothing: {entry['mutants']}")
            for key in entry["mutants"]:
                if key in of_file:
                    raise ValueError(f"{path.name}: {file}: named twice: {key}")
                of_file[key] = reason
    return found


def compare(survivors: set[str], judged: set[str], reasons: dict[str, str]) -> Findings:
    """What is wrong between the survivors of a file and its reasons. Of what was not ``judged`` nothing is said."""
    return Findings(
        unexplained=sorted(survivors - reasons.keys()),
        stale=sorted((reasons.keys() & judged) - survivors),
    )


def unknown(made: set[str], reasons: dict[str, str]) -> list[str]:
    """Reasons for mutants that are not made any more: the code has changed."""
    return sorted(reasons.keys() - made)
