"""A launcher that is killed or stopped at any point never leads to two processes, nor to one that nobody knows of."""

from __future__ import annotations

import errno
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
from interlock.ports.runtime import Alive, CannotStart, Ended, Ending, NeverStarted, TreeSurvives, Unknown
from interlock.runtimes import CommandRuntime, attempt_lock, give_up, process
from interlock.runtimes.process import read_stat
from interlock.runtimes.records import InProcess, read_identity, write_in_process_mark

AGENT = "echo $$ >> started; while [ ! -e go ]; do sleep 0.01; done; exit 7"


def state(child: subprocess.Popen[str]) -> str | None:
    stat = read_stat(child.pid)
    return stat and stat.state


async def ended(child: subprocess.Popen[str], until: Callable[..., Any]) -> int:
    await until(lambda: child.poll() is not None)
    code: int = child.returncode
    return code


@pytest.mark.parametrize("point", ["launch.locked", "launch.contained"])
async def test_killed_before_the_spawn(
    runtime: CommandRuntime, yard: Any, launcher: Any, until: Callable[..., Any], point: str
) -> None:
    folder = yard.folder()
    assert await ended(launcher(folder, AGENT, contained=runtime.contained, crash_at=point), until) == -signal.SIGKILL
    assert await runtime.recover(folder) == NeverStarted()
    with pytest.raises(CannotStart, match="void"):
        await runtime.launch(yard.launch(AGENT, folder))
    assert not (yard.cwd / "started").exists()


async def test_given_up_by_a_person_before_its_dispatcher_has_begun(runtime: CommandRuntime, yard: Any) -> None:
    launch = yard.launch(AGENT)
    shutil.rmtree(launch.folder)
    give_up(launch.folder)
    launch.folder.joinpath("prompt.md").touch()
    with pytest.raises(CannotStart, match="void"):
        await runtime.launch(launch)
    assert not (yard.cwd / "started").exists()


@pytest.mark.parametrize("point", ["launch.sent", "launch.spawned", "launch.released"])
async def test_killed_after_the_spawn(
    runtime: CommandRuntime, yard: Any, launcher: Any, until: Callable[..., Any], point: str
) -> None:
    folder = yard.folder()
    assert await ended(launcher(folder, AGENT, contained=runtime.contained, crash_at=point), until) == -signal.SIGKILL
    recovered = await runtime.recover(folder)
    assert isinstance(recovered, Alive)
    with pytest.raises(CannotStart):
        await runtime.launch(yard.launch(AGENT, folder))
    pid = await until(lambda: yard.pid_in("started"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recovered.handle.wait)
        (yard.cwd / "go").touch()
    assert await recovered.handle.wait() == Ending(exit_status=7)
    await recovered.handle.stop(1000)
    assert not yard.lives(pid)
    assert await runtime.recover(folder) == Ended(Ending(exit_status=7))


async def test_an_adopted_agent_is_stopped(
    runtime: CommandRuntime, yard: Any, launcher: Any, until: Callable[..., Any]
) -> None:
    folder = yard.folder()
    child = launcher(folder, AGENT, contained=runtime.contained)
    pid = await until(lambda: yard.pid_in("started"))
    child.kill()
    await ended(child, until)
    recovered = await runtime.recover(folder)
    assert isinstance(recovered, Alive)
    assert recovered.handle.identity is not None
    await recovered.handle.stop(5000)
    assert not yard.lives(pid)
    assert await runtime.recover(folder) == Ended(Ending(exit_status=143))


@pytest.mark.parametrize("point", ["recover.locked", "recover.voided"])
async def test_a_recovery_that_is_killed_is_repeated(runtime: CommandRuntime, yard: Any, point: str) -> None:
    folder = yard.folder()
    code = (
        "import sys, trio; from pathlib import Path; from interlock.runtimes import CommandRuntime;"
        "trio.run(CommandRuntime(cgroups=False).recover, Path(sys.argv[1]))"
    )
    import sys

    done = await trio.run_process(
        [sys.executable, "-c", code, folder], env={**os.environ, "INTERLOCK_CRASH_AT": point}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert AttemptFiles(folder).void.exists() == (point == "recover.voided")
    assert await runtime.recover(folder) == NeverStarted()


async def test_stopped_before_the_lock_it_finds_the_void_mark(
    runtime: CommandRuntime, yard: Any, launcher: Any, until: Callable[..., Any]
) -> None:
    folder = yard.folder()
    child = launcher(folder, AGENT, contained=runtime.contained, stop_at="before")
    await until(lambda: state(child) == "T")
    assert await runtime.recover(folder) == NeverStarted()
    child.send_signal(signal.SIGCONT)
    output, _ = child.communicate()
    assert output.startswith("refused: the attempt was given up")
    assert not (yard.cwd / "started").exists()


@pytest.mark.parametrize("point", ["launch.locked", "launch.contained"])
async def test_stopped_under_the_lock_it_counts_as_alive(
    runtime: CommandRuntime,
    yard: Any,
    launcher: Any,
    until: Callable[..., Any],
    point: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stopping what has not started cannot be confirmed while the launcher holds the lock; and yet it never starts."""
    folder = yard.folder()
    child = launcher(folder, AGENT, contained=runtime.contained, stop_at=point)
    await until(lambda: state(child) == "T")
    recovered = await runtime.recover(folder)
    assert isinstance(recovered, Alive)
    assert recovered.handle.identity is None
    from interlock.runtimes import handle

    monkeypatch.setattr(handle, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(TreeSurvives, match=f"pid {child.pid} "):
        await recovered.handle.stop(0)
    assert state(child) == "T", "another dispatcher is not ours to kill"
    child.send_signal(signal.SIGCONT)
    with trio.fail_after(20):
        assert await recovered.handle.wait() == Ending(exit_status=None)
    await recovered.handle.stop(0)
    assert not (yard.cwd / "started").exists(), "the keeper saw the void mark"
    assert await runtime.recover(folder) == NeverStarted()


async def test_waiting_for_a_launcher_that_goes_on(
    runtime: CommandRuntime, yard: Any, launcher: Any, until: Callable[..., Any]
) -> None:
    folder = yard.folder()
    child = launcher(folder, AGENT, contained=runtime.contained, stop_at="launch.locked")
    await until(lambda: state(child) == "T")
    recovered = await runtime.recover(folder)
    assert isinstance(recovered, Alive)
    child.send_signal(signal.SIGCONT)
    (yard.cwd / "go").touch()
    with trio.fail_after(20):
        assert await recovered.handle.wait() == Ending(exit_status=7)
        await recovered.handle.stop(0)
    assert recovered.handle.identity is not None


async def test_waiting_for_a_launcher_that_dies(
    runtime: CommandRuntime, yard: Any, launcher: Any, until: Callable[..., Any]
) -> None:
    folder = yard.folder()
    child = launcher(folder, AGENT, contained=runtime.contained, stop_at="launch.contained")
    await until(lambda: state(child) == "T")
    recovered = await runtime.recover(folder)
    assert isinstance(recovered, Alive)
    child.kill()
    with trio.fail_after(20):
        assert await recovered.handle.wait() == Ending(exit_status=None)
    assert AttemptFiles(folder).void.exists()
    await recovered.handle.stop(0)
    assert await runtime.recover(folder) == NeverStarted()


async def test_stopped_after_the_spawn_its_hold_on_the_lock_is_named(
    runtime: CommandRuntime,
    yard: Any,
    launcher: Any,
    until: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = yard.folder()
    child = launcher(folder, AGENT, contained=runtime.contained, stop_at="launch.spawned")
    await until(lambda: state(child) == "T")
    pid = await until(lambda: yard.pid_in("started"))
    recovered = await runtime.recover(folder)
    assert isinstance(recovered, Alive)
    from interlock.runtimes import handle

    monkeypatch.setattr(handle, "PATIENCE_SECONDS", 0.3)
    with pytest.raises(TreeSurvives, match=f"from outside the tree, by pid {child.pid} "):
        await recovered.handle.stop(300)
    assert not yard.lives(pid)
    assert state(child) == "T"
    child.send_signal(signal.SIGCONT)
    child.communicate()
    await recovered.handle.stop(0)
    assert await runtime.recover(folder) in (Ended(Ending(exit_status=143)), Ended(Ending(exit_status=None)))


async def test_a_replaced_folder_fails_the_launch(yard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever replaces the folder between the open and the lock leaves the launcher with a lock that guards nothing."""
    import fcntl

    launch = yard.launch(AGENT)
    original = fcntl.flock

    def replaced(fd: int, operation: int) -> None:
        launch.folder.rename(launch.folder.with_name("aside"))
        launch.folder.mkdir()
        AttemptFiles(launch.folder).lock.touch()
        original(fd, operation)

    monkeypatch.setattr(fcntl, "flock", replaced)
    with pytest.raises(CannotStart, match="replaced"):
        await CommandRuntime(cgroups=False).launch(launch)


async def test_a_file_system_without_locks_fails_the_launch(yard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    launch = yard.launch(AGENT)
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(CannotStart, match="No locks available"):
        await CommandRuntime(cgroups=False).launch(launch)
    assert len(os.listdir("/proc/self/fd")) == before


def forge(folder: Path, **changes: Any) -> None:
    """Write an identity as an agent of another boot or namespace would have."""
    identity = process.identify(os.getpid())
    assert identity is not None
    forged = msgspec.structs.replace(identity, **changes)
    stat = f"{forged.pid} (sh) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {forged.start_ticks} 1000 1"
    AttemptFiles(folder).identity.write_text(f"{forged.boot_id} {forged.pid_namespace} {stat}\n")


async def test_another_boot_is_over(yard: Any) -> None:
    runtime = CommandRuntime(cgroups=False)
    folder = yard.folder()
    forge(folder, boot_id="another")
    assert await runtime.recover(folder) == Ended(Ending(exit_status=None))
    AttemptFiles(folder).exit.write_text("3")
    assert await runtime.recover(folder) == Ended(Ending(exit_status=None)), "an exit status that is not complete"
    AttemptFiles(folder).exit.write_text("3\n")
    assert await runtime.recover(folder) == Ended(Ending(exit_status=3))


async def test_another_pid_namespace_is_unknown(yard: Any) -> None:
    runtime = CommandRuntime(cgroups=False)
    folder = yard.folder()
    forge(folder, pid_namespace="pid:[1]")
    recovery = await runtime.recover(folder)
    assert isinstance(recovery, Unknown)
    assert "namespace" in recovery.why


@pytest.mark.parametrize(
    "text", ["boot pid:[1] 42 (s", "boot pid:[1] 42 (s\n", "boot\n", "function boot pid:[1]\n", "\n"]
)
async def test_an_incomplete_identity_started_nothing(yard: Any, text: str) -> None:
    folder = yard.folder()
    AttemptFiles(folder).identity.write_text(text)
    assert await CommandRuntime(cgroups=False).recover(folder) == NeverStarted()


async def test_an_identity_that_is_alive_is_believed_even_without_the_lock(yard: Any) -> None:
    runtime = CommandRuntime(cgroups=False)
    folder = yard.folder()
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as child:
        identity = process.identify(child.pid)
        assert identity is not None
        forge(folder, pid=child.pid, start_ticks=identity.start_ticks)
        assert isinstance(await runtime.recover(folder), Alive)
        child.kill()
        child.wait()
    assert await runtime.recover(folder) == Ended(Ending(exit_status=None))


async def test_a_folder_that_cannot_be_read_is_unknown(yard: Any) -> None:
    (yard.base / "attempts").mkdir()
    (yard.base / "attempts" / "file").write_text("")
    recovery = await CommandRuntime(cgroups=False).recover(yard.base / "attempts" / "file")
    assert isinstance(recovery, Unknown)


async def test_who_only_looks_is_not_taken_for_a_live_agent(runtime: CommandRuntime, yard: Any) -> None:
    """Another dispatcher that looks at the same moment keeps launches out, and nobody from an answer."""
    launch = yard.launch("exit 4")
    agent = await runtime.launch(launch)
    await agent.wait()
    await agent.stop(0)
    looking = attempt_lock.share(AttemptFiles(launch.folder))
    assert looking is not None
    fresh = yard.launch(AGENT)
    AttemptFiles(fresh.folder).lock.touch()
    recovering = attempt_lock.share(AttemptFiles(fresh.folder))
    assert recovering is not None
    try:
        assert await runtime.recover(launch.folder) == Ended(Ending(exit_status=4))
        with pytest.raises(CannotStart, match="given up"):
            await runtime.launch(fresh)
        assert await runtime.recover(fresh.folder) == NeverStarted()
    finally:
        os.close(looking)
        os.close(recovering)


async def test_the_mark_of_a_function_is_never_taken_for_a_process(yard: Any) -> None:
    runtime = CommandRuntime(cgroups=False)
    folder = yard.folder()
    write_in_process_mark(AttemptFiles(folder))
    assert isinstance(read_identity(AttemptFiles(folder)), InProcess)
    assert await runtime.recover(folder) == Ended(Ending(exit_status=None))
