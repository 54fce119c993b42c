"""The committed diagrams are current, and the check names what is not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from interlock.diagrams import MACHINES, render
from interlock.diagrams.generate import COMMAND, files, main, stale

if TYPE_CHECKING:
    import pytest

COMMITTED = Path(__file__).parents[3] / "state_diagrams"


def test_the_committed_folder_is_current() -> None:
    assert stale(COMMITTED) == ([], []), f"renew with: {COMMAND}"


def test_what_belongs_into_the_folder() -> None:
    assert set(files()) == {f"{m}.{ext}" for m in MACHINES for ext in ("mmd", "md", "dot")} | {"README.md"}


def test_the_readme_shows_every_machine_with_its_words() -> None:
    readme = files()["README.md"]
    for machine in MACHINES:
        assert f"```mermaid\n{render(machine, 'mermaid')}```" in readme
    assert "A run waits in `queued`." in readme
    assert "Theory of operation" not in readme
    assert "``" not in readme.replace("```", "")
    assert not [line for line in readme.splitlines() if line.startswith("---")]


def test_a_written_folder_passes_its_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new"
    assert main(["--folder", str(folder)]) == 0
    assert main(["--folder", str(folder), "--check"]) == 0
    assert capsys.readouterr() == ("", "")
    assert {path.name: path.read_text() for path in folder.iterdir()} == files()


def test_the_check_names_what_is_stale_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--folder", str(tmp_path)])
    (tmp_path / "run.mmd").write_text("stateDiagram-v2\n")
    (tmp_path / "worker.dot").unlink()
    (tmp_path / "toaster.md").write_text("of another time\n")
    (tmp_path / ".gitkeep").touch()
    assert main(["--folder", str(tmp_path), "--check"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"{tmp_path}/run.mmd is stale",
        f"{tmp_path}/worker.dot is stale",
        f"{tmp_path}/toaster.md does not come from a machine: delete it",
        f"renew with: {COMMAND} --folder {tmp_path}",
    ]
    assert (tmp_path / "run.mmd").read_text() == "stateDiagram-v2\n"
    assert not (tmp_path / "worker.dot").exists()


def test_writing_renews_but_deletes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("a person's")
    (tmp_path / "run.md").write_text("old")
    assert main(["--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"{tmp_path}/notes.txt does not come from a machine: delete it\n"
    assert (tmp_path / "notes.txt").read_text() == "a person's"
    assert (tmp_path / "run.md").read_text() == files()["run.md"]


def test_a_missing_folder_is_stale_as_a_whole(tmp_path: Path) -> None:
    assert stale(tmp_path / "nowhere") == (list(files()), [])
