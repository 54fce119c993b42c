"""The folder of an attempt goes away (someone tidies up) while its agent runs: nobody is forgotten, nothing hangs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.run import ProcessIdentity
from interlock.ports.runtime import Alive, CannotStart, Ended, Ending, NeverStarted, Unknown
from interlock.runtimes import CommandRuntime, cgroup, process
from interlock.runtimes.process import read_stat

AGENT = "echo $$ >> started; while [ ! -e go ]; do sleep 0.01; done; exit 7"
BARE = "exec env -i /bin/sh -c 'echo $$ > started; while [ ! -e go ]; do /bin/sleep 0.01; done; exit 7'"


async def launched_elsewhere(
    runtime: CommandRuntime, yard: Any, launcher: Any, until: Callable[..., Any], command: str = AGENT
) -> tuple[Path, ProcessIdentity]:
    """An agent whose dispatcher was killed, and whose folder was removed: the folder, and the agent."""
    folder = yard.folder()
    child = launcher(folder, command, contained=runtime.contained)
    words = (await trio.to_thread.run_sync(child.stdout.readline)).split()
    identity = process.identify(int(words[1]))
    assert identity is not None
    await until(lambda: yard.pid_in("started"))
    child.kill()
    await until(lambda: child.poll() is not None)
    shutil.rmtree(yard.base / "attempts")
    return folder, identity


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "unrecorded"])
@pytest.mark.parametrize("command", [AGENT, BARE], ids=["marked", "bare"])
async def test_it_is_adopted(
    runtime: CommandRuntime, yard: Any, launcher: Any, until: Callable[..., Any], recorded: bool, command: str
) -> None:
    folder, identity = await launched_elsewhere(runtime, yard, launcher, until, command)
    known = identity if recorded else None
    for _ in range(2):
        found = await runtime.recover(folder, known, started=recorded)
        assert isinstance(found, Alive)
        assert found.handle.identity == identity
        with trio.move_on_after(0.1):
            pytest.fail(f"it has not ended: {await found.handle.wait()}")
        with pytest.raises(CannotStart):
            await runtime.launch(yard.launch(AGENT, folder))
    (yard.cwd / "go").touch()
    with trio.fail_after(20):
        assert await found.handle.wait() == Ending(exit_status=7), "the folder is there again"
        await found.handle.stop(0)
    assert await runtime.recover(folder, known, started=recorded) == Ended(Ending(exit_status=7))


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "unrecorded"])
@pytest.mark.parametrize("command", [AGENT, BARE], ids=["marked", "bare"])
async def test_what_outlived_its_keeper_is_found_and_ended(
    runtime: CommandRuntime, yard: Any, launcher: Any, until: Callable[..., Any], recorded: bool, command: str
) -> None:
    folder, identity = await launched_elsewhere(runtime, yard, launcher, until, command)
    pid = yard.pid_in("started")
    stat = read_stat(identity.pid)
    assert stat is not None
    os.kill(stat.parent, signal.SIGKILL)
    await until(lambda: not yard.lives(stat.parent))
    known = identity if recorded else None
    found = await runtime.recover(folder, known, started=recorded)
    if command == BARE and not recorded and not runtime.contained:
        # Its open lock file is all that tells of it; whether that is an agent or a launcher, nobody knows.
        assert isinstance(found, Unknown)
        assert f"pid {pid} " in found.why
        (yard.cwd / "go").touch()
        await until(lambda: not yard.lives(pid))
        assert await runtime.recover(folder, known, started=recorded) == NeverStarted()
        return
    assert isinstance(found, Alive)
    assert found.handle.identity == identity
    with trio.fail_after(20):
        await found.handle.stop(2000)
        assert await found.handle.wait() == Ending(exit_status=None)
    assert not yard.lives(pid)
    after = await runtime.recover(folder, known, started=recorded)
    assert after == (Ended(Ending(exit_status=None)) if recorded else NeverStarted())


@pytest.mark.parametrize("started", [True, False])
async def test_nothing_is_left(runtime: CommandRuntime, yard: Any, started: bool) -> None:
    launch = yard.launch("exit 0")
    handle = await runtime.launch(launch)
    await handle.wait()
    await handle.stop(0)
    shutil.rmtree(launch.folder)
    found = await runtime.recover(launch.folder, handle.identity, started=started)
    assert found == Ended(Ending(exit_status=None)), "what has an identity was started"
    shutil.rmtree(launch.folder)
    found = await runtime.recover(launch.folder, started=started)
    assert found == (Ended(Ending(exit_status=None)) if started else NeverStarted())
    assert AttemptFiles(launch.folder).void.exists()


async def test_another_boot_or_namespace(yard: Any) -> None:
    runtime = CommandRuntime(cgroups=False)
    own = process.identify(os.getpid())
    assert own is not None
    folder = yard.base / "attempts" / "gone"
    earlier = msgspec.structs.replace(own, boot_id="another")
    assert await runtime.recover(folder, earlier, started=True) == Ended(Ending(exit_status=None))
    foreign = msgspec.structs.replace(own, pid_namespace="pid:[1]")
    assert isinstance(await runtime.recover(folder, foreign, started=True), Unknown)


@pytest.mark.parametrize("again", ["gone", "made anew", "a file"])
@pytest.mark.parametrize("command", [AGENT, BARE, f"setsid sh -c '{AGENT}' & wait"], ids=["agent", "bare", "setsid"])
async def test_a_live_handle_still_stops_it(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any], command: str, again: str
) -> None:
    launch = yard.launch(command)
    handle = await runtime.launch(launch)
    pid = await until(lambda: yard.pid_in("started"))
    shutil.rmtree(launch.folder)
    if again == "made anew":
        launch.folder.mkdir()
        AttemptFiles(launch.folder).lock.touch()
    elif again == "a file":
        launch.folder.touch()
    with trio.fail_after(20):
        await handle.stop(2000)
        assert not yard.lives(pid)
        await handle.stop(2000)
        ending = await handle.wait()
    assert ending == Ending(exit_status=143)


async def test_a_live_handle_sees_the_end(runtime: CommandRuntime, yard: Any, until: Callable[..., Any]) -> None:
    launch = yard.launch(AGENT)
    handle = await runtime.launch(launch)
    await until(lambda: yard.pid_in("started"))
    shutil.rmtree(yard.base / "attempts")
    assert handle.activity().output_bytes == 0
    (yard.cwd / "go").touch()
    with trio.fail_after(20):
        assert await handle.wait() == Ending(exit_status=7)
        await handle.stop(0)


async def test_what_it_left_behind_is_not_forgotten(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    """Its own session, no mark, no parent: only the removed lock, or the cgroup, tells of it."""
    launch = yard.launch(
        "env -i setsid /bin/sh -c 'echo $$ > started; while :; do /bin/sleep 1; done' & "
        "while [ ! -s started ]; do sleep 0.01; done; exit 0"
    )
    handle = await runtime.launch(launch)
    assert await handle.wait() == Ending(exit_status=0)
    pid = yard.pid_in("started")
    shutil.rmtree(launch.folder)
    assert isinstance(await runtime.recover(launch.folder, handle.identity, started=True), Alive)
    shutil.rmtree(launch.folder)
    with trio.fail_after(20):
        await handle.stop(2000)
    assert not yard.lives(pid)


async def test_a_folder_that_was_moved_is_as_good_as_gone(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    launch = yard.launch(AGENT)
    handle = await runtime.launch(launch)
    pid = await until(lambda: yard.pid_in("started"))
    launch.folder.rename(launch.folder.with_name("aside"))
    assert isinstance(await runtime.recover(launch.folder), Alive)
    shutil.rmtree(launch.folder)
    with trio.fail_after(20):
        await handle.stop(2000)
    assert not yard.lives(pid)


@pytest.mark.parametrize("point", ["launch.locked", "launch.contained"])
async def test_a_launcher_that_stood_still_under_the_lock_starts_nothing(
    runtime: CommandRuntime, yard: Any, launcher: Any, until: Callable[..., Any], point: str
) -> None:
    folder = yard.folder()
    child: subprocess.Popen[str] = launcher(folder, AGENT, contained=runtime.contained, stop_at=point)
    await until(lambda: (stat := read_stat(child.pid)) is not None and stat.state == "T")
    recovered = await runtime.recover(folder)
    assert isinstance(recovered, Alive)
    shutil.rmtree(folder)
    found = await runtime.recover(folder)
    assert isinstance(found, Unknown)
    assert f"pid {child.pid} " in found.why
    shutil.rmtree(folder)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recovered.handle.wait)
        await trio.sleep(0.05)
        assert process.read_stat(child.pid), "it is not ours to end"
        child.send_signal(signal.SIGCONT)
        # at the latest it cannot be written who was started
        assert (await trio.to_thread.run_sync(child.communicate))[0].startswith("refused")
        with trio.fail_after(20):
            await recovered.handle.wait()
    with trio.fail_after(20):
        await recovered.handle.stop(0)
    assert not (yard.cwd / "started").exists()
    assert await runtime.recover(folder) == NeverStarted()


async def test_a_cgroup_is_found_below_another_dispatcher_s(yard: Any) -> None:
    parent = cgroup.usable_parent()
    if parent is None:
        pytest.skip("cgroups cannot be made here")
    folder = yard.base / "attempts" / "lost"
    other = parent.parent / "another-dispatcher"
    name = cgroup.cgroup_name(folder.resolve())
    path = other / cgroup.PARENT / name
    path.mkdir(parents=True)
    child = await trio.lowlevel.open_process(["env", "-i", "sleep", "1000"], start_new_session=True)
    try:
        (path / "cgroup.procs").write_text(str(child.pid))
        found = await CommandRuntime(cgroups=False).recover(folder)
        assert isinstance(found, Alive)
        assert found.handle.identity == process.identify(child.pid)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.wait)
            with trio.fail_after(20):
                await found.handle.stop(0)
        assert not path.exists()
    finally:
        if child.returncode is None:
            child.kill()
        for left in (path, path.parent, other):
            if left.exists():
                left.rmdir()
