"""Commands as agents: how they end, what they print, what they inherit, and why they cannot start."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from interlock.domain.attempt_files import AttemptFiles
from interlock.domain.errors import Unavailable
from interlock.domain.settings import Agent
from interlock.ports.runtime import CannotStart, Ended, Ending, Launch, NeverStarted, TreeSurvives
from interlock.runtimes import CommandRuntime, cgroup, command, raise_fd_limit
from interlock.runtimes.process import Liveness, identify, is_alive


async def run(runtime: CommandRuntime, launch: Launch) -> int | None:
    """Launch, wait, stop."""
    handle = await runtime.launch(launch)
    with trio.fail_after(30):
        ending = await handle.wait()
        await handle.stop(1000)
    return ending.exit_status


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("true", 0),
        ("false", 1),
        ("exit 75", 75),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("kill -INT $$", 130),
        (("/bin/sh", "-c", "exit 3"), 3),
        (("sh", "-c", "exit 4"), 4),
        ("sh -c 'exit 5'", 5),
        ("PATH=; no-such-thing", 127),
    ],
)
async def test_statuses(runtime: CommandRuntime, yard: Any, command: str | tuple[str, ...], status: int) -> None:
    assert await run(runtime, yard.launch(command)) == status


async def test_words_of_an_argv_arrive_as_they_are(runtime: CommandRuntime, yard: Any) -> None:
    words = ("a b", "", "*", "$HOME", "-n", "\n", "ü", "'", '"', "\\n")
    launch = yard.launch(("/usr/bin/printf", "[%s]", *words))
    assert await run(runtime, launch) == 0
    assert yard.output(launch) == "".join(f"[{word}]" for word in words)


async def test_names_of_builtins_mean_programs_in_an_argv(runtime: CommandRuntime, yard: Any) -> None:
    launch = yard.launch(("echo", "-e", "x"))
    assert await run(runtime, launch) == 0
    assert yard.output(launch) == "x\n", "a shell's builtin would print -e"


async def test_ten_megabytes_on_one_line_and_control_bytes(runtime: CommandRuntime, yard: Any) -> None:
    launch = yard.launch("head -c 10000000 /dev/zero | tr '\\0' x; printf '\\033[2J\\000\\377' >&2")
    assert await run(runtime, launch) == 0
    content = AttemptFiles(launch.folder).log.read_bytes()
    assert content == b"x" * 10_000_000 + b"\033[2J\0\377"


async def test_the_environment_is_the_callers_and_the_mark(runtime: CommandRuntime, yard: Any) -> None:
    launch = msgspec.structs.replace(
        yard.launch(("/usr/bin/env", "-0")), env={"A": "1", "B": "zwei\n", "not for-a.shell": "ü"}
    )
    assert await run(runtime, launch) == 0
    got = dict(item.split("=", 1) for item in yard.output(launch).split("\0") if item)
    assert got.pop("INTERLOCK_ATTEMPT_DIR") == str(launch.folder.resolve())
    assert got == {"A": "1", "B": "zwei\n", "not for-a.shell": "ü"}


async def test_the_working_folder_and_the_session(runtime: CommandRuntime, yard: Any) -> None:
    launch = yard.launch('pwd; cut -d" " -f6 /proc/self/stat')
    handle = await runtime.launch(launch)
    await handle.wait()
    await handle.stop(0)
    assert handle.identity is not None
    assert yard.output(launch) == f"{yard.cwd}\n{handle.identity.pid}\n"


async def test_no_signal_is_ignored_or_blocked_for_the_agent(runtime: CommandRuntime, yard: Any) -> None:
    launch = yard.launch(("grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"))
    assert await run(runtime, launch) == 0
    assert [line.split()[1] for line in yard.output(launch).splitlines()] == ["0" * 16] * 2


async def test_a_keeper_that_is_signalled_still_reports(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    """A service manager signals everyone: that is for the agents, and the keeper lives to tell how they took it."""
    launch = yard.launch("echo $$ > started; while [ ! -e go ]; do sleep 0.01; done; exit 9")
    handle = await runtime.launch(launch)
    await until(lambda: yard.pid_in("started"))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGPIPE):
        os.kill(keeper_of(runtime), number)
    (yard.cwd / "go").touch()
    assert (await handle.wait()).exit_status == 9
    await handle.stop(0)


async def test_identity_in_the_folder_is_that_of_the_handle(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    launch = yard.launch("echo $$ > started; sleep 1000; :")
    handle = await runtime.launch(launch)
    await until(lambda: yard.pid_in("started"))
    from interlock.runtimes.records import read_identity

    assert handle.identity is not None
    assert handle.identity == read_identity(AttemptFiles(launch.folder)) == identify(handle.identity.pid)
    assert is_alive(handle.identity) is Liveness.ALIVE
    await handle.stop(5000)
    assert is_alive(handle.identity) is Liveness.DEAD


async def test_activity_grows(runtime: CommandRuntime, yard: Any, until: Callable[..., Any]) -> None:
    handle = await runtime.launch(yard.launch("echo x; while :; do :; done"))
    await until(lambda: handle.activity().output_bytes == 2)
    seen = handle.activity().cpu_ticks
    await until(lambda: handle.activity().cpu_ticks >= seen + 3)
    await handle.stop(0)


async def test_closing_a_handle_lets_the_agent_live(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    launch = yard.launch("echo $$ > started; while [ ! -e go ]; do sleep 0.01; done; exit 9")
    handle = await runtime.launch(launch)
    await until(lambda: yard.pid_in("started"))
    handle.close()
    (yard.cwd / "go").touch()
    assert (await handle.wait()).exit_status == 9, "by polling"
    await until(AttemptFiles(launch.folder).exit.exists)
    await handle.stop(0)
    assert await runtime.recover(launch.folder) == Ended(Ending(exit_status=9))


async def test_without_pidfds_everything_still_works(
    runtime: CommandRuntime, yard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    assert await run(runtime, yard.launch("exit 7")) == 7
    handle = await runtime.launch(yard.launch("sleep 1000; :"))
    await handle.stop(5000)
    assert await handle.wait() == Ending(exit_status=143)


def keeper_of(runtime: CommandRuntime) -> int:
    """The pid of its keeper."""
    assert runtime._keeper is not None
    return runtime._keeper.pid


def spawn_failing_with(number: int, filename: object = None) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), filename)

    return refuse


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EMFILE, "ulimit -n"),
        (errno.EAGAIN, "ulimit -u"),
        (errno.ENOMEM, "memory"),
        (errno.E2BIG, "longer"),
        (errno.EACCES, "Permission denied"),
    ],
)
async def test_a_spawn_that_the_system_refuses(
    runtime: CommandRuntime, yard: Any, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    launch = yard.launch("true")
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", spawn_failing_with(number))
        with pytest.raises(CannotStart, match=words):
            await runtime.launch(launch)
    assert len(os.listdir("/proc/self/fd")) == before
    assert await runtime.recover(launch.folder) == NeverStarted()


async def test_real_refusals(runtime: CommandRuntime, yard: Any) -> None:
    with pytest.raises(CannotStart, match="longer"):
        await runtime.launch(yard.launch(("/bin/true", "x" * 3_000_000)))
    with pytest.raises(CannotStart, match="handed"):
        await runtime.launch(yard.launch(("/bin/true", "a\0b")))
    folder = yard.folder()
    (folder / "prompt.md").unlink()
    with pytest.raises(CannotStart, match=r"prompt\.md"):
        await runtime.launch(yard.launch("true", folder))


async def test_no_descriptor_left(runtime: CommandRuntime, yard: Any) -> None:
    launch = yard.launch("true")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    try:
        for _ in range(4):
            with pytest.raises(CannotStart, match="ulimit -n"):
                await runtime.launch(launch)
            os.close(taken.pop())
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert await run(runtime, launch) == 0


async def test_an_exit_status_that_cannot_be_written_is_heard(runtime: CommandRuntime, yard: Any) -> None:
    """/dev/full takes no byte. What the keeper tells is not lost with it."""
    launch = yard.launch('ln -s /dev/full "$INTERLOCK_ATTEMPT_DIR/exit"; exit 5')
    handle = await runtime.launch(launch)
    assert await handle.wait() == Ending(exit_status=5)
    await handle.stop(0)
    assert await runtime.recover(launch.folder) == Ended(Ending(exit_status=None))


async def test_a_pipe_in_place_of_the_exit_file_holds_nobody_up(runtime: CommandRuntime, yard: Any) -> None:
    handle = await runtime.launch(yard.launch('mkfifo "$INTERLOCK_ATTEMPT_DIR/exit"; exit 5'))
    with trio.fail_after(20):
        assert await handle.wait() == Ending(exit_status=5)
        await handle.stop(0)
    assert await run(runtime, yard.launch("exit 6")) == 6


async def test_words_of_the_keeper_that_the_log_does_not_take(
    runtime: CommandRuntime, yard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "program_argv", lambda *_: ["/no/such/program"])
    launch = yard.launch("program")
    AttemptFiles(launch.folder).log.symlink_to("/dev/full")
    assert await run(runtime, launch) == 127


@pytest.mark.parametrize("name", ["", "A=B"])
async def test_a_name_that_no_variable_can_have(runtime: CommandRuntime, yard: Any, name: str) -> None:
    with pytest.raises(CannotStart, match="illegal environment variable name"):
        await runtime.launch(yard.launch("true", **{name: "x"}))


async def test_without_an_identity_nothing_starts(
    runtime: CommandRuntime, yard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = yard.launch("echo ran >> ../ran")
    with monkeypatch.context() as patched:
        patched.setattr(AttemptFiles, "identity", Path("/dev/full"))
        # it is there, and yet not in the folder
        patched.setattr(command.os.path, "lexists", lambda path: path != Path("/dev/full") and os.path.exists(path))
        with pytest.raises(CannotStart, match="disk is full"):
            await runtime.launch(launch)
    assert not (yard.base / "ran").exists()
    assert await runtime.recover(launch.folder) == NeverStarted()


async def test_the_soft_limit_of_open_files_is_given_back(yard: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    try:
        before = raise_fd_limit()
        assert before == 512
        assert raise_fd_limit() is None
        launch = yard.launch("ulimit -S -n; ulimit -H -n")
        assert await run(CommandRuntime(cgroups=False, soft_fd_limit=before), launch) == 0
        assert yard.output(launch).split() == ["512", "unlimited" if hard == resource.RLIM_INFINITY else str(hard)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_limit_of_open_files_that_cannot_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (512, 1024))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_fd_limit() is None


def test_insisting_on_cgroups_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "usable_parent", lambda: None)
    with pytest.raises(Unavailable):
        CommandRuntime(cgroups=True)
    assert not CommandRuntime().contained


async def test_insisting_on_cgroups_that_cannot_be_made_any_more(yard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "usable_parent", lambda: yard.base)
    monkeypatch.setattr(cgroup, "make", lambda *_: None)
    launch = yard.launch("exit 4")
    with pytest.raises(CannotStart, match="no cgroup can be made"):
        await CommandRuntime(cgroups=True).launch(launch)
    runtime = CommandRuntime()
    assert runtime.contained
    assert await run(runtime, launch) == 4
    assert AttemptFiles(launch.folder).lock.read_bytes() == b"", "it names no cgroup that there is not"
    runtime.close()


@pytest.mark.parametrize(
    ("make", "status", "words"),
    [
        (lambda path: path.write_bytes(b"\x7fELF nothing of the kind"), 126, "Exec format error"),
        (lambda path: path.write_bytes(b"#!/no/such/interpreter\n"), 127, "No such file"),
        (lambda path: path.write_bytes(b"#!/etc\n"), 126, "Permission denied"),
        (lambda path: path.write_bytes(b"exit 3\n"), 3, None),
    ],
    ids=["no program", "no interpreter", "a folder as interpreter", "no first line"],
)
async def test_what_cannot_be_executed_has_the_status_that_a_shell_gives(
    runtime: CommandRuntime,
    yard: Any,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], object],
    status: int,
    words: str | None,
) -> None:
    program = yard.base / "program"
    make(program)
    program.chmod(0o755)
    monkeypatch.setattr(command, "program_argv", lambda *_: [str(program)])
    launch = yard.launch("program")
    got = await run(runtime, launch)
    if words == "Exec format error":
        # the shell that is asked then has an opinion of its own
        assert got in (126, 127, 2)
        return
    assert got == status
    assert words is None or words in yard.output(launch)


async def test_a_keeper_that_dies_before_it_gets_the_order_has_another_asked(
    runtime: CommandRuntime, yard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.prepare()
    first = keeper_of(runtime)

    def crashpoint(name: str) -> None:
        if name == "launch.contained":
            os.kill(first, signal.SIGKILL)
            os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)

    with monkeypatch.context() as patched:
        patched.setattr(command, "crashpoint", crashpoint)
        launch = yard.launch("echo ran; exit 3")
        agent = await runtime.launch(launch)
    assert await agent.wait() == Ending(exit_status=3)
    await agent.stop(0)
    assert keeper_of(runtime) != first
    assert yard.output(launch) == "ran\n"


async def test_looking_without_descriptors_confirms_nothing(
    runtime: CommandRuntime, yard: Any, until: Callable[..., Any]
) -> None:
    """Out of descriptors after the launch: no wrong answer, and all is well when there are some again."""
    handle = await runtime.launch(yard.launch("echo $$ > started; sleep 1000; :"))
    pid = await until(lambda: yard.pid_in("started"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(TreeSurvives, match="Too many open files"):
            await handle.stop(0)
        assert handle.activity().cpu_ticks == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await handle.stop(0)
    assert not yard.lives(pid)


async def test_many_at_once(runtime: CommandRuntime, yard: Any) -> None:
    statuses = []

    async def one(number: int) -> None:
        statuses.append((number, await run(runtime, yard.launch(f"exit {number}"))))

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(one, number)
    assert sorted(statuses) == [(number, number) for number in range(40)]


def test_check_says_what_is_wrong(yard: Any) -> None:
    runtime = CommandRuntime(cgroups=False)
    reason = runtime.check(Agent(name="coder"), yard.cwd)
    assert reason is not None
    assert "agents.coder.command" in reason
    assert runtime.check(Agent(name="coder", command="sh", env={"PATH": "/nowhere"}), yard.cwd)
    reason = runtime.check(Agent(name="coder", command="sh"), Path("/" + "long" * 2000))
    assert reason is not None
    assert "longlong" in reason
    assert runtime.check(Agent(name="coder", command="sh"), yard.cwd) is None
