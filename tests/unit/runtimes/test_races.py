"""Several dispatchers at once launch into and recover the same folder, while they are stopped and killed at random."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.ports.runtime import Alive, Unknown
from interlock.runtimes import CommandRuntime

WORKER = """
    import os, random, sys
    from pathlib import Path
    import trio
    from interlock.domain.settings import Agent
    from interlock.ports.runtime import CannotStart, Launch
    import interlock.runtimes.command as command

    cwd, cgroups, seed = sys.argv[1:]
    rng = random.Random(int(seed))

    async def main():
        runtime = command.CommandRuntime(cgroups=cgroups == "True")
        for line in sys.stdin:
            folder = Path(line.rstrip())
            ran = folder / "ran"
            await trio.sleep(rng.random() * 0.003)
            if rng.random() < 0.5:
                try:
                    handle = await runtime.launch(Launch(
                        run=1, run_id="r", fence=1, folder=folder, cwd=Path(cwd), env=dict(os.environ),
                        agent=Agent(name="a", command=f"echo ran >> '{ran}'; exit 3")))
                    print("launched", flush=True)
                    await handle.wait()
                    await handle.stop(0)
                except CannotStart as reason:
                    print("refused", flush=True)
            else:
                recovery = await runtime.recover(folder)
                if type(recovery).__name__ == "Alive":
                    recovery.handle.close()
                times = ran.read_text().count("ran") if ran.exists() else 0
                print(type(recovery).__name__, times, flush=True)

    trio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_at_most_one_ever_runs_and_none_after_a_final_answer(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any], seed: int
) -> None:
    rng = random.Random(seed)

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WORKER), yard.cwd, str(runtime.contained), str(rng.random())[2:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    workers = [start() for _ in range(4)]
    said: list[str] = []
    try:
        for _ in range(120):
            folder: Path = yard.folder()
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write(f"{folder}\n")
                worker.stdin.flush()
            victim = rng.randrange(len(workers))
            violence = rng.choice([None, None, signal.SIGSTOP, signal.SIGKILL])
            if violence:
                await trio.sleep(rng.random() * 0.005)
                os.kill(workers[victim].pid, violence)
            answers = []
            for number, worker in enumerate(workers):
                if number != victim or not violence:
                    answers.append(await trio.to_thread.run_sync(worker.stdout.readline))  # type: ignore[union-attr]
            if violence == signal.SIGSTOP:
                os.kill(workers[victim].pid, signal.SIGCONT)
                answers.append(await trio.to_thread.run_sync(workers[victim].stdout.readline))  # type: ignore[union-attr]
            if violence == signal.SIGKILL:
                workers[victim].communicate()
                workers[victim] = start()
            final = await runtime.recover(folder)
            if isinstance(final, Alive):
                with trio.fail_after(20):
                    await final.handle.wait()
                    await final.handle.stop(0)
                final = await runtime.recover(folder)
            assert not isinstance(final, (Alive, Unknown))
            ran = folder / "ran"
            times = ran.read_text().count("ran") if ran.exists() else 0
            assert times <= 1, answers
            assert answers.count("launched\n") <= 1
            for answer in answers:
                words = answer.split()
                if words[0] in ("NeverStarted", "Ended"):
                    assert int(words[1]) == times, f"started after a final answer: {answers}"
            assert AttemptFiles(folder).void.exists()
            said += [answer.split()[0] for answer in answers]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert {"launched", "refused", "NeverStarted"} <= set(said)
