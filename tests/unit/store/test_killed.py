"""A process that dies in a commit leaves all of it or nothing, and what it had answered is there."""

from __future__ import annotations

import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store_files import opened, python

from interlock.store.sqlite import SqliteStore

WRITE = """
import sys
from functools import partial
from pathlib import Path
import trio
from interlock.store.sqlite import SqliteStore

def put(number, tx):
    tx.set_meta(f"{number} here", "x")
    tx.set_meta(f"{number} and here", "x")
    return number

def inline(store):
    for number in range(1, 6):
        print(store.write_now(partial(put, number)), flush=True)

async def threads(store):
    for number in range(1, 6):
        print(await store.write(partial(put, number)), flush=True)

store = SqliteStore(Path(sys.argv[1]), create=True, inline=sys.argv[2] == "inline")
inline(store) if sys.argv[2] == "inline" else trio.run(threads, store)
store.close()
"""


@pytest.mark.parametrize("mode", ["inline", "threads"])
@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_a_kill_at_the_commit(tmp_path: Path, mode: str, nth: int, point: str) -> None:
    process = python(WRITE, tmp_path, mode, crash_at=f"{point}:{nth}")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (-signal.SIGKILL, "")
    answered = [int(line) for line in out.split()]
    assert answered == list(range(1, nth))
    with closing(SqliteStore(tmp_path, inline=True)) as store:
        assert store.integrity_faults() == []
        with opened(store.path) as raw:
            found = {key for (key,) in raw.execute("SELECT key FROM meta WHERE key GLOB '[0-9]*'")}
        stands = nth if point == "after_commit" else nth - 1
        assert found == {f"{number} {where}" for number in range(1, stands + 1) for where in ("here", "and here")}
        store.write_now(lambda tx: tx.set_meta("later", "x"))


def test_a_process_that_nobody_kills_writes_all(tmp_path: Path) -> None:
    process = python(WRITE, tmp_path, "threads")
    assert process.communicate(timeout=60) == ("1\n2\n3\n4\n5\n", "")
    assert process.returncode == 0
