"""Which modules are mutated, and their mutants as the package is today."""

from __future__ import annotations

from pathlib import Path

from mutation_operators import Mutant, enumerations, mutants

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "interlock"
ROOMS = ("machines", "decide")
NOT_MUTATED = {"__init__.py", "compiled.py"}  # nothing in it; written by machines/compile.py


def files() -> list[str]:
    """What is mutated, as "room/module.py"."""
    found = sorted(path for room in ROOMS for path in PACKAGE.glob(f"{room}/*.py"))
    return [f"{path.parent.name}/{path.name}" for path in found if path.name not in NOT_MUTATED]


def mutants_of(file: str) -> list[Mutant]:
    """All mutants of a file."""
    sources = [path.read_text("utf-8") for room in ("domain", *ROOMS) for path in sorted(PACKAGE.glob(f"{room}/*.py"))]
    return list(mutants(file, (PACKAGE / file).read_text("utf-8"), enumerations(sources)))
