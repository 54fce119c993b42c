"""Handles of agents that this process did not start: watched by pidfds or by looking, by one task or several."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.run import ProcessIdentity
from interlock.ports.runtime import Activity, Alive, Ending, Handle, TreeSurvives
from interlock.runtimes import CommandRuntime, handle, process, records
from interlock.runtimes.handle import ProcessHandle

AGENT = "echo $$ > started; while [ ! -e go ]; do sleep 0.01; done; exit 7"


@pytest.fixture
async def found(runtime: CommandRuntime, yard: Any, launcher: Any, until: Callable[..., Any]) -> Handle:
    """A handle of an agent whose dispatcher was killed."""
    folder = yard.folder()
    child = launcher(folder, AGENT, contained=runtime.contained)
    await until(lambda: yard.pid_in("started"))
    child.kill()
    await until(lambda: child.poll() is not None)
    recovered = await runtime.recover(folder)
    assert isinstance(recovered, Alive)
    return recovered.handle


def refusing(number: int, original: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    """Refuse so often, then do what ``original`` does."""
    left = [None] * times

    def refuse(*words: Any) -> Any:
        if left:
            left.pop()
            raise OSError(number, os.strerror(number))
        return original(*words)

    return refuse


async def endings_of(agent: Handle, tasks: int, yard: Any) -> list[Ending]:
    """Let so many tasks wait for the agent, then have it end."""
    endings = []

    async def wait() -> None:
        endings.append(await agent.wait())

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert endings == []
            (yard.cwd / "go").touch()
        await agent.stop(0)
    return endings


async def test_several_may_wait(found: Handle, yard: Any) -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert await endings_of(found, 3, yard) == [Ending(exit_status=7)] * 3
    assert len(os.listdir("/proc/self/fd")) < before, "the pidfd is closed, and so are its copies"


async def test_several_may_wait_when_no_descriptor_is_left(
    found: Handle, yard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle.os, "dup", refusing(errno.EMFILE, os.dup, 1000))
    assert await endings_of(found, 2, yard) == [Ending(exit_status=7)] * 2


async def test_without_pidfds_it_is_looked_at(
    runtime: CommandRuntime, found: ProcessHandle, yard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    again = await runtime.recover(found._files.folder)
    found.close()
    assert isinstance(again, Alive)
    assert await endings_of(again.handle, 2, yard) == [Ending(exit_status=7)] * 2


async def test_who_waits_is_told_that_the_handle_was_closed(found: Handle, yard: Any) -> None:
    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await found.wait()

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            found.close()
        await found.stop(0)
    assert not yard.lives(yard.pid_in("started"))


async def test_who_waits_while_it_is_stopped_hears_of_the_end(found: Handle, yard: Any) -> None:
    endings = []

    async def wait() -> None:
        endings.append(await found.wait())

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await found.stop(5000)
    assert endings == [Ending(exit_status=143)]


async def test_a_status_is_asked_for_again_when_the_system_is_short_of_means(
    found: Handle, yard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "read_exit", refusing(errno.EMFILE, records.read_exit, 3))
    assert await endings_of(found, 1, yard) == [Ending(exit_status=7)]


async def test_a_status_that_cannot_be_read_is_not_known(
    found: ProcessHandle, yard: Any, until: Callable[..., Any]
) -> None:
    found._files.exit.mkdir()
    assert await endings_of(found, 1, yard) == [Ending(exit_status=None)]


async def test_an_agent_that_goes_while_its_folder_is_removed(found: ProcessHandle, yard: Any) -> None:
    shutil.rmtree(yard.base / "attempts")
    assert found.activity().output_bytes == 0
    (yard.cwd / "go").touch()
    with trio.fail_after(20):
        assert await found.wait() == Ending(exit_status=None)
        await found.stop(0)


# not of here


def foreign(**changes: Any) -> ProcessIdentity:
    own = process.identify(os.getpid())
    assert own is not None
    return msgspec.structs.replace(own, **changes)


async def test_one_of_another_pid_namespace_is_not_ours_to_stop(yard: Any) -> None:
    agent = ProcessHandle(AttemptFiles(yard.folder()), foreign(pid_namespace="pid:[1]"))
    with pytest.raises(TreeSurvives, match="another pid namespace"):
        await agent.stop(0)
    with trio.move_on_after(0.05):
        pytest.fail(f"nobody knows: {await agent.wait()}")


async def test_one_of_another_boot_has_ended(yard: Any) -> None:
    files = AttemptFiles(yard.folder())
    agent = ProcessHandle(files, foreign(boot_id="another"))
    assert await agent.wait() == Ending(exit_status=None)
    files.lock.touch()
    await agent.stop(0)


STOPS_ITSELF = """
    import os, trio
    from pathlib import Path
    from interlock.ports.runtime import TreeSurvives
    from interlock.runtimes import CommandRuntime

    async def main():
        runtime = CommandRuntime()
        found = await runtime.recover(Path(os.environ["INTERLOCK_ATTEMPT_DIR"]))
        for _ in range(2):
            try:
                await found.handle.stop(0)
            except TreeSurvives as reason:
                print(reason, flush=True)

    trio.run(main)
"""


async def test_an_agent_cannot_stop_the_tree_that_it_is_part_of(runtime: CommandRuntime, yard: Any) -> None:
    launch = yard.launch((sys.executable, "-c", textwrap.dedent(STOPS_ITSELF)))
    agent = await runtime.launch(launch)
    with trio.fail_after(60):
        assert await agent.wait() == Ending(exit_status=0)
    await agent.stop(0)
    assert agent.identity is not None
    assert yard.output(launch).count(f"this process (pid {agent.identity.pid}) is itself part of the tree") == 2


# not known yet


@pytest.fixture
async def unknown(
    runtime: CommandRuntime, yard: Any, launcher: Any, until: Callable[..., Any]
) -> tuple[ProcessHandle, Any]:
    """A handle of an agent whose launcher stands still under the lock, and that launcher."""
    folder = yard.folder()
    child = launcher(folder, AGENT, contained=runtime.contained, stop_at="launch.locked")

    def state() -> str | None:
        stat = process.read_stat(child.pid)
        return stat and stat.state

    await until(lambda: state() == "T")
    recovered = await runtime.recover(folder)
    assert isinstance(recovered, Alive)
    assert isinstance(recovered.handle, ProcessHandle)
    return recovered.handle, child


async def test_what_has_not_started_does_nothing(unknown: tuple[ProcessHandle, Any], yard: Any) -> None:
    agent, child = unknown
    assert agent.identity is None
    assert agent.activity() == Activity(output_bytes=0, cpu_ticks=0)
    await agent._tree.kill(hunt=True)
    assert process.read_stat(child.pid) is not None, "its launcher is not ours to end"


async def test_one_that_says_who_it_is_at_the_last_moment_is_met(
    unknown: tuple[ProcessHandle, Any], yard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes its identity, and lets go of the lock, between the look for the one and the look at the other."""
    agent, child = unknown
    looks = []

    def not_yet(files: AttemptFiles) -> Any:
        looks.append(1)
        return None if len(looks) % 2 else records.read_identity(files)

    monkeypatch.setattr(handle, "read_identity", not_yet)
    (yard.cwd / "go").touch()
    child.send_signal(signal.SIGCONT)
    with trio.fail_after(20):
        assert await agent.wait() == Ending(exit_status=7)
        await agent.stop(0)
    assert agent.identity is not None


@pytest.mark.parametrize("what", ["stat", "find_root"])
async def test_a_removed_folder_is_looked_for_again_when_the_system_is_short_of_means(
    unknown: tuple[ProcessHandle, Any], yard: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    agent, child = unknown
    shutil.rmtree(agent._files.folder)
    child.kill()
    child.wait()
    if what == "stat":
        stat = os.stat
        short = refusing(errno.EMFILE, stat, 3)
        lock = agent._files.lock

        def refuse(path: Any, **more: Any) -> Any:
            return short(path) if path == lock else stat(path, **more)

        monkeypatch.setattr(handle.os, "stat", refuse)
    else:
        find_root = agent._tree.find_root
        left = [1, 2, 3]

        async def refuse_to_find() -> Any:
            if left:
                left.pop()
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return await find_root()

        monkeypatch.setattr(agent._tree, "find_root", refuse_to_find)
    with trio.fail_after(20):
        assert await agent.wait() == Ending(exit_status=None)
        await agent.stop(0)


async def test_a_function_whose_folder_is_removed_is_waited_for(
    yard: Any, nursery: trio.Nursery, until: Callable[..., Any]
) -> None:
    """Its interpreter lives: it may be at work."""
    folder: Path = yard.folder()
    files = AttemptFiles(folder)
    from interlock.runtimes import attempt_lock

    lock = attempt_lock.take(files)
    assert lock is not None
    records.write_in_process_mark(files)
    agent = ProcessHandle(files, None)
    alive = [process.Liveness.ALIVE]
    patch = pytest.MonkeyPatch()
    patch.setattr(handle, "is_alive", lambda _: alive[0])
    endings = []

    async def wait() -> None:
        endings.append(await agent.wait())

    try:
        nursery.start_soon(wait)
        await until(lambda: agent._interpreter is not None)
        shutil.rmtree(folder)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert endings == []
        os.close(lock)
        alive[0] = process.Liveness.DEAD
        await until(lambda: endings)
    finally:
        patch.undo()
    assert endings == [Ending(exit_status=None)]
