"""The tool that changes the machines and the decisions makes the changes that matter, and believes no reason unseen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mutation_reasons
import pytest
from mutation_operators import enumerations, mutants
from mutation_subjects import files, mutants_of

HERE = Path(__file__).parent
COLOURS = enumerations(["class Colour(StrEnum):\n    RED = 'red'\n    BLUE = 'blue'\n    GREEN = 'green'\n"])


def changes(source: str) -> set[str]:
    return {mutant.key.removeprefix("module: ") for mutant in mutants("room/module.py", source, COLOURS)}


@pytest.mark.parametrize(
    ("source", "some"),
    [
        ("f(a < b)", ["f(a < b) -> f(a <= b)", "f(a < b) -> f(a > b)", "f(a < b) -> pass"]),
        ("f(a is b)", ["f(a is b) -> f(a is not b)"]),
        ("f(a in b)", ["f(a in b) -> f(a not in b)"]),
        ("f(a and b)", ["f(a and b) -> f(a or b)", "f(a and b) -> f(a)", "f(a and b) -> f(not a and b)"]),
        ("f(not a)", ["f(not a) -> f(a)"]),
        ("f(7)", ["f(7) -> f(8)", "f(7) -> f(6)"]),
        ("f(True)", ["f(True) -> f(False)"]),
        ("f(x=None)", ["f(x=None) -> f(x=1)", "f(x=None) -> f()"]),
        ("f('word')", ["f('word') -> f('wordXX')"]),
        ("f('some prose')", ["f('some prose') -> f('')"]),
        ("f(f'{a} of {b}')", ["f(f'{a} of {b}') -> f('')", "f(f'{a} of {b}') -> f(f'{a} of ')"]),
        ("f(a + b)", ["f(a + b) -> f(a - b)"]),
        ("f(a << b)", ["f(a << b) -> f(a >> b)"]),
        ("f(a | b)", ["f(a | b) -> f(a)", "f(a | b) -> f(b)"]),
        ("a += b", ["a += b -> a -= b", "a += b -> pass"]),
        ("f(min(a, b))", ["f(min(a, b)) -> f(max(a, b))", "f(min(a, b)) -> f(a)", "f(min(a, b)) -> f(b)"]),
        ("f(sorted(a))", ["f(sorted(a)) -> f(a)"]),
        ("f(a.strip())", ["f(a.strip()) -> f(a)"]),
        ("f(a[b:c])", ["f(a[b:c]) -> f(a[:c])", "f(a[b:c]) -> f(a[b:])"]),
        ("f({a: b, c: d})", ["f({a: b, c: d}) -> f({a: b})"]),
        ("f((a, b))", ["f((a, b)) -> f((a,))"]),
        ("f(Colour.RED)", ["f(Colour.RED) -> f(Colour.BLUE)"]),
        ("f(Colour.GREEN)", ["f(Colour.GREEN) -> f(Colour.RED)"]),
        ("s = States.from_enum(Colour)\ngo = s.RED.to(s.BLUE)", ["go = s.RED.to(s.BLUE) -> go = s.BLUE.to(s.BLUE)"]),
        ("x = s.of(a, b)", ["x = s.of(a, b) -> x = s.of(a)"]),
        ("if a:\n    b()", ["a -> True", "a -> False", "b() -> pass"]),
        ("raise a", ["raise a -> pass"]),
        ("class A(B, frozen=True):\n    c: int = 1", ["A: frozen=True -> frozen=False", "A: c: int = 1 -> c: int = 2"]),
        ("def g(a=1):\n    return a", ["g: 1 -> 2", "g: return a -> return None"]),
        ("class A:\n    @property\n    def b(self):\n        pass", ["A.b: property -> nothing"]),
        ("try:\n    a()\nexcept (B, C):\n    d()", ["(B, C) -> (C,)"]),
    ],
)
def test_what_is_changed(source: str, some: list[str]) -> None:
    assert set(some) <= changes(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""Some words."""',
        "from a import b",
        "import a",
        "assert a is not None",
        "S = TypeVar('S', A, B)",
        "def f(a: int | None) -> int | None: ...",
        "class A(B):\n    c: int\n    'What c is.'",
        "if TYPE_CHECKING:\n    a()",
        "if __name__ == '__main__':\n    a()",
        "def f():\n    return None",
    ],
)
def test_what_is_left_alone(source: str) -> None:
    assert changes(source) == set()


def test_a_type_in_a_cast_is_left_alone() -> None:
    assert changes("f(cast('A', b))") == {"f(cast('A', b)) -> pass", "f(cast('A', b)) -> cast('A', b)"}


def test_a_change_within_a_long_text_shows_what_is_around_it() -> None:
    long = " and ".join(f"condition_{n}()" for n in range(20))
    assert "...n_8() and condition_9() and condition_10(... -> ...n_8() and condition_10(..." in changes(long)


@pytest.mark.parametrize("file", files())
def test_every_mutant_is_a_module_of_its_own(file: str) -> None:
    made = mutants_of(file)
    assert made
    assert len({mutant.key for mutant in made}) == len({mutant.source for mutant in made}) == len(made)
    for mutant in made:
        compile(mutant.source, file, "exec", dont_inherit=True)


# the reasons


@pytest.mark.parametrize("file", files())
def test_every_reason_is_about_a_mutant_that_is_made(file: str) -> None:
    reasons = mutation_reasons.read(mutation_reasons.FILE).get(file, {})
    assert mutation_reasons.unknown({mutant.key for mutant in mutants_of(file)}, reasons) == []


def test_reasons_are_about_files_that_are_mutated() -> None:
    assert mutation_reasons.read(mutation_reasons.FILE).keys() <= set(files())


def test_survivors_and_reasons_are_held_against_each_other() -> None:
    reasons = {"a": "because", "b": "because", "c": "because"}
    found = mutation_reasons.compare({"a", "x"}, judged={"a", "b", "x"}, reasons=reasons)
    assert found.unexplained == ["x"]
    assert found.stale == ["b"], "c was not judged"
    assert mutation_reasons.unknown({"a", "b"}, reasons) == ["c"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[["f.py"]]\nmutants = ["a"]\nreason = " "', "says nothing"),
        ('[["f.py"]]\nmutants = ["a", "a"]\nreason = "r"', "named twice: a"),
    ],
)
def test_a_file_of_reasons_that_is_not_one(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "reasons.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=fault):
        mutation_reasons.read(path)


# the whole


def mutate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(HERE), *arguments], capture_output=True, text=True, check=False)


def test_mutants_are_listed() -> None:
    listed = mutate("--list", "src/interlock/machines/run.py", "--only", "claim = ")
    assert listed.returncode == 0
    assert "machines/run.py:" in listed.stdout
    assert "claim = s.DISPATCHED.to(s.CLAIMED) -> claim = s.DISPATCHED.to(s.RUNNING)" in listed.stdout


def test_a_file_that_is_not_mutated_is_named() -> None:
    refused = mutate("decide/ghost.py")
    assert refused.returncode == 2
    assert "decide/ghost.py is not mutated; these are:" in refused.stderr


@pytest.mark.slow
def test_a_survivor_needs_a_reason_and_a_reason_a_survivor(tmp_path: Path) -> None:
    """One change of the bound that every cap lies below, which nothing can notice, and one that tests notice."""
    empty, stale = tmp_path / "empty.toml", tmp_path / "stale.toml"
    empty.touch()
    killed = "exponential_ms: return 0 -> return 1"
    stale.write_text(f'[["decide/backoff.py"]]\nmutants = ["{killed}"]\nreason = "none"\n', "utf-8")

    alone = mutate(
        "decide/backoff.py", "--only", "-> return min(max_ms, base_ms << min(tries - 1, 41))", f"--reasons={empty}"
    )
    assert alone.returncode == 1, alone.stderr
    assert "survived decide/backoff.py:" in alone.stdout

    noticed = mutate("decide/backoff.py", "--only", killed, f"--reasons={stale}")
    assert noticed.returncode == 1, noticed.stderr
    assert f"a test notices it: decide/backoff.py: {killed}" in noticed.stdout


@pytest.mark.slow
def test_a_changed_machine_is_compiled_before_it_is_judged() -> None:
    """Else the test that the compiled tables are current would notice every change, and no other would have to."""
    found = mutate("machines/run.py", "--verbose", "--only", "-> renew = s.CLAIMED.to.itself()")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "test_run_rules.py::test_the_moves_are_those_of_the_design" in found.stdout
    assert "test_compiled.py" not in found.stdout
