"""`interlock run` of 500 x `true` beside `xargs -P4` (and GNU parallel, where it is installed) doing the same."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.probe import median_seconds

TASKS = 500
AT_ONCE = 4


def _interlock(folder: Path, count: int) -> None:
    backlog = folder / "backlog.jsonl"
    backlog.write_text("".join(f'{{"id": "t{n}", "title": "task {n}"}}\n' for n in range(count)))
    shutil.rmtree(folder / ".interlock", ignore_errors=True)
    command = [sys.executable, "-m", "interlock", "run", str(backlog), "--agent", "true", "--concurrency", str(AT_ONCE)]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def rows(times: int = 3) -> list[tuple[str, str, str]]:
    """Table rows: what, commands per second, against xargs."""
    numbers = "\n".join(map(str, range(TASKS)))

    def xargs() -> None:
        subprocess.run(["xargs", f"-P{AT_ONCE}", "-I{}", "true"], input=numbers, text=True, check=True)

    def parallel() -> None:
        subprocess.run(["parallel", f"-j{AT_ONCE}", "true"], input=numbers, text=True, check=True, capture_output=True)

    found = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        floor = TASKS / median_seconds(xargs, times)
        ours = TASKS / median_seconds(lambda: _interlock(place, TASKS), times)
        start = median_seconds(lambda: _interlock(place, 1), times)
        found.append((f"xargs -P{AT_ONCE}, {TASKS} x true", f"{floor:.0f}/s", "the floor"))
        if shutil.which("parallel"):
            peer = TASKS / median_seconds(parallel, times)
            found.append((f"GNU parallel -j{AT_ONCE}, {TASKS} x true", f"{peer:.0f}/s", f"{peer / floor:.2f} of xargs"))
        against = f"{ours / floor:.2f} of xargs"
        found.append((f"interlock run, {TASKS} x true, {AT_ONCE} at once, start included", f"{ours:.0f}/s", against))
        found.append(("interlock run, 1 x true (the whole program)", f"{start:.2f} s", ""))
    return found
