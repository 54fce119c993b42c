"""``python -m interlock.testing.simulation`` and the words that it uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulation_campaign import drawn

from interlock.testing.simulation import decode, encode
from interlock.testing.simulation.__main__ import main
from interlock.testing.simulation.scenario import Arrival, Conduct, Deed, DeedKind, Fault, FaultKind, Mishap, Plan
from interlock.testing.simulation.words import moment, of_deed, of_entry, of_fault, of_plan


def test_a_seed_is_played_and_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log, kept = tmp_path / "log", tmp_path / "kept.json"
    status = main(["--seed", "3", "--runs", "10", "--hours", "0.2", "--log", str(log), "--keep", str(kept)])

    said = capsys.readouterr().out
    assert status == 0
    assert "every rule held" in said
    assert "real time" in said
    assert log.read_bytes().count(b'"submit"') == 10
    assert decode(kept.read_bytes()).jobs == 10


def test_a_kept_scenario_is_played_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_bytes(encode(drawn(1, runs=5, hours=0.2)))

    assert main(["--scenario", str(kept)]) == 0
    assert "5 task(s)" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, b"", b'{"seed": 1}', b"not at all"])
def test_a_file_that_is_no_scenario_is_told(
    content: bytes | None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SystemExit) as leaving:
        main(["--scenario", str(path)])

    assert leaving.value.code == 2
    assert str(path) in capsys.readouterr().err


def test_everything_that_happens_has_words() -> None:
    for fault in FaultKind:
        assert of_fault(Fault(at_ms=1, kind=fault, ms=3000, agent="coder", step_ms=-5000))
    for deed in DeedKind:
        assert of_deed(Deed(at_ms=1, kind=deed, job="t1", ms=60_000, at_work=True), "t1")
    for conduct in Conduct:
        assert of_plan(Plan(conduct=conduct))
    odd = Plan(launch_ms=20, mishap=Mishap.AFTER_SPAWN, deaf=True, stone=2, brood_ms=9000, quiet=True, riddle=1)
    assert "ignores TERM" in of_plan(odd)
    assert "cannot be killed 2 time(s)" in of_plan(odd)
    for entry in drawn(1, runs=20, hours=1).entries:
        lines = of_entry(entry)
        assert len(lines) == (len(entry.jobs) if isinstance(entry, Arrival) else 1)


def test_a_moment_is_told_to_the_millisecond() -> None:
    assert moment(90_061_007) == "1d 01:01:01.007"
