"""Mutation testing of the machines and the decisions: ``python tests/mutation [FILE ...]``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mutation_reasons
from mutation_judge import Court, NotJudged, Verdict
from mutation_operators import Mutant
from mutation_subjects import files, mutants_of

HASH_SEED = "1"
"""Sets of words come in the same order every time, so that the same mutant has the same fate."""


@dataclass
class Tally:
    """What became of the mutants of one file."""

    made: int = 0
    judged: set[str] = field(default_factory=set)
    survivors: set[str] = field(default_factory=set)
    seconds: float = 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 when every survivor has a reason and every reason a survivor, 1 when not, 2 when it cannot be told."""
    options = _parsed(arguments)
    reasons = mutation_reasons.read(options.reasons)
    chosen = {file: [m for m in mutants_of(file) if options.only in m.key] for file in options.files or files()}
    if options.list:
        for file, made in chosen.items():
            for mutant in made:
                print(f"{file}:{mutant.line}: {mutant.key}")
        return 0
    wrong = 0
    tallies: dict[str, Tally] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="interlock-mutation-") as folder:
            court = Court(Path(folder))
            for file, made in chosen.items():
                tallies[file] = _tried(court, file, made, reasons.get(file, {}), verbose=options.verbose)
                wrong += _report(file, tallies[file], made, reasons.get(file, {}), whole=not options.only)
    except NotJudged as error:
        print(error, file=sys.stderr)
        return 2
    _table(tallies, reasons)
    return 1 if wrong else 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/mutation", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help="such as decide/lanes.py; all when none is given")
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutants whose name holds this")
    parser.add_argument(
        "--reasons", type=Path, default=mutation_reasons.FILE, help="default: %(default)s", metavar="FILE"
    )
    parser.add_argument("--verbose", action="store_true", help="say which test notices a mutant")
    parser.add_argument("--list", action="store_true", help="name the mutants, judge none")
    options = parser.parse_args(arguments)
    options.files = [file.removeprefix("src/interlock/") for file in options.files]
    for file in options.files:
        if file not in files():
            parser.error(f"{file} is not mutated; these are: {', '.join(files())}")
    return options


def _tried(court: Court, file: str, made: list[Mutant], reasons: dict[str, str], *, verbose: bool) -> Tally:
    started = time.monotonic()
    tally = Tally(made=len(made))
    court.must_pass(file)
    for number, mutant in enumerate(made, 1):
        if sys.stderr.isatty():
            print(f"\r{file} {number}/{len(made)} ", end="", file=sys.stderr, flush=True)
        tally.judged.add(mutant.key)
        if court.judge(file, mutant.source) is Verdict.SURVIVED:
            tally.survivors.add(mutant.key)
            if mutant.key not in reasons:
                print(f"survived {file}:{mutant.line}: {mutant.key}", flush=True)
        elif verbose:
            print(f"killed by {court.killer()}: {file}:{mutant.line}: {mutant.key}", flush=True)
    tally.seconds = time.monotonic() - started
    return tally


def _report(file: str, tally: Tally, made: list[Mutant], reasons: dict[str, str], *, whole: bool) -> int:
    """Names what is wrong with a file's reasons; says how many faults there are, unexplained survivors included."""
    found = mutation_reasons.compare(tally.survivors, tally.judged, reasons)
    gone = mutation_reasons.unknown({mutant.key for mutant in made}, reasons) if whole else []
    for key in found.stale:
        print(f"stale reason in reasons.toml, a test notices it: {file}: {key}")
    for key in gone:
        print(f"stale reason in reasons.toml, there is no such mutant: {file}: {key}")
    return len(found.unexplained) + len(found.stale) + len(gone)


def _table(tallies: dict[str, Tally], reasons: dict[str, dict[str, str]]) -> None:
    row = "{:<26}{:>8}{:>8}{:>10}{:>10}{:>9}".format
    print(row("file", "mutants", "killed", "reasoned", "survived", "seconds"))
    total = [0, 0, 0, 0, 0]
    for file, tally in tallies.items():
        reasoned = len(tally.survivors & reasons.get(file, {}).keys())
        survived = len(tally.survivors) - reasoned
        cells = [tally.made, tally.made - len(tally.survivors), reasoned, survived, round(tally.seconds)]
        total = [a + b for a, b in zip(total, cells, strict=True)]
        print(row(file, *cells))
    print(row("all", *total))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"PYTHONHASHSEED": HASH_SEED})
    raise SystemExit(main())
