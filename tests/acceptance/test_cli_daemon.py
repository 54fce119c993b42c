"""`interlock up` and those that talk to it, with real agents."""

from __future__ import annotations

import json
import re
import signal
import socket
from typing import Any

import pytest

# Says that it works, and works until the file `go` is there.
WORK = "echo working; while [ ! -e go ]; do sleep 0.05; done; echo done"


@pytest.fixture
def desk(yard: Any) -> Any:
    """A folder whose agent works until it is told to finish."""
    yard.write(
        "interlock.yaml",
        f"dispatch: {{defaultAgent: worker, retry: {{maxRetries: 1, baseDelayMs: 10}}, stopGrace: 2s}}\n"
        f"agents:\n  worker: {{command: '{WORK}'}}\n",
    )
    assert yard.interlock("init").returncode == 0
    return yard


def up(desk: Any, *arguments: str) -> Any:
    daemon = desk.start("up", *arguments)
    desk.until(lambda: "dispatcher active" in desk.interlock("ps").stdout, "the daemon is up")
    return daemon


def working(desk: Any, count: int = 1) -> None:
    """Queue tasks, and wait until their agents say that they work."""
    for number in range(count):
        assert desk.interlock("add", f"task {number}").returncode == 0
    desk.until(lambda: desk.states() == ["running"] * count, "they run")
    desk.until(lambda: desk.interlock("logs", str(count)).stdout == "working\n", "the agent has begun")


def test_up_says_what_happens_and_how_to_get_out(desk: Any) -> None:
    daemon = up(desk)
    working(desk)
    desk.write("go", "")
    desk.until(lambda: desk.states() == ["completed"], "it completes")
    stopped = desk.interlock("stop")
    assert (stopped.returncode, stopped.stdout) == (0, "Stopped.\n")
    out, err = daemon.communicate()
    assert daemon.returncode == 0
    assert err == ""
    for words in (str(desk.folder), "Ctrl-C", "interlock.yaml", "worker", "Stopped."):
        assert words in out
    assert re.search(r"^\d\d:\d\d:\d\d  #1 +queued +task 0$", out, re.MULTILINE)
    assert re.search(r"^\d\d:\d\d:\d\d  #1 +started +task 0$", out, re.MULTILINE)
    assert re.search(r"^\d\d:\d\d:\d\d  #1 +completed +task 0  \(\S+\)$", out, re.MULTILINE)


def test_a_second_daemon_is_refused(desk: Any) -> None:
    up(desk)
    second = desk.interlock("up")
    assert second.returncode == 4
    assert "--peer" in second.stderr
    assert "Traceback" not in second.stderr
    peer = desk.start("up", "--peer")
    desk.until(lambda: desk.interlock("ps").stdout.count("dispatcher active") == 2, "both are up")
    stopped = desk.interlock("stop")
    assert stopped.returncode == 0
    assert "2 dispatchers" in stopped.stderr
    assert peer.wait(30) == 0


def test_stop_drains(desk: Any) -> None:
    daemon = up(desk)
    working(desk)
    stopping = desk.start("stop")
    desk.until(lambda: "draining" in desk.interlock("ps").stdout, "it drains")
    desk.interlock("add", "too late")
    assert stopping.poll() is None
    desk.write("go", "")
    out, err = stopping.communicate(timeout=60)
    assert stopping.returncode == 0
    assert out == "Stopped.\n"
    assert "1 agent still working" in err
    assert daemon.wait(30) == 0
    assert desk.states() == ["completed", "queued"]


def test_stop_detach_leaves_agents_and_up_takes_them_up(desk: Any) -> None:
    daemon = up(desk)
    working(desk)
    stopped = desk.interlock("stop", "--detach")
    assert stopped.returncode == 0
    assert "1 agent left running" in stopped.stdout
    assert daemon.wait(30) == 0
    assert "left running" in daemon.communicate()[0]
    assert desk.agents_alive()
    assert "no dispatcher looks after" in desk.interlock("why", "1").stdout
    doctor = desk.interlock("doctor")
    assert doctor.returncode == 1
    assert "#1" in doctor.stdout
    again = up(desk)
    desk.write("go", "")
    desk.until(lambda: desk.states() == ["completed"], "it completes")
    assert desk.interlock("stop").returncode == 0
    assert "Took up 1 run" in again.communicate()[0]
    assert json.loads(desk.interlock("show", "1", "--json").stdout)["run"]["fence"] == 1


def test_stop_kill_queues_again(desk: Any) -> None:
    daemon = up(desk)
    working(desk, 2)
    assert desk.interlock("stop", "--kill").returncode == 0
    assert daemon.wait(30) == 0
    assert desk.states() == ["queued", "queued"]
    assert desk.agents_alive() == []
    assert json.loads(desk.interlock("ps", "--json").stdout)[0]["failures"] == 0


def test_ctrl_c_at_stop_leaves_it_draining(desk: Any) -> None:
    daemon = up(desk)
    working(desk)
    stopping = desk.start("stop")
    desk.until(lambda: "draining" in desk.interlock("ps").stdout, "it drains")
    stopping.send_signal(signal.SIGINT)
    _, err = stopping.communicate(timeout=30)
    assert stopping.returncode == 130
    assert "goes on stopping" in err
    assert "Traceback" not in err
    assert daemon.poll() is None
    desk.write("go", "")
    assert daemon.wait(30) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_drains_two_kill(desk: Any, number: signal.Signals) -> None:
    daemon = up(desk)
    working(desk)
    daemon.send_signal(signal.SIGHUP)
    daemon.send_signal(number)
    desk.until(lambda: "draining" in desk.interlock("ps").stdout, "it drains")
    assert desk.states() == ["running"]
    daemon.send_signal(number)
    out, err = daemon.communicate(timeout=60)
    assert daemon.returncode == 0
    assert err == ""
    assert "Nothing new starts; 1 agent still working" in out
    assert desk.states() == ["queued"]
    assert desk.agents_alive() == []


def test_up_goes_on_when_nobody_reads(desk: Any) -> None:
    daemon = up(desk)
    daemon.stdout.close()
    working(desk)
    desk.write("go", "")
    desk.until(lambda: desk.states() == ["completed"], "it completes")
    assert desk.interlock("stop").returncode == 0
    assert daemon.wait(30) == 0
    assert daemon.stderr.read() == ""
    daemon.stdout = None


def test_logs_follows_until_the_run_ends(desk: Any) -> None:
    assert desk.interlock("add", "one").returncode == 0
    nothing = desk.interlock("logs", "1")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "no agent has worked on it" in nothing.stderr
    following = desk.start("logs", "1", "-f")
    up(desk)
    desk.until(lambda: desk.states() == ["running"], "it runs")
    desk.write("go", "")
    out, err = following.communicate(timeout=60)
    assert following.returncode == 0
    assert out == "working\ndone\n"
    assert "completed" in err
    assert desk.interlock("logs", "1", "-f").stdout == "working\ndone\n"
    assert desk.interlock("logs", "1", "-n", "1").stdout == "done\n"
    assert desk.interlock("logs", "1", "--attempt", "2").returncode == 3


def test_logs_follows_into_the_next_attempt(yard: Any) -> None:
    yard.write(
        "interlock.yaml",
        "dispatch: {defaultAgent: w, retry: {maxRetries: 1, baseDelayMs: 10}}\n"
        "agents:\n  w: {command: 'echo try $INTERLOCK_ATTEMPT; exit 1'}\n",
    )
    yard.interlock("init")
    yard.interlock("add", "one")
    following = yard.start("logs", "1", "-f")
    up(yard)
    out, err = following.communicate(timeout=60)
    assert following.returncode == 0
    assert out in ("try 1\ntry 2\n", "try 2\n")
    assert "failed" in err
    assert yard.interlock("logs", "1", "--attempt", "1").stdout == "try 1\n"
    shown = yard.interlock("show", "1").stdout
    assert "retries_exhausted" in shown
    assert "exited with status 1" in shown
    assert "will retry" in shown
    assert yard.interlock("stop").returncode == 0
    retried = yard.interlock("retry", "--failed").stdout
    assert "#1 is run again as #2" in retried
    assert "No run has failed" in yard.interlock("retry", "--failed").stdout
    assert "failed" in yard.interlock("diagram", "--run", "1").stdout


def test_ctrl_c_at_logs_is_quiet(desk: Any) -> None:
    assert desk.interlock("add", "one").returncode == 0
    following = desk.start("logs", "1", "-f")
    assert "waiting" in following.stderr.readline()
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=30)
    assert (following.returncode, out, err) == (130, "", "")


def test_a_run_that_is_cancelled_shows_as_stopping(desk: Any) -> None:
    desk.write(
        "interlock.yaml", desk.read("interlock.yaml").replace(WORK, 'trap "" TERM; ' + WORK).replace("2s", "60s")
    )
    up(desk)
    working(desk)
    said = desk.interlock("cancel", "1").stdout
    assert "once its agent is gone" in said
    assert "stopping" in desk.interlock("ps").stdout
    assert (
        "once its agent is gone" in desk.interlock("why", "1").stdout or "stopping" in desk.interlock("why", "1").stdout
    )
    desk.write("go", "")
    desk.until(lambda: desk.states() == ["cancelled"], "it is cancelled")
    desk.interlock("stop")


def test_tables_on_a_terminal(desk: Any) -> None:
    up(desk)
    working(desk)
    desk.interlock(
        "add", "a title that is far too long for a terminal of eighty columns, so that it has to be cut", "--held"
    )
    shown = desk.terminal("ps", columns=80)
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.read())
    shown.close()
    lines = text.replace("\r\n", "\n").splitlines()
    assert max(map(len, lines)) <= 80
    assert "1 running, 1 queued" in text
    header = next(line for line in lines if line.startswith("#"))
    assert header.split() == ["#", "ID", "STATE", "TITLE", "AGENT", "TIME", "NOTE"]
    assert "…" in lines[-1]
    assert "on hold" in lines[-1]
    assert len(lines) == 4
    desk.env["NO_COLOR"] = "1"
    plain = desk.terminal("ps", columns=80)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", plain.read())
    plain.close()
    desk.write("go", "")


def test_cancel_all_asks_on_a_terminal(desk: Any) -> None:
    desk.interlock("add", "one")
    asked = desk.terminal("cancel", "--all")
    asked.expect("Cancel 1 run")
    asked.sendline("n")
    asked.expect("\n")
    asked.read()
    asked.close()
    assert asked.exitstatus == 130
    assert desk.states() == ["queued"]
    assert desk.interlock("cancel", "--all").returncode == 0
    assert desk.states() == ["cancelled"]


def test_an_address_that_is_taken_is_told_before_anything_starts(desk: Any) -> None:
    assert desk.interlock("add", "one").returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = desk.interlock("up", "--listen", address)
    assert refused.returncode == 4
    assert f"cannot listen on {address}" in refused.stderr
    assert "--no-http" in refused.stderr
    assert desk.states() == ["queued"]


def test_a_peer_and_a_refused_one_leave_the_socket_file_to_the_first(desk: Any) -> None:
    first = up(desk)
    path = desk.folder / ".interlock" / "api.sock"
    desk.until(path.is_socket, "it serves")
    assert desk.interlock("up").returncode == 4
    peer = desk.start("up", "--peer", "--listen", "127.0.0.1:0")
    desk.until(lambda: desk.interlock("ps").stdout.count("dispatcher active") == 2, "the peer is up")
    peer.send_signal(signal.SIGINT)
    assert peer.wait(60) == 0
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 0
    assert not path.exists()


def test_forget(desk: Any) -> None:
    up(desk)
    working(desk)
    assert desk.interlock("stop", "--detach").returncode == 0
    unsure = desk.interlock("doctor", "--forget", "1")
    assert unsure.returncode == 4
    assert "second one" in unsure.stderr
    assert desk.states() == ["running"]
    desk.write("go", "")
    desk.until(lambda: not desk.agents_alive(), "the agent has ended")
    sure = desk.interlock("doctor", "--forget", "1", "--yes")
    assert sure.returncode == 0, sure.stderr
    assert desk.states() != ["running"]
    assert list((desk.folder / ".interlock").glob("attempts/*/*/void")), (
        "should it still be on its way, it never starts"
    )
    up(desk)
    desk.until(lambda: desk.states() == ["completed"], "it is tried again")
    assert json.loads(desk.interlock("show", "1", "--json").stdout)["run"]["fence"] == 2
    desk.interlock("stop")
