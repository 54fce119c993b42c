"""Every command that README, tutorial and some how-to pages tell a reader to type is typed here, in order, in an empty folder."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 60

_spec = importlib.util.spec_from_file_location("docs_examples", Path(__file__).with_name("docs_examples.py"))
assert _spec is not None
assert _spec.loader is not None
docs_examples = importlib.util.module_from_spec(_spec)
sys.modules["docs_examples"] = docs_examples
_spec.loader.exec_module(docs_examples)


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "120"}


def _shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


def _wait_for_daemon(folder: Path, daemon: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        assert daemon.poll() is None, "the daemon ended by itself"
        shown = _shell("interlock ps", folder)
        if shown.returncode == 0 and "active" in shown.stdout:
            return
    pytest.fail("the daemon did not come up")


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/tutorial.md",
        "docs/how-to/testing.md",
        "docs/how-to/agents-that-pull.md",
        "docs/how-to/switch.md",
    ],
)
def test_what_the_page_says_works(page: str, tmp_path: Path) -> None:
    daemon: subprocess.Popen[bytes] | None = None
    (tmp_path / "README.md").write_text("seven words are in this small file\n")
    try:
        for example in docs_examples.examples(ROOT / page):
            kind, _, name = example.mark.partition(": ")
            if kind == "file":
                (tmp_path / name).write_text(example.body)
            elif example.mark == "run: daemon":
                daemon = subprocess.Popen(
                    ["bash", "-c", f"exec {example.body.strip()}"],
                    cwd=tmp_path,
                    env=_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                _wait_for_daemon(tmp_path, daemon)
            elif kind == "run":
                for line in example.body.strip().splitlines():
                    done = _shell(line, tmp_path)
                    assert done.returncode == 0, f"$ {line}\n{done.stdout}\n{done.stderr}"
                    assert "Traceback" not in done.stderr
            elif kind == "python":
                script = tmp_path / "example.py"
                script.write_text(example.body)
                done = _shell(f"{sys.executable} example.py", tmp_path)
                assert done.returncode == 0, done.stderr
    finally:
        if daemon is not None and daemon.poll() is None:
            daemon.send_signal(signal.SIGINT)
            daemon.wait(DEADLINE_SECONDS)


def test_every_shell_block_of_the_readme_is_run() -> None:
    """A command that nobody types rots. The two install commands are typed by .ci/run."""
    gate = (ROOT / ".ci/run").read_text("utf-8")
    for example in docs_examples.examples(ROOT / "README.md"):
        if example.language == "sh" and not example.mark:
            assert "python3 -m venv" in example.body
    assert "README.md" in gate, ".ci/run takes the two commands from the README itself"


def test_links_lead_somewhere() -> None:
    import re

    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} points at {target}"


def test_the_reference_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
