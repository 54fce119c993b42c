"""The house stands as designed: imports point down, files stay readable, docs and code speak of the same things."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_imports_point_down() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), "a docstring says what a room is for"


def test_pure_rooms_do_not_look_at_a_clock_or_chance() -> None:
    """Time and randomness come in as arguments (DESIGN 3.14)."""
    seen = []
    for room in ("domain", "machines", "decide", "service"):
        for path in (ROOT / "src/interlock" / room).rglob("*.py"):
            text = path.read_text("utf-8")
            words = (
                r"\btime\.(time|monotonic)",
                r"\bdatetime\.now",
                r"^import (time|random|secrets)\b",
                r"\brandom\.\w+\(",
            )
            seen += [f"{path.relative_to(ROOT)}: {word}" for word in words if re.search(word, text, re.MULTILINE)]
    assert seen == []


def test_decisions_import_no_trio_and_no_store() -> None:
    for room in ("domain", "machines", "decide"):
        for path in (ROOT / "src/interlock" / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = [node.module or ""]
                else:
                    continue
                assert not {name.split(".")[0] for name in names} & {"trio", "sqlite3", "subprocess", "socket"}, path


def test_nothing_names_this_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file() and path.stat().st_size < 1_000_000:
            text = path.read_text("utf-8", errors="ignore")
            assert str(ROOT.parent / "main") not in text, name
