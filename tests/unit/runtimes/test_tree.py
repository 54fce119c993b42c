"""Nothing of a tree survives ``stop``: the ways in which processes try to get away."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.ports.runtime import Alive, Ended, Ending, TreeSurvives
from interlock.runtimes import CommandRuntime, cgroup, handle, keeper, keeper_program, tree
from interlock.runtimes.process import send_signal
from interlock.runtimes.tree import Tree

WAIT_FOR_STARTED = "while [ ! -s started ]; do sleep 0.01; done"

# (how a grandchild gets away from the agent, which then ends at once)
ESCAPES = {
    "background": "sh -c 'echo $$ > started; sleep 1000; :' &",
    "session of its own": "setsid sh -c 'echo $$ > started; sleep 1000; :' &",
    "twice removed": "setsid sh -c 'sh -c \"echo \\$\\$ > started; sleep 1000; :\" &' &",
    "without environment": "env -i setsid /bin/sh -c 'echo $$ > started; while :; do /bin/sleep 1; done' &",
    "deaf": "setsid sh -c 'trap \"\" TERM HUP INT; echo $$ > started; while :; do sleep 1; done' &",
}

CLOSE_ALL = (
    "import os,time; os.setsid(); os.closerange(0,10000); "
    "f=os.open('started.new',os.O_CREAT|os.O_WRONLY); os.write(f,b'%d\\n'%os.getpid()); os.close(f); "
    "os.rename('started.new','started'); time.sleep(1000)"
)


@pytest.mark.parametrize("escape", ESCAPES)
async def test_descendants_are_ended(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any], escape: str
) -> None:
    launch = yard.launch(f"{ESCAPES[escape]} {WAIT_FOR_STARTED}; exit 0")
    agent = await runtime.launch(launch)
    assert await agent.wait() == Ending(exit_status=0)
    pid = yard.pid_in("started")
    assert yard.lives(pid)
    assert isinstance(await runtime.recover(launch.folder), Alive), "the agent is gone, its tree is not"
    with trio.fail_after(20):
        await agent.stop(100 if escape == "deaf" else 5000)
    assert not yard.lives(pid)
    assert await runtime.recover(launch.folder) == Ended(Ending(exit_status=0))


@pytest.mark.parametrize("bare", [False, True], ids=["marked", "bare"])
async def test_a_daemon_that_closed_everything(runtime: CommandRuntime, yard: Any, bare: bool) -> None:
    if bare and not runtime.contained:
        pytest.skip("only a cgroup holds a process without session, descriptors, parents and environment")
    clean = "env -i" if bare else "env"
    launch = yard.launch(f'{clean} {sys.executable} -c "{CLOSE_ALL}" & {WAIT_FOR_STARTED}; exit 0')
    agent = await runtime.launch(launch)
    assert await agent.wait() == Ending(exit_status=0)
    pid = yard.pid_in("started")
    assert yard.lives(pid)
    recovered = await runtime.recover(launch.folder)
    assert isinstance(recovered, Alive), "the lock is free, and yet it is not over"
    assert await recovered.handle.wait() == Ending(exit_status=0)
    await recovered.handle.stop(5000)
    assert not yard.lives(pid)
    await agent.stop(0)
    assert await runtime.recover(launch.folder) == Ended(Ending(exit_status=0))


async def test_an_agent_that_obeys_has_its_status_kept(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    agent = await runtime.launch(yard.launch("trap 'exit 3' TERM; echo $$ > started; while :; do sleep 0.01; done"))
    await until(lambda: yard.pid_in("started"))
    began = time.monotonic()
    await agent.stop(60_000)
    assert time.monotonic() - began < 30, "the end was news, not the end of the grace"
    assert await agent.wait() == Ending(exit_status=3)


async def test_term_in_the_first_moment_is_not_lost(runtime: CommandRuntime, yard: Any) -> None:
    for delay_us in range(0, 3000, 100):
        agent = await runtime.launch(yard.launch("sleep 1000; exit 0"))
        began = time.perf_counter()
        while time.perf_counter() - began < delay_us / 1_000_000:
            await trio.lowlevel.checkpoint()
        with trio.fail_after(20):
            await agent.stop(60_000)
        assert await agent.wait() == Ending(exit_status=143)


async def test_an_agent_that_ignores_term_is_killed(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    agent = await runtime.launch(yard.launch("trap '' TERM INT HUP; echo $$ > started; while :; do sleep 0.05; done"))
    pid = await until(lambda: yard.pid_in("started"))
    began = time.monotonic()
    await agent.stop(200)
    assert time.monotonic() - began >= 0.2
    assert not yard.lives(pid)
    assert await agent.wait() == Ending(exit_status=137)


async def test_a_stopped_agent_hears_term(runtime: CommandRuntime, yard: Any, until: Callable[..., Any]) -> None:
    agent = await runtime.launch(yard.launch("trap 'exit 4' TERM; echo $$ > started; kill -STOP $$; sleep 1000; :"))
    await until(lambda: yard.pid_in("started"))
    with trio.fail_after(20):
        await agent.stop(15_000)
    assert await agent.wait() == Ending(exit_status=4)


async def test_a_storm_of_forks(runtime: CommandRuntime, yard: Any, until: Callable[..., Any]) -> None:
    """Each process starts its successor in a session of its own, then leaves: up to eight chains, never at rest."""
    storm = yard.cwd / "storm"
    storm.write_text('#!/bin/sh\necho x >> beats\nsleep 0.01\nsetsid "$0" &\n')
    storm.chmod(0o755)
    agent = await runtime.launch(yard.launch("for i in 1 2 3 4 5 6 7 8; do ./storm & done; exit 0"))
    assert await agent.wait() == Ending(exit_status=0)
    beats = yard.cwd / "beats"
    await until(lambda: beats.exists() and beats.stat().st_size > 100)
    try:
        with trio.fail_after(60):
            await agent.stop(0)
        size = beats.stat().st_size
        await trio.sleep(0.2)
        assert beats.stat().st_size == size
    finally:
        storm.unlink()


async def test_a_restarting_parent(runtime: CommandRuntime, yard: Any, until: Callable[..., Any]) -> None:
    agent = await runtime.launch(
        yard.launch("echo $$ > started; while :; do setsid -w sh -c 'echo x >> beats; sleep 1000; :'; done")
    )
    await until((yard.cwd / "beats").exists)
    with trio.fail_after(20):
        await agent.stop(300)


async def test_a_killed_keeper_leaves_a_tree_that_stop_ends(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    launch = yard.launch("echo $$ > started; sleep 1000; :")
    agent = await runtime.launch(launch)
    pid = await until(lambda: yard.pid_in("started"))
    assert runtime._keeper is not None
    os.kill(runtime._keeper.pid, signal.SIGKILL)
    with trio.move_on_after(0.1):
        pytest.fail(f"it has not ended: {await agent.wait()}")
    assert yard.lives(pid)
    recovered = await runtime.recover(launch.folder)
    assert isinstance(recovered, Alive)
    assert recovered.handle.identity == agent.identity
    await recovered.handle.stop(5000)
    assert not yard.lives(pid)
    assert await recovered.handle.wait() == Ending(exit_status=None)
    with trio.fail_after(20):
        assert await agent.wait() == Ending(exit_status=None)
        await agent.stop(0)


async def test_a_killed_agent_leaves_a_tree_that_stop_ends(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    launch = yard.launch("sh -c 'echo $$ > started; sleep 1000; :'; :")
    agent = await runtime.launch(launch)
    pid = await until(lambda: yard.pid_in("started"))
    assert agent.identity is not None
    os.kill(agent.identity.pid, signal.SIGKILL)
    assert await agent.wait() == Ending(exit_status=137)
    assert yard.lives(pid)
    assert isinstance(await runtime.recover(launch.folder), Alive)
    await agent.stop(5000)
    assert not yard.lives(pid)
    assert await runtime.recover(launch.folder) == Ended(Ending(exit_status=137))


async def test_a_bare_child_in_the_agent_s_session_is_ended(runtime: CommandRuntime, yard: Any) -> None:
    """No mark, no descriptor, no parent: what is left is the session, whose number the agent's zombie keeps."""
    stays = CLOSE_ALL.replace("os.setsid(); ", "")
    launch = yard.launch(f'env -i {sys.executable} -c "{stays}" & {WAIT_FOR_STARTED}; exit 0')
    agent = await runtime.launch(launch)
    assert await agent.wait() == Ending(exit_status=0)
    pid = yard.pid_in("started")
    assert yard.lives(pid)
    with trio.fail_after(20):
        await agent.stop(5000)
    assert not yard.lives(pid)


async def test_what_the_keeper_found_to_be_gone_is_not_looked_for(yard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at all processes costs milliseconds; who left nothing behind does not pay for it."""
    runtime = CommandRuntime(cgroups=False)
    monkeypatch.setattr(tree, "Snapshot", None)
    monkeypatch.setattr(tree, "fresh_snapshot", None)
    for command in ("exit 0", "sleep 0.01 & wait", "sh -c 'exit 1'; exit 0"):
        agent = await runtime.launch(yard.launch(command))
        assert await agent.wait() == Ending(exit_status=0)
        await agent.stop(1000)


async def test_an_agent_that_cannot_join_its_cgroup(
    yard: Any, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if cgroup.usable_parent() is None:
        pytest.skip("cgroups cannot be made here")
    runtime = CommandRuntime(cgroups=True)
    original = cgroup.make

    def removed_at_once(parent: Any, name: str) -> Any:
        path = original(parent, name)
        assert path is not None
        path.rmdir()
        return path

    monkeypatch.setattr(cgroup, "make", removed_at_once)
    launch = yard.launch(f"{ESCAPES['session of its own']} {WAIT_FOR_STARTED}; exit 0")
    agent = await runtime.launch(launch)
    assert await agent.wait() == Ending(exit_status=0)
    assert AttemptFiles(launch.folder).lock.read_bytes() == b""
    pid = yard.pid_in("started")
    await agent.stop(5000)
    assert not yard.lives(pid)
    runtime.close()


async def test_a_tree_that_does_not_die_is_named(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await runtime.launch(yard.launch("echo $$ > started; sleep 1000; :"))
    pid = await until(lambda: yard.pid_in("started"))

    async def no_kill(self: Tree, *, hunt: bool) -> None:
        await trio.lowlevel.checkpoint()

    with monkeypatch.context() as patched:
        patched.setattr(Tree, "kill", no_kill)
        patched.setattr(handle, "PATIENCE_SECONDS", 0.05)
        patched.setattr(handle, "send_signal", lambda *_: False)
        with pytest.raises(TreeSurvives, match=f"pid {pid} "):
            await agent.stop(0)
    await agent.stop(0)


async def test_a_cancelled_stop_leaves_nobody_frozen(
    yard: Any, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await CommandRuntime(cgroups=False).launch(
        yard.launch("trap '' TERM; echo $$ > started; while :; do sleep 0.1; done")
    )
    pid = await until(lambda: yard.pid_in("started"))
    scope = trio.CancelScope()

    def freeze(pid: int, start_ticks: int, number: signal.Signals) -> bool:
        if number == signal.SIGSTOP:
            scope.cancel()
        return send_signal(pid, start_ticks, number)

    monkeypatch.setattr(tree, "send_signal", freeze)
    with scope:
        await agent.stop(0)
    assert scope.cancelled_caught
    await until(lambda: not yard.lives(pid))
    await agent.stop(0)


async def test_strangers_in_a_reused_session_are_left_alone(yard: Any, until: Callable[..., Any]) -> None:
    """The agent is long gone, and its pid leads another session now: no sign but the number speaks for membership."""
    runtime = CommandRuntime(cgroups=False)
    launch = yard.launch("exit 0")
    agent = await runtime.launch(launch)
    await agent.wait()
    await agent.stop(0)
    stranger = await trio.lowlevel.open_process(
        ["sh", "-c", "sh -c 'echo $$ > stranger; sleep 1000; :' & exit 0"], cwd=yard.cwd, start_new_session=True
    )
    await stranger.wait()
    pid = await until(lambda: yard.pid_in("stranger"))
    files = AttemptFiles(launch.folder.resolve())
    words = files.identity.read_bytes().split(b" ")
    words[2] = str(stranger.pid).encode()
    files.identity.write_bytes(b" ".join(words))
    assert await runtime.recover(launch.folder) == Ended(Ending(exit_status=0))
    assert yard.lives(pid)
    os.kill(pid, signal.SIGKILL)
    os.killpg(stranger.pid, signal.SIGKILL)


async def test_more_generations_than_rounds_are_ended_in_the_end(
    yard: Any, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "_FREEZE_ROUNDS", 1)
    agent = await CommandRuntime(cgroups=False).launch(
        yard.launch("trap '' TERM; echo $$ > started; while :; do sleep 0.1; done")
    )
    pid = await until(lambda: yard.pid_in("started"))
    with trio.fail_after(20):
        await agent.stop(0)
    assert not yard.lives(pid)


@pytest.mark.parametrize("name", ["", "/sys/fs/cgroup/interlock/attempt-", "/etc\n", "/nowhere/{name}\n"])
def test_a_cgroup_s_name_that_is_cut_short_or_another_s_is_not_believed(yard: Any, name: str) -> None:
    files = AttemptFiles(yard.folder())
    files.lock.write_text(name.format(name=cgroup.cgroup_name(files.folder)))
    assert tree.recorded_cgroup(files) is None
    assert not Tree(files, None).contained


def unreadable(*_: object, **__: object) -> Any:
    raise PermissionError(13, "Permission denied")


async def test_a_hardened_proc_costs_a_longer_look_and_no_more(yard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only makes the look after a short life cheaper may be out of reach."""
    taken = []

    class Snapshot(tree.Snapshot):
        def __init__(self, *, above: int = 0) -> None:
            taken.append(above)
            super().__init__(above=above)

    monkeypatch.setattr(tree, "Snapshot", Snapshot)
    monkeypatch.setattr(keeper.Charge, "hear", not_alone(keeper.Charge.hear))
    runtime = CommandRuntime(cgroups=False)

    async def one() -> None:
        agent = await runtime.launch(yard.launch("exit 3"))
        assert await agent.wait() == Ending(exit_status=3)
        await agent.stop(0)

    monkeypatch.setattr(tree, "_QUICK_SECONDS", 60)
    await one()
    assert len(taken) == 1
    with monkeypatch.context() as patched:
        patched.setattr(tree, "open", unreadable, raising=False)
        await one()
    with monkeypatch.context() as patched:
        tree._many_pids.cache_clear()
        patched.setattr(Path, "read_bytes", unreadable)
        await one()
    tree._many_pids.cache_clear()
    assert len(taken) == 1
    runtime.close()


def not_alone(hear: Callable[..., None]) -> Callable[..., None]:
    """The keeper's news, without its proof that nothing is left."""

    def heard(charge: keeper.Charge, kind: int, words: tuple[Any, ...]) -> None:
        hear(charge, kind, (words[0], False) if kind == keeper_program.ENDED else words)

    return heard
