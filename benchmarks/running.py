"""`interlock run` of 500 x `true` beside `xargs -P4` and GNU parallel doing the same: one process per task."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.probe import Plan, in_turn, say, seconds
from benchmarks.table import Bound, Row

AT_ONCE = 4
OF_XARGS = Bound(must=0.5, stretch=0.75)
OF_PARALLEL = Bound(must=2, stretch=4)


def interlock_run(folder: Path, count: int) -> None:
    """Run ``count`` tasks in a new data folder, to the end."""
    backlog = folder / "backlog.jsonl"
    backlog.write_text("".join(f'{{"id": "t{n}", "title": "task {n}"}}\n' for n in range(count)))
    shutil.rmtree(folder / ".interlock", ignore_errors=True)
    command = [sys.executable, "-m", "interlock", "run", str(backlog), "--agent", "true", "--concurrency", str(AT_ONCE)]
    done = subprocess.run(command, cwd=folder, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"interlock run ended with {done.returncode}: {done.stderr[-2000:]}")


def rows(plan: Plan) -> list[Row]:
    """Tasks per second: the whole command, and without what the program needs to start and to end."""
    tasks, place = plan.size(500, 20), plan.place("run")
    numbers = "".join(f"{number}\n" for number in range(tasks))

    def command(*words: str) -> Callable[[], float]:
        return lambda: seconds(lambda: subprocess.run(words, input=numbers, text=True, check=True, capture_output=True))

    measures = {
        "xargs": command("xargs", f"-P{AT_ONCE}", "-I{}", "true"),
        "ours": lambda: seconds(lambda: interlock_run(place, tasks)),
        "one": lambda: seconds(lambda: interlock_run(place, 1)),
    }
    if shutil.which("parallel"):
        measures["parallel"] = command("parallel", f"-j{AT_ONCE}", "true")
    say(f"interlock run of {tasks} tasks")
    done = in_turn(measures, plan.times)
    # Rates rather than times; without the start one task less was done.
    rates = {name: [tasks / each for each in done.figures[name]] for name in measures if name != "one"}
    rates["drain"] = [
        (tasks - 1) / max(whole - one, 1e-9)
        for whole, one in zip(done.figures["ours"], done.figures["one"], strict=True)
    ]
    done.figures.update(rates)

    found = [Row(what=f"floor: xargs -P{AT_ONCE}, {tasks} x true", figure=f"{done.median('xargs'):,.0f}/s")]
    whole = f"interlock run, {tasks} x true, {AT_ONCE} at once, the whole command"
    drain = "the same without the start and end of the program (the time of one task taken off)"
    for what, name in ((whole, "ours"), (drain, "drain")):
        figure = f"{done.median(name):,.0f}/s"
        found.append(Row(what=what, figure=figure, against="xargs", value=done.ratio(name, "xargs"), bound=OF_XARGS))
        if "parallel" in rates:
            against = f"GNU parallel ({done.median('parallel'):,.0f}/s)"
            value = done.ratio(name, "parallel")
            found.append(Row(what=what, figure=figure, against=against, value=value, bound=OF_PARALLEL))
    if "parallel" not in rates:
        found.append(Row(what=whole, figure="", against="GNU parallel: not installed", bound=OF_PARALLEL))
    found.append(Row(what="interlock run, 1 x true: the program's start and end", figure=f"{done.median('one'):.2f} s"))
    return found
