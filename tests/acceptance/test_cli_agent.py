"""`interlock agent` by the command line, beside `interlock up`: the whole way, and whatever can be killed on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WORK = 'echo "$INTERLOCK_RUN_NUMBER" >> did; until [ -e go ]; do sleep 0.05; done; echo done'


@pytest.fixture
def site(yard: Any) -> Any:
    """A folder whose runs are offered to whoever pulls."""
    yard.write(
        "interlock.yaml",
        "dispatch: {mode: pull, retry: {maxRetries: 1, baseDelayMs: 10}}\nserver: {listen: '127.0.0.1:0'}\n",
    )
    assert yard.interlock("init").returncode in (0, 4)
    return yard


def up(site: Any) -> subprocess.Popen[str]:
    daemon: subprocess.Popen[str] = site.start("up")
    site.until(lambda: "dispatcher active" in site.interlock("ps").stdout, "the daemon is up")
    return daemon


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def add(site: Any, *titles: str) -> None:
    for title in titles:
        assert site.interlock("add", title).returncode == 0


def events(site: Any, number: int = 1) -> list[str]:
    shown = json.loads(site.interlock("show", str(number), "--json").stdout)
    return [event["event"] for event in shown["events"]]


def spool(site: Any) -> list[str]:
    folder = site.folder / ".interlock" / "spool"
    return os.listdir(folder) if folder.exists() else []


def test_the_whole_way(site: Any) -> None:
    up(site)
    add(site, "first", "second", "third")
    said = json.dumps({"result": {"ok": True}})
    done = site.interlock(
        "agent",
        "--exec",
        f"cat > prompt; echo hello; printf '%s' '{said}' > \"$INTERLOCK_RESULT_FILE\"",
        *("--agent-id", "claude", "--parallel", "2", "--runs", "3"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert site.states() == ["completed"] * 3
    assert [run["agent"] for run in site.runs()] == ["claude"] * 3
    assert json.loads(site.runs()[0]["result"]) == {"ok": True}
    assert site.interlock("logs", "1").stdout == "hello\n"
    for words in ("Pulling from", "as claude", "At most 2 at once", "#1     started", "#3     completed", "Stopped."):
        assert words in done.stdout
    assert spool(site) == []


def test_a_cancel_stops_the_command_and_its_children(site: Any) -> None:
    up(site)
    add(site, "long")
    agent = site.start("agent", "--exec", 'sh -c "echo in >> did; exec sleep 1000" & wait', "--lease", "1s")
    site.until(lambda: site.did() == ["in"] and site.states() == ["running"], "it works")
    assert len(site.agents_alive()) == 2
    assert site.interlock("cancel", "1").returncode == 0
    site.until(lambda: site.states() == ["cancelled"], "it is cancelled")
    assert site.agents_alive() == []
    assert agent.poll() is None


def test_a_server_that_is_killed_in_the_middle_loses_nothing(site: Any) -> None:
    daemon = up(site)
    add(site, "one", "two")
    agent = site.start("agent", "--exec", WORK, "--parallel", "2", "--runs", "2", "--lease", "2s")
    site.until(lambda: sorted(site.did()) == ["1", "2"] and site.states() == ["running"] * 2, "they work")
    kill(daemon)
    site.write("go", "")
    site.until(lambda: site.agents_alive() == [], "the commands end while it is away")
    assert site.states() == ["running"] * 2
    assert len(spool(site)) == 2
    up(site)
    out, err = agent.communicate(timeout=90)
    assert (agent.returncode, err) == (0, "")
    assert "no answer from" in out
    assert "answers again" in out
    assert site.states() == ["completed"] * 2
    assert sorted(site.did()) == ["1", "2"]
    for number in (1, 2):
        assert events(site, number).count("complete") == 1
        assert events(site, number).count("claim") == 1
        assert site.interlock("logs", str(number)).stdout == "done\n"


@pytest.mark.parametrize(
    "point", ["agent.claimed", "agent.ended", "agent.settled", "agent.report", "agent.reported", "launch.released"]
)
def test_an_agent_that_is_killed_loses_nothing(site: Any, point: str) -> None:
    up(site)
    add(site, "one")
    site.env["INTERLOCK_CRASH_AT"] = point
    first = site.interlock("agent", "--exec", "echo did >> did; echo out", "--runs", "1")
    del site.env["INTERLOCK_CRASH_AT"]
    assert first.returncode == -signal.SIGKILL
    assert len(spool(site)) == 1
    second = site.start("agent", "--exec", "echo did >> did; echo out")
    assert "Pulling from" in second.stdout.readline()
    site.until(lambda: site.states() == ["completed"], "the next one sees to it")
    site.until(lambda: len(site.did()) == 1, "it was done once")
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=90)
    assert (second.returncode, err) == (0, "")
    assert "Traceback" not in out
    assert spool(site) == []
    assert (events(site).count("claim"), events(site).count("complete")) == (1, 1)
    assert site.did() == ["did"]
    assert site.interlock("logs", "1").stdout == "out\n"


def test_what_was_claimed_and_never_started_is_given_back(site: Any) -> None:
    up(site)
    add(site, "one")
    site.env["INTERLOCK_CRASH_AT"] = "agent.launch"
    assert site.interlock("agent", "--exec", "echo did >> did").returncode == -signal.SIGKILL
    del site.env["INTERLOCK_CRASH_AT"]
    agent = site.start("agent", "--exec", "echo did >> did")
    site.until(lambda: site.states() == ["completed"], "it is claimed once more, and done")
    assert site.did() == ["did"]
    assert events(site).count("claim") == 2
    assert agent.poll() is None


def test_a_command_outlives_a_killed_agent_and_is_taken_up(site: Any) -> None:
    up(site)
    add(site, "one")
    first = site.start("agent", "--exec", WORK, "--lease", "60s")
    site.until(lambda: site.did() == ["1"] and site.states() == ["running"], "it works")
    kill(first)
    assert len(site.agents_alive()) >= 1
    second = site.start("agent", "--exec", WORK, "--lease", "60s")
    seen: list[str] = []

    def taken_up() -> bool:
        seen.append(second.stdout.readline())
        return "taken up again" in seen[-1]

    site.until(taken_up, "the next agent says so")
    site.write("go", "")
    site.until(lambda: site.states() == ["completed"], "it completes")
    assert site.did() == ["1"]
    assert events(site).count("claim") == 1
    assert site.interlock("logs", "1").stdout == "done\n"


def test_a_megabyte_of_output_comes_through(site: Any) -> None:
    up(site)
    add(site, "much")
    command = "import sys; sys.stdout.write(''.join('%06d\\n' % n for n in range(150000)))"
    site.write("much.py", command)
    done = site.interlock("agent", "--exec", f"{sys.executable} much.py", "--runs", "1")
    assert done.returncode == 0
    assert site.interlock("logs", "1").stdout == "".join(f"{number:06d}\n" for number in range(150000))


def test_ctrl_c_once_finishes_twice_gives_back_thrice_leaves(site: Any) -> None:
    up(site)
    add(site, "one", "two")
    agent = site.start("agent", "--exec", WORK)
    site.until(lambda: site.did() == ["1"], "it works")
    agent.send_signal(signal.SIGINT)
    site.until(lambda: "still under way" in agent.stdout.readline(), "it says what it does")
    site.write("go", "")
    assert agent.wait(90) == 0
    assert site.states() == ["completed", "dispatched"]
    (site.folder / "go").unlink()

    agent = site.start("agent", "--exec", WORK)
    site.until(lambda: site.did() == ["1", "2"], "it works again")
    agent.send_signal(signal.SIGINT)
    site.until(lambda: "still under way" in agent.stdout.readline(), "it says what it does")
    agent.send_signal(signal.SIGINT)
    assert agent.wait(90) == 0
    assert site.states() == ["completed", "dispatched"]
    assert site.agents_alive() == []
    assert spool(site) == []

    stubborn = "trap '' TERM; echo again >> did; until [ -e go ]; do sleep 0.05; done"
    agent = site.start("agent", "--exec", stubborn, "--grace", "10m")
    site.until(lambda: site.did()[-1] == "again", "it works once more")
    for words in ("still under way", "giving back", "takes over"):
        agent.send_signal(signal.SIGINT)
        site.until(lambda words=words: words in agent.stdout.readline(), f"it says: {words}")
    assert agent.wait(90) == 0
    assert len(spool(site)) == 1
    site.write("go", "")
    assert site.interlock("agent", "--exec", stubborn, "--runs", "1").returncode == 0
    assert site.states() == ["completed"] * 2
    assert site.did() == ["1", "2", "again"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--exec", "no-such-program"], "not on the PATH"),
        (["--exec", " "], "--exec"),
        (["--exec", "true", "--url", "nonsense"], "no address of a server"),
        (["--exec", "true", "--token", "unknown"], "token is not known"),
        (["--exec", "true", "--lease", "3"], "has no unit"),
        (["--exec", "true", "--lease", "100d"], "between 1 ms and a day"),
        (["--exec", "true", "--parallel", "0"], "--parallel"),
        (["--exec", "true", "--spool", "/proc/nowhere"], "cannot be written"),
    ],
)
def test_what_a_user_got_wrong_is_said(site: Any, arguments: list[str], words: str) -> None:
    up(site)
    done = site.interlock("agent", *arguments)
    assert done.returncode in (2, 5)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "fault of Interlock" not in done.stderr


@pytest.mark.parametrize("example", ["agent.sh", "agent.py"])
def test_the_examples_work(site: Any, example: str) -> None:
    up(site)
    assert site.interlock("add", "say hello", "--type", "greeting").returncode == 0
    where = site.folder / ".interlock" / "api.sock"
    runner = [sys.executable] if example.endswith(".py") else ["sh"]
    process = subprocess.Popen(
        [*runner, str(EXAMPLES / example)],
        cwd=site.folder,
        env=site.env | {"INTERLOCK_URL": str(where)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        site.until(lambda: site.states() == ["completed"], "it is done")
        assert "say hello" in site.interlock("logs", "1").stdout
        assert process.poll() is None, "it waits for the next one"
    finally:
        # As Ctrl-C in its terminal would.
        os.killpg(process.pid, signal.SIGINT)
        process.wait(90)
