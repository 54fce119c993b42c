"""The keeper: killed, stopped, out of means, spoken to in megabytes; nothing starts twice, and no status is made up."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from interlock.domain.attempt_files import AttemptFiles
from interlock.ports.runtime import Alive, CannotStart, Ended, Ending, NeverStarted, TreeSurvives
from interlock.runtimes import CommandRuntime, attempt_lock, command, handle, keeper, keeper_program
from interlock.runtimes.process import is_keeper, read_stat

WAITS = "echo $$ > started; while [ ! -e go ]; do sleep 0.01; done; exit 7"


def keeper_of(runtime: CommandRuntime) -> int:
    assert runtime._keeper is not None
    return runtime._keeper.pid


def state(pid: int) -> str | None:
    stat = read_stat(pid)
    return stat and stat.state


@pytest.fixture
def patched(yard: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the keepers that are started from now on run with some lines of code before their main."""

    def patch(code: str) -> None:
        program = yard.base / "patched_keeper_program.py"
        folder = os.path.dirname(keeper_program.__file__)
        start = f"import sys\nsys.path.append({folder!r})\nimport os, _signal\nimport keeper_program as program\n"
        program.write_text(f"{start}{code}\nprogram.main()\n")
        monkeypatch.setattr(keeper, "_program", lambda: str(program))

    return patch


# ends


async def test_it_ends_with_its_dispatcher_and_its_last_agent(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    launch = yard.launch(WAITS)
    agent = await runtime.launch(launch)
    pid = await until(lambda: yard.pid_in("started"))
    keeps = keeper_of(runtime)
    runtime.close()
    assert yard.lives(keeps)
    (yard.cwd / "go").touch()
    await until(lambda: not yard.lives(keeps))
    assert not yard.lives(pid)
    assert AttemptFiles(launch.folder).exit.read_text() == "7\n"
    with trio.fail_after(20):
        assert await agent.wait() == Ending(exit_status=7)
        await agent.stop(0)


async def test_an_idle_one_ends_at_once(runtime: CommandRuntime, yard: Any, until: Callable[..., Any]) -> None:
    agent = await runtime.launch(yard.launch("exit 0"))
    await agent.wait()
    await agent.stop(0)
    keeps = keeper_of(runtime)
    assert is_keeper(keeps)
    runtime.close()
    await until(lambda: not yard.lives(keeps))
    again = await runtime.launch(yard.launch("exit 3"))
    assert await again.wait() == Ending(exit_status=3)
    await again.stop(0)
    assert keeper_of(runtime) != keeps


async def test_it_and_its_agents_are_out_of_reach_of_ctrl_c(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    agent = await runtime.launch(yard.launch(WAITS))
    await until(lambda: yard.pid_in("started"))
    assert agent.identity is not None
    sessions = {os.getsid(pid) for pid in (os.getpid(), keeper_of(runtime), agent.identity.pid)}
    groups = {os.getpgid(pid) for pid in (os.getpid(), keeper_of(runtime), agent.identity.pid)}
    assert len(sessions) == len(groups) == 3
    await agent.stop(2000)


async def test_an_agent_gets_the_lock_and_no_other_descriptor(runtime: CommandRuntime, yard: Any) -> None:
    others = [await runtime.launch(yard.launch(WAITS)) for _ in range(3)]
    launch = yard.launch('for fd in /proc/self/fd/*; do echo "${fd##*/} $(readlink "$fd")"; done')
    agent = await runtime.launch(launch)
    await agent.wait()
    await agent.stop(0)
    files = AttemptFiles(launch.folder.resolve())
    seen = dict(line.split(" ", 1) for line in yard.output(launch).splitlines() if not line.endswith(" "))
    assert seen.items() >= {"0": str(files.prompt), "63": str(files.lock)}.items()
    assert [name for name, target in seen.items() if target.endswith("/lock")] == ["63"]
    for other in others:
        await other.stop(0)


# killed


async def test_killed_its_agents_are_seen_through_and_another_starts_more(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    launch = yard.launch(WAITS)
    agent = await runtime.launch(launch)
    await until(lambda: yard.pid_in("started"))
    first = keeper_of(runtime)
    endings = []

    async def watch() -> None:
        endings.append(await agent.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        os.kill(first, signal.SIGKILL)
        await until(lambda: not yard.lives(first))
        later = await runtime.launch(yard.launch("exit 4"))
        assert await later.wait() == Ending(exit_status=4)
        await later.stop(0)
        assert keeper_of(runtime) != first
        assert endings == []
        with pytest.raises(CannotStart):
            await runtime.launch(launch)
        (yard.cwd / "go").touch()
        await until(lambda: endings)
    assert endings == [Ending(exit_status=None)], "nobody was there to see how"
    await agent.stop(0)
    assert await runtime.recover(launch.folder) == Ended(Ending(exit_status=None))


async def test_killed_before_the_word_is_given_nothing_starts_and_another_is_asked(
    runtime: CommandRuntime, yard: Any, patched: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies between the fork and the identity: the child waits for a word that never comes."""
    patched(
        "for _ in range(80): os.open('/dev/null', os.O_RDONLY | os.O_CLOEXEC)\n"
        "program.write = lambda *_: os.kill(os.getpid(), _signal.SIGKILL)"
    )
    starts = []
    original = keeper._start

    def start(*words: Any) -> int:
        starts.append(1)
        if len(starts) == 2:
            monkeypatch.setattr(keeper, "_program", lambda: keeper_program.__file__)
        return original(*words)

    monkeypatch.setattr(keeper, "_start", start)
    launch = yard.launch("echo ran >> ../ran; exit 5")
    agent = await runtime.launch(launch)
    assert await agent.wait() == Ending(exit_status=5)
    await agent.stop(0)
    assert len(starts) == 2
    assert (yard.base / "ran").read_text() == "ran\n"


async def test_the_word_is_given_when_it_is_written_who_starts(
    runtime: CommandRuntime, yard: Any, patched: Callable[[str], None]
) -> None:
    patched(
        "import time\n"
        "def full(path, *_):\n"
        "    time.sleep(0.3)\n"
        "    raise OSError(28, 'No space left on device', path)\n"
        "program.write = full"
    )
    launch = yard.launch("echo ran >> ../ran")
    with pytest.raises(CannotStart, match="disk is full"):
        await runtime.launch(launch)
    assert not (yard.base / "ran").exists()
    assert await runtime.recover(launch.folder) == NeverStarted()


async def test_one_that_always_dies_starts_nothing_and_the_launch_says_so(
    runtime: CommandRuntime, yard: Any, patched: Callable[[str], None]
) -> None:
    patched("program.write = lambda *_: os.kill(os.getpid(), _signal.SIGKILL)")
    launch = yard.launch("echo ran >> ../ran")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CannotStart, match="keeper"):
        await runtime.launch(launch)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert await runtime.recover(launch.folder) == NeverStarted()
    assert not (yard.base / "ran").exists()


async def test_killed_when_the_word_is_given_the_agent_is_found_by_its_lock(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any], patched: Callable[[str], None]
) -> None:
    patched(
        "say = program.Keeper._say\n"
        "def die(self, *words):\n"
        "    if words[0] == program.FORKED: os.kill(os.getpid(), _signal.SIGKILL)\n"
        "    say(self, *words)\n"
        "program.Keeper._say = die"
    )
    launch = yard.launch(WAITS)
    agent = await runtime.launch(launch)
    pid = await until(lambda: yard.pid_in("started"))
    with pytest.raises(CannotStart):
        await runtime.launch(launch)
    (yard.cwd / "go").touch()
    with trio.fail_after(20):
        assert await agent.wait() == Ending(exit_status=None)
        await agent.stop(0)
    assert not yard.lives(pid)


async def test_killed_after_it_wrote_the_status_nothing_is_lost(
    runtime: CommandRuntime, yard: Any, patched: Callable[[str], None]
) -> None:
    patched("program.Keeper._is_alone = lambda self: os.kill(os.getpid(), _signal.SIGKILL)")
    agent = await runtime.launch(yard.launch("exit 6"))
    with trio.fail_after(20):
        assert await agent.wait() == Ending(exit_status=6)
        await agent.stop(0)


# stopped


async def test_stopped_it_keeps_a_launch_on_its_way(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(handle, "PATIENCE_SECONDS", 0.1)
    runtime.prepare()
    os.kill(keeper_of(runtime), signal.SIGSTOP)
    launch, second = yard.launch("echo ran >> ../ran; exit 7"), yard.launch("echo ran >> ../ran")
    agent = await runtime.launch(launch)
    assert agent.identity is None
    stopped = await runtime.launch(second)
    for _ in range(2):
        with pytest.raises(CannotStart):
            await runtime.launch(launch)
        assert isinstance(await runtime.recover(launch.folder), Alive)
    with pytest.raises(TreeSurvives):
        await stopped.stop(0)
    assert not (yard.base / "ran").exists()
    os.kill(keeper_of(runtime), signal.SIGCONT)
    with trio.fail_after(20):
        assert await agent.wait() == Ending(exit_status=7)
        await agent.stop(0)
        assert await stopped.wait() == Ending(exit_status=None), "it was given up meanwhile"
        await stopped.stop(0)
    assert (yard.base / "ran").read_text() == "ran\n"
    assert await runtime.recover(second.folder) == NeverStarted()


async def test_an_order_that_does_not_get_out_is_taken_back(
    runtime: CommandRuntime, yard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket is full, and nobody reads: what was not begun to be sent can be refused for certain."""
    monkeypatch.setattr(command, "ANSWER_SECONDS", 0.2)
    runtime.prepare()
    os.kill(keeper_of(runtime), signal.SIGSTOP)
    large = {f"LARGE_{number}": str(number) * 100_000 for number in range(10)}
    launches = [yard.launch("echo ran >> ../ran", **large) for _ in range(3)]
    answers: dict[int, Any] = {}

    async def one(number: int) -> None:
        try:
            answers[number] = await runtime.launch(launches[number])
        except CannotStart as reason:
            answers[number] = reason

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(one, number)
    refused = [number for number in answers if isinstance(answers[number], CannotStart)]
    assert len(refused) == 2
    assert "does not answer" in str(answers[refused[0]])
    for number in refused:
        assert await runtime.recover(launches[number].folder) == NeverStarted()
    os.kill(keeper_of(runtime), signal.SIGCONT)
    (under_way,) = set(answers) - set(refused)
    with trio.fail_after(20):
        assert await answers[under_way].wait() == Ending(exit_status=0)
        await answers[under_way].stop(0)
    assert (yard.base / "ran").read_text() == "ran\n"


async def test_orders_wait_in_turn_for_one_that_does_not_read(
    runtime: CommandRuntime, yard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones, until there is no room, and then some more: each is on its way, or refused for certain."""
    monkeypatch.setattr(command, "ANSWER_SECONDS", 0.02)
    runtime.prepare()
    os.kill(keeper_of(runtime), signal.SIGSTOP)
    under_way = []
    refused = 0
    while refused < 4:
        launch = yard.launch("exit 0", PAD="x" * 20_000)
        try:
            under_way.append(await runtime.launch(launch))
        except CannotStart:
            refused += 1
            assert await runtime.recover(launch.folder) == NeverStarted()
    monkeypatch.setattr(command, "ANSWER_SECONDS", 10)
    os.kill(keeper_of(runtime), signal.SIGCONT)
    under_way.append(await runtime.launch(yard.launch("exit 0")))
    with trio.fail_after(30):
        for agent in under_way:
            assert await agent.wait() == Ending(exit_status=0)
            await agent.stop(0)


async def test_a_status_that_is_still_to_come_is_waited_for(
    runtime: CommandRuntime, yard: Any, launcher: Any, until: Callable[..., Any]
) -> None:
    """The dispatcher is gone, its keeper stands still, the agent has ended: that is no lost attempt."""
    launch = yard.launch(WAITS)
    child = launcher(launch.folder, WAITS, contained=runtime.contained)
    pid = await until(lambda: yard.pid_in("started"))
    child.kill()
    await until(lambda: child.poll() is not None)
    stat = read_stat(pid)
    assert stat is not None
    os.kill(stat.parent, signal.SIGSTOP)
    (yard.cwd / "go").touch()
    await until(lambda: state(pid) == "Z")
    found = await runtime.recover(launch.folder)
    assert isinstance(found, Alive)
    with trio.move_on_after(0.2):
        pytest.fail(f"nobody knows yet: {await found.handle.wait()}")
    os.kill(stat.parent, signal.SIGCONT)
    with trio.fail_after(20):
        assert await found.handle.wait() == Ending(exit_status=7)
        await found.handle.stop(0)
    assert await runtime.recover(launch.folder) == Ended(Ending(exit_status=7))


@pytest.fixture
def subreaper() -> Iterator[None]:
    """This process gets the orphans, and leaves them as zombies, as the first process of many a container does."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(36, 1, 0, 0, 0) == 0
    yield
    assert libc.prctl(36, 0, 0, 0, 0) == 0
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


async def test_a_status_that_never_comes_is_not(
    runtime: CommandRuntime, yard: Any, launcher: Any, until: Callable[..., Any], subreaper: None
) -> None:
    launch = yard.launch(WAITS)
    child = launcher(launch.folder, WAITS, contained=runtime.contained)
    pid = await until(lambda: yard.pid_in("started"))
    child.kill()
    await until(lambda: child.poll() is not None)
    stat = read_stat(pid)
    assert stat is not None
    os.kill(stat.parent, signal.SIGSTOP)
    (yard.cwd / "go").touch()
    await until(lambda: state(pid) == "Z")
    found = await runtime.recover(launch.folder)
    assert isinstance(found, Alive)
    os.kill(stat.parent, signal.SIGKILL)
    with trio.fail_after(20):
        assert await found.handle.wait() == Ending(exit_status=None)
        await found.handle.stop(0)
    assert state(pid) == "Z", "it is still there, and nobody will say how it ended"
    assert await runtime.recover(launch.folder) == Ended(Ending(exit_status=None))


async def test_one_that_stands_still_is_named_by_a_stop(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await runtime.launch(yard.launch(WAITS))
    pid = await until(lambda: yard.pid_in("started"))
    os.kill(keeper_of(runtime), signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(handle, "PATIENCE_SECONDS", 0.2)
        with pytest.raises(TreeSurvives, match=f"from outside the tree, by pid {keeper_of(runtime)} "):
            await agent.stop(200)
    assert not yard.lives(pid)
    assert state(keeper_of(runtime)) == "T", "it is not ours to end: others' agents are in its charge"
    os.kill(keeper_of(runtime), signal.SIGCONT)
    with trio.fail_after(20):
        await agent.stop(0)
        assert await agent.wait() == Ending(exit_status=143)


# killed with orders on their way


async def test_orders_that_a_killed_one_has_not_read_go_to_another(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    """More than the socket takes: some were sent, some were not, and each is obeyed exactly once."""
    runtime.prepare()
    first = keeper_of(runtime)
    os.kill(first, signal.SIGSTOP)
    large = {f"LARGE_{number}": str(number) * 100_000 for number in range(5)}
    launches = [yard.launch(f"echo {number} >> ../ran; exit {number}", **large) for number in range(6)]
    statuses = {}

    async def one(number: int) -> None:
        agent = await runtime.launch(launches[number])
        statuses[number] = (await agent.wait()).exit_status
        await agent.stop(0)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(one, number)
            await trio.testing.wait_all_tasks_blocked(0.05)
            os.kill(first, signal.SIGKILL)
    assert statuses == {number: number for number in range(6)}
    assert sorted((yard.base / "ran").read_text().split()) == list("012345")
    assert keeper_of(runtime) != first


async def test_one_whose_news_cannot_be_understood_is_let_go_of(
    runtime: CommandRuntime, yard: Any, patched: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    patched("program.framed = lambda *words: b'\\1\\0\\0\\0?'")
    launch = yard.launch("echo ran >> ../ran; exit 5")
    agent = await runtime.launch(launch)
    with trio.fail_after(20):
        assert await agent.wait() == Ending(exit_status=5), "from its files"
        await agent.stop(0)
    assert (yard.base / "ran").read_text() == "ran\n"
    assert "cannot be understood" in caplog.text


async def test_a_fault_of_its_own_is_told_and_survived(
    runtime: CommandRuntime, yard: Any, patched: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    patched(
        "turn = program.Keeper._turn\n"
        "def fail_once(self, order):\n"
        "    program.Keeper._turn = turn\n"
        "    raise LookupError('a fault')\n"
        "program.Keeper._turn = fail_once"
    )
    agent = await runtime.launch(yard.launch("exit 5"))
    assert await agent.wait() == Ending(exit_status=5)
    await agent.stop(0)
    assert "LookupError: a fault" in caplog.text


# the end of its dispatcher


def give(runtime: CommandRuntime, yard: Any, command: str) -> AttemptFiles:
    """Give an order to the keeper and go on, as a dispatcher that dies in the next moment."""
    files = AttemptFiles(yard.folder())
    assert runtime._keeper is not None
    lock = attempt_lock.take(files)
    assert lock is not None
    nothing = os.open("/dev/null", os.O_RDWR)
    order = keeper.order_for(files, ["/bin/sh", "-c", command], dict(os.environ), str(yard.cwd))
    runtime._keeper.launch((*order, None, None), (lock, nothing, nothing))
    os.close(lock)
    os.close(nothing)
    return files


def block_until(condition: Callable[[], Any]) -> None:
    """Wait without a turn of the loop: nobody reads what the keeper says meanwhile."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


async def test_what_a_dispatcher_ordered_before_it_died_is_done(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    runtime.prepare()
    keeps = keeper_of(runtime)
    os.kill(keeps, signal.SIGSTOP)
    given = [give(runtime, yard, f"exit {number}") for number in range(5)]
    runtime.close()
    os.kill(keeps, signal.SIGCONT)
    await until(lambda: not yard.lives(keeps))
    assert [files.exit.read_text() for files in given] == [f"{number}\n" for number in range(5)]
    assert all(attempt_lock.is_free(files) for files in given)


async def test_an_end_that_nobody_hears_of_is_written_down(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    """The agent and the dispatcher go in the same moment, and the dispatcher has not read the last news."""
    runtime.prepare()
    keeps = keeper_of(runtime)
    files = give(runtime, yard, WAITS)
    block_until(lambda: yard.pid_in("started"))
    os.kill(keeps, signal.SIGSTOP)
    (yard.cwd / "go").touch()
    pid = yard.pid_in("started")
    block_until(lambda: state(pid) == "Z")
    runtime.close()
    os.kill(keeps, signal.SIGCONT)
    await until(lambda: not yard.lives(keeps))
    assert files.exit.read_text() == "7\n"
    assert attempt_lock.is_free(files)
    assert read_stat(pid) is None


async def test_a_dispatcher_that_does_not_listen_hears_everything_later(
    runtime: CommandRuntime, yard: Any, patched: Callable[[str], None]
) -> None:
    """The socket is full of news, and the keeper goes on with its work."""
    patched(
        "class Small(program._socket.socket):\n"
        "    def __init__(self, **words):\n"
        "        super().__init__(**words)\n"
        "        self.setsockopt(program._socket.SOL_SOCKET, program._socket.SO_SNDBUF, 1)\n"
        "program._socket.socket = Small"
    )
    runtime.prepare()
    given = [give(runtime, yard, "exit 3") for _ in range(20)]
    block_until(lambda: all(files.exit.exists() for files in given))
    assert runtime._keeper is not None
    charges = list(runtime._keeper._charges.values())
    assert not any(charge.answered for charge in charges)
    with trio.fail_after(20):
        for charge in charges:
            await charge.until_over()
    assert [charge.status for charge in charges] == [3] * 20
    assert len({charge.pid for charge in charges}) == 20


async def test_a_socket_that_wakes_it_for_nothing(
    runtime: CommandRuntime, yard: Any, patched: Callable[[str], None]
) -> None:
    patched(
        "class Shy(program._socket.socket):\n"
        "    times = 0\n"
        "    def recvmsg(self, *words):\n"
        "        self.times += 1\n"
        "        if self.times == 1: raise BlockingIOError(11, 'not yet')\n"
        "        return super().recvmsg(*words)\n"
        "program._socket.socket = Shy"
    )
    agent = await runtime.launch(yard.launch("exit 5"))
    assert await agent.wait() == Ending(exit_status=5)
    await agent.stop(0)


async def test_where_it_cannot_list_its_children_the_tree_is_looked_for(
    runtime: CommandRuntime, yard: Any, patched: Callable[[str], None], until: Callable[..., Any]
) -> None:
    patched("def refuse(fd): raise OSError(5, 'no')\nprogram.read_children = refuse")
    agent = await runtime.launch(yard.launch("sh -c 'echo $$ > started; sleep 1000; :' & exit 5"))
    assert await agent.wait() == Ending(exit_status=5)
    pid = await until(lambda: yard.pid_in("started"))
    await agent.stop(5000)
    assert not yard.lives(pid)


async def test_a_handle_may_be_let_go_of_after_the_keeper(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    agent = await runtime.launch(yard.launch("sh -c 'echo $$ > started; sleep 1000; :' & exit 5"))
    assert await agent.wait() == Ending(exit_status=5)
    pid = await until(lambda: yard.pid_in("started"))
    runtime.close()
    agent.close()
    await agent.stop(5000)
    assert not yard.lives(pid)


def test_a_system_that_has_less() -> None:
    class Refusing:
        def prctl(self, *_: int) -> int:
            return -1

    assert keeper_program.become_subreaper(Refusing()) is None
    assert keeper_program.become_subreaper(None) is None


def test_a_python_without_ctypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    assert keeper_program.load_libc() is None


def test_half_a_file_is_none(tmp_path: Path) -> None:
    """A pipe takes what there is room for."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="No space left"):
            keeper_program.write(os.fsencode(tmp_path / "pipe"), b"x" * 1_000_000)
    finally:
        os.close(reader)


# means


async def test_megabytes_of_environment(runtime: CommandRuntime, yard: Any) -> None:
    large = {f"LARGE_{number}": f"{number}" * 60_000 for number in range(10)}
    program = "printenv LARGE_3 | wc -c"

    async def one() -> None:
        launch = yard.launch(program, **large)
        agent = await runtime.launch(launch)
        assert await agent.wait() == Ending(exit_status=0)
        await agent.stop(0)
        assert yard.output(launch).strip() == "60001"

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(one)


async def test_what_the_system_refuses_to_the_keeper(
    runtime: CommandRuntime, yard: Any, patched: Callable[[str], None]
) -> None:
    patched(
        "fork, times = os.fork, []\n"
        "def refuse():\n"
        "    times.append(1)\n"
        "    if len(times) == 1: raise BlockingIOError(11, 'no')\n"
        "    return fork()\n"
        "os.fork = refuse\n"
        "program.load_libc = lambda: None"
    )
    launch = yard.launch("exit 2")
    with pytest.raises(CannotStart, match="ulimit -u"):
        await runtime.launch(launch)
    agent = await runtime.launch(launch)
    assert await agent.wait() == Ending(exit_status=2)
    await agent.stop(0)


async def test_a_keeper_without_descriptors(runtime: CommandRuntime, yard: Any) -> None:
    runtime.prepare()
    first = await runtime.launch(yard.launch("exit 0"))
    assert await first.wait() == Ending(exit_status=0)
    await first.stop(0)
    pid = keeper_of(runtime)
    launch = yard.launch("exit 2")
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = min(set(range(100)) - used)
    # fewer and fewer: for the three that come, for those of the launch itself
    for left in range(5, -1, -1):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (free + left, limits[1]))
        with pytest.raises(CannotStart, match="ulimit -n"):
            await runtime.launch(launch)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert {int(name) for name in os.listdir(f"/proc/{pid}/fd")} == used
    agent = await runtime.launch(launch)
    assert await agent.wait() == Ending(exit_status=2)
    await agent.stop(0)


async def test_where_no_cgroup_can_be_forked_into_and_nothing_tells_of_children(
    runtime: CommandRuntime, yard: Any, patched: Callable[[str], None]
) -> None:
    patched("program.load_libc = lambda: None")
    for status in range(3):
        launch = yard.launch(f"cat /proc/self/cgroup; exit {status}")
        agent = await runtime.launch(launch)
        assert await agent.wait() == Ending(exit_status=status)
        await agent.stop(0)
        assert ("/interlock/attempt-" in yard.output(launch)) == runtime.contained


async def test_a_dispatcher_that_dies_in_the_middle_of_an_order_leaves_the_lock_free(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    launch = yard.launch(WAITS)
    agent = await runtime.launch(launch)
    await until(lambda: yard.pid_in("started"))
    cut_off = yard.launch("echo ran >> ../ran")
    files = AttemptFiles(cut_off.folder)
    assert runtime._keeper is not None
    lock = command.take_for_launch(files)
    order = keeper.order_for(files, ["/bin/sh", "-c", "echo ran >> ../ran"], dict(os.environ), str(yard.cwd))
    data = keeper_program.framed(keeper_program.LAUNCH, 99, *order, None, None)
    socket.send_fds(runtime._keeper._socket, [data[:-10]], [lock, lock, lock])
    os.close(lock)
    assert isinstance(await runtime.recover(cut_off.folder), Alive), "the order has it"
    keeps = keeper_of(runtime)
    runtime.close()
    await until(lambda: attempt_lock.is_free(files))
    assert yard.lives(keeps)
    assert await runtime.recover(cut_off.folder) == NeverStarted()
    (yard.cwd / "go").touch()
    assert await agent.wait() == Ending(exit_status=7)
    await agent.stop(0)
    assert not (yard.base / "ran").exists()


async def test_a_cancelled_launch_is_found_again(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any], patched: Callable[[str], None]
) -> None:
    # as if it left something behind: then the zombie is kept for a handle, which there is none of
    patched("program.Keeper._is_alone = lambda self: False")
    launch = yard.launch(WAITS)
    runtime.prepare()
    os.kill(keeper_of(runtime), signal.SIGSTOP)
    with trio.move_on_after(0.1) as scope:
        await runtime.launch(launch)
    assert scope.cancelled_caught
    with pytest.raises(CannotStart):
        await runtime.launch(launch)
    os.kill(keeper_of(runtime), signal.SIGCONT)
    await until(lambda: yard.pid_in("started"))
    found = await runtime.recover(launch.folder)
    assert isinstance(found, Alive)
    (yard.cwd / "go").touch()
    with trio.fail_after(20):
        assert await found.handle.wait() == Ending(exit_status=7)
        await found.handle.stop(0)
    assert found.handle.identity is not None
    await until(lambda: read_stat(found.handle.identity.pid) is None)


async def test_a_relative_working_folder_is_the_dispatchers(
    runtime: CommandRuntime, yard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(yard.base)
    launch = msgspec.structs.replace(yard.launch("pwd"), cwd=Path("work tree"))
    agent = await runtime.launch(launch)
    await agent.wait()
    await agent.stop(0)
    assert yard.output(launch) == f"{yard.cwd}\n"


def test_the_program_is_small() -> None:
    """It needs nothing but a few built-in modules: what it imports is what every fork has to copy."""
    code = (
        "import sys; sys.path.append(sys.argv[1]); import keeper_program as program; program.load_libc();"
        "print(*sorted(sys.modules))"
    )
    folder = os.path.dirname(keeper_program.__file__)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, folder], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert {"marshal", "select", "keeper_program"} <= modules
    assert not modules & {"interlock", "typing", "enum", "re", "collections", "functools", "socket", "trio", "msgspec"}
    assert len(modules) < 50
