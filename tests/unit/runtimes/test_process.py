"""Identity of processes: what a pid alone does not tell."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from interlock.domain.run import ProcessIdentity
from interlock.runtimes import process
from interlock.runtimes.process import Liveness, identify, is_alive, open_pidfd, parse_stat, read_stat, send_signal

AFTER_NAME = b" S 10 20 30 0 -1 4194304 100 0 0 0 1 2 3 4 20 0 5 0 78839 3133440 388 1844674407\n"


@pytest.mark.parametrize("name", [b"cat", b"a b", b"(x)", b") S 1 2 3 (", b"new\nline", b"", b"\xff\xfe"])
def test_names_cannot_confuse_the_parser(name: bytes) -> None:
    stat = parse_stat(b"42 (" + name + b")" + AFTER_NAME)
    assert (stat.pid, stat.name, stat.state, stat.parent, stat.session) == (42, name, "S", 10, 30)
    assert (stat.cpu_ticks, stat.threads, stat.start_ticks, stat.memory_bytes) == (10, 5, 78839, 3133440)


@pytest.mark.parametrize("raw", [b"", b"42", b"42 (cat", b"42 (cat) S 1 2"])
def test_what_is_cut_short_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="stat"):
        parse_stat(raw)


def mine() -> ProcessIdentity:
    identity = identify(os.getpid())
    assert identity is not None
    return identity


def test_this_process_is_alive() -> None:
    assert is_alive(mine()) is Liveness.ALIVE


def test_a_process_with_a_strange_name_is_read() -> None:
    code = "open('/proc/self/comm','w').write('a) S (b\\n c'); print('x', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        stat = read_stat(child.pid)
        assert stat is not None
        assert stat.name.startswith(b"a) S (b")
        assert stat.parent == os.getpid()
        child.communicate("\n")


def test_another_start_time_means_another_process() -> None:
    reused = msgspec.structs.replace(mine(), start_ticks=mine().start_ticks - 1)
    assert is_alive(reused) is Liveness.DEAD
    assert not send_signal(reused.pid, reused.start_ticks, signal.SIGKILL), "would have killed this test"
    with pytest.raises(ProcessLookupError):
        open_pidfd(reused.pid, reused.start_ticks)


def test_another_boot_is_dead_and_another_namespace_unknown() -> None:
    assert is_alive(msgspec.structs.replace(mine(), boot_id="earlier")) is Liveness.DEAD
    assert is_alive(msgspec.structs.replace(mine(), pid_namespace="pid:[1]")) is Liveness.UNKNOWN


async def test_a_zombie_is_dead_and_still_identified(until: Callable[..., Any]) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    identity = identify(child.pid)
    assert identity is not None
    child.kill()
    await until(lambda: is_alive(identity) is Liveness.DEAD)
    assert identify(child.pid) == identity, "the zombie keeps its pid"
    child.wait()
    assert identify(child.pid) is None
    assert is_alive(identity) is Liveness.DEAD


async def test_a_dead_main_thread_beside_a_living_one_is_alive(until: Callable[..., Any]) -> None:
    code = """
        import ctypes, sys, threading
        threading.Thread(target=lambda: sys.stdin.read()).start()
        ctypes.CDLL(None).pthread_exit(None)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE)
    identity = identify(child.pid)
    assert identity is not None

    def state() -> str | None:
        stat = read_stat(child.pid)
        return stat and stat.state

    await until(lambda: state() == "Z")
    assert is_alive(identity) is Liveness.ALIVE
    child.kill()
    child.communicate()
    assert is_alive(identity) is Liveness.DEAD


def test_a_hidden_process_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = mine()
    monkeypatch.setattr(process, "read_stat", lambda pid: None)
    assert is_alive(identity) is Liveness.UNKNOWN


def test_without_pidfds_signals_still_check_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with subprocess.Popen(["sleep", "1000"]) as child:
        identity = identify(child.pid)
        assert identity is not None
        assert open_pidfd(child.pid, identity.start_ticks) is None
        assert not send_signal(child.pid, identity.start_ticks + 1, signal.SIGKILL)
        assert send_signal(child.pid, identity.start_ticks, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL


def refusing(number: int) -> Callable[..., Any]:
    def refuse(*_: object) -> Any:
        raise OSError(number, os.strerror(number))

    return refuse


def test_one_that_goes_while_it_is_read_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patched:
        patched.setattr(os, "read", refusing(errno.ESRCH))
        assert read_stat(os.getpid()) is None
        patched.setattr(os, "read", lambda *_: b"")
        assert read_stat(os.getpid()) is None
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_without_a_descriptor_to_look_with_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = mine()
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(process, "read_stat", refusing(errno.EMFILE))
        assert is_alive(identity) is Liveness.UNKNOWN
        assert open_pidfd(identity.pid, identity.start_ticks) is None
        patched.setattr(os, "pidfd_open", refusing(errno.EMFILE))
        assert open_pidfd(identity.pid, identity.start_ticks) is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_thread_is_no_process() -> None:
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        over.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        begun.wait()
        assert thread.native_id is not None
        assert read_stat(thread.native_id) is not None, "/proc shows it, though it does not list it"
        with pytest.raises(ProcessLookupError):
            open_pidfd(thread.native_id, mine().start_ticks)
    finally:
        over.set()
        thread.join()


def test_a_process_that_is_not_ours_to_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "pidfd_send_signal", refusing(errno.EPERM))
    assert not send_signal(os.getpid(), mine().start_ticks, signal.SIGCONT)


async def test_threads_that_went_before_they_were_looked_at(until: Callable[..., Any]) -> None:
    """A dead main thread was said to have others: they are dead as well, or gone with the process."""
    child = subprocess.Popen(["true"])

    def zombie() -> process.ProcessStat | None:
        stat = read_stat(child.pid)
        return stat if stat is not None and stat.state == "Z" else None

    stat = await until(zombie)
    several = msgspec.structs.replace(stat, threads=2)
    assert not several.living
    child.wait()
    assert not several.living
