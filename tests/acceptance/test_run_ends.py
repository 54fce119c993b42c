"""`interlock run` ends when nothing can go on by itself; interrupted, killed or helped by a daemon, it runs nothing twice."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import pexpect
import pytest

HOLD = f"{sys.executable} -m interlock hold"
NOTE = "head -n 1 | sed 's/^# //' >> did"
# Says that it has begun, and goes on once the file `go` is there.
WAITING = 'read -r _ name; echo "$name" >> began; while [ ! -e go ]; do sleep 0.05; done; echo "$name" >> did'


def four(yard: Any) -> None:
    yard.write("todo.md", "".join(f"- [ ] {name}\n" for name in ("one", "two", "three", "four")))


# nothing can go on


def test_held_tasks_end_it(yard: Any) -> None:
    four(yard)
    agent = f"[ $INTERLOCK_RUN_NUMBER != 1 ] || {HOLD} '#3'"
    data = yard.summary("todo.md", "--agent", agent, "-j", "1")
    assert data["exit_status"] == 1
    assert data["states"] == {"completed": 3, "queued": 1}
    (held,) = [run for run in data["runs"] if run["state"] == "queued"]
    assert held["waits_for"][0]["kind"] == "held"
    text = yard.interlock("run", "todo.md", "--agent", agent)
    assert "on hold" in text.stdout
    assert "interlock why '#3'" in text.stdout


def test_what_needs_a_held_task_ends_it_too(yard: Any) -> None:
    yard.write("t.yaml", "- {id: a, title: a}\n- {id: b, title: b}\n- {id: c, title: c, needs: [b]}\n")
    agent = f"[ $INTERLOCK_RUN_NUMBER != 1 ] || {HOLD} '#2'"
    assert yard.summary("t.yaml", "--agent", agent, "-j", "1")["states"] == {"completed": 1, "queued": 2}


def test_a_question_ends_it(yard: Any) -> None:
    four(yard)
    agent = (
        "[ $INTERLOCK_RUN_NUMBER != 2 ] || "
        'echo \'{"outcome": "blocked", "question": "red or blue?"}\' > "$INTERLOCK_RESULT_FILE"'
    )
    done = yard.interlock("run", "todo.md", "--agent", agent)
    assert done.returncode == 1
    assert "red or blue?" in done.stdout


def test_tasks_without_an_agent_end_it(yard: Any) -> None:
    yard.write("t.yaml", "- {title: a}\n- {title: b, agent: nobody}\n")
    done = yard.interlock("run", "t.yaml", "--agent", "true")
    assert done.returncode == 1
    assert "agent 'nobody' is not defined" in done.stdout


def test_a_limit_of_none_ends_it(yard: Any) -> None:
    yard.write("interlock.yaml", "dispatch: {concurrency: {perTag: {never: 0}}}\n")
    yard.write("t.yaml", "- {title: a}\n- {title: b, tags: [never]}\n")
    assert yard.summary("t.yaml", "--agent", "true")["states"] == {"completed": 1, "queued": 1}


def test_a_disabled_dispatcher_ends_it(yard: Any) -> None:
    yard.write("interlock.yaml", "dispatch: {enabled: false}\n")
    four(yard)
    done = yard.interlock("run", "todo.md", "--agent", "true")
    assert done.returncode == 1
    assert "dispatch.enabled is false" in done.stdout


def test_an_agent_that_cannot_be_started_ends_it_when_all_else_is_done(yard: Any) -> None:
    yard.write("interlock.yaml", "agents: {gone: ./not-here.sh}\n")
    yard.write("t.yaml", "- {title: a}\n- {title: b, agent: gone}\n- {title: c, agent: gone}\n")
    done = yard.interlock("run", "t.yaml", "--agent", "true")
    assert done.returncode == 1
    assert "agent 'gone' cannot be started" in done.stdout
    assert yard.states() == ["completed", "queued", "queued"]


def test_a_time_that_is_to_come_is_waited_for(yard: Any) -> None:
    yard.write("t.yaml", "- {title: a, not_before: in 1s}\n")
    assert yard.interlock("run", "t.yaml", "--agent", NOTE).returncode == 0
    assert yard.did() == ["a"]


def test_a_pause_is_waited_for(yard: Any) -> None:
    four(yard)
    yard.interlock("init")
    assert yard.interlock("pause").returncode == 0
    process = yard.start("run", "todo.md", "--agent", NOTE)
    yard.until(yard.locks_held, "a dispatcher is up")
    yard.until(lambda: "waiting: dispatching is paused" in process.stderr.readline(), "it says so")
    assert process.poll() is None
    assert yard.did() == []
    assert yard.interlock("resume").returncode == 0
    assert process.wait(60) == 0
    assert len(yard.did()) == 4


# interrupted


def test_ctrl_c_lets_agents_finish(yard: Any) -> None:
    four(yard)
    terminal = yard.terminal("run", "todo.md", "--agent", WAITING, "-j", "2")
    yard.until(lambda: len(yard.read("began").split()) == 2, "two agents run")
    terminal.sendintr()
    terminal.expect("nothing new is started; 2 agents may finish")
    yard.write("go", "")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130
    assert sorted(yard.did()) == ["one", "two"]
    assert yard.states() == ["completed", "completed", "queued", "queued"]
    assert not yard.locks_held()
    assert yard.interlock("run", "todo.md", "--agent", WAITING).returncode == 0
    assert sorted(yard.did()) == ["four", "one", "three", "two"]


def test_ctrl_c_twice_stops_agents_and_queues_them_again(yard: Any) -> None:
    four(yard)
    terminal = yard.terminal("run", "todo.md", "--agent", WAITING, "-j", "2")
    yard.until(lambda: len(yard.read("began").split()) == 2, "two agents run")
    terminal.logfile_read = io.StringIO()
    terminal.sendintr()
    terminal.expect("nothing new is started")
    terminal.sendintr()
    terminal.expect("stopping 2 agents")
    terminal.expect(pexpect.EOF)
    said = terminal.logfile_read.getvalue()
    terminal.close()
    assert terminal.exitstatus == 130
    assert said.rfind("\x1b[?25h") > said.rfind("\x1b[?25l"), "the cursor is back"
    assert yard.states() == ["queued"] * 4
    assert not yard.agents_alive()
    assert not yard.locks_held()
    assert yard.did() == []
    yard.write("go", "")
    assert yard.interlock("run", "todo.md", "--agent", WAITING).returncode == 0
    assert sorted(yard.did()) == ["four", "one", "three", "two"]
    assert [run["failures"] for run in yard.runs()] == [0] * 4


def test_two_ctrl_c_at_once_are_both_heard(yard: Any) -> None:
    four(yard)
    process = yard.start("run", "todo.md", "--agent", WAITING, "-j", "2")
    yard.until(lambda: len(yard.read("began").split()) == 2, "two agents run")
    process.send_signal(signal.SIGINT)
    yard.until(lambda: "may finish" in process.stderr.readline(), "the first was heard")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert not yard.agents_alive()
    assert yard.states() == ["queued"] * 4


def test_sigterm_stops_agents_and_queues_them_again(yard: Any) -> None:
    four(yard)
    process = yard.start("run", "todo.md", "--agent", WAITING, "-j", "2")
    yard.until(lambda: len(yard.read("began").split()) == 2, "two agents run")
    process.terminate()
    assert process.wait(60) == 143
    assert not yard.agents_alive()
    assert yard.states() == ["queued"] * 4
    assert "goes on" in process.stderr.read()


def test_who_insists_leaves_at_once_and_the_next_start_sees_to_the_agents(yard: Any) -> None:
    yard.write("interlock.yaml", "dispatch: {stopGrace: 10m}\n")
    four(yard)
    deaf = f"trap '' TERM; {WAITING}"
    process = yard.start("run", "todo.md", "--agent", deaf, "-j", "1")
    yard.until(lambda: yard.read("began") == "one\n", "an agent runs")
    for words in ("nothing new is started", "stopping 1 agent"):
        process.send_signal(signal.SIGINT)
        yard.until(lambda words=words: words in process.stderr.readline(), words)
    yard.until(lambda: yard.runs()[0]["stop"], "that it is to be stopped is on disk")
    process.send_signal(signal.SIGINT)
    yard.until(lambda: "leaving at once" in process.stderr.readline(), "it leaves")
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(yard.agents_alive()) > 0
    yard.write("interlock.yaml", "dispatch: {stopGrace: 100ms}\n")
    later = yard.start("run", "todo.md", "--agent", deaf, "-j", "1")
    yard.until(lambda: yard.read("began") == "one\none\n", "it is stopped and begun again")
    yard.write("go", "")
    assert later.wait(60) == 0
    assert sorted(yard.did()) == ["four", "one", "three", "two"]


def test_a_dispatcher_that_is_stopped_from_elsewhere_ends_it(yard: Any) -> None:
    four(yard)
    process = yard.start("run", "todo.md", "--agent", WAITING, "-j", "1")
    yard.until(lambda: yard.read("began") == "one\n", "an agent runs")
    stopping = yard.start("stop")
    yard.until(lambda: "draining" in yard.interlock("ps").stdout, "it was told")
    yard.write("go", "")
    _, remarks = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the dispatcher was stopped; the same command goes on" in remarks
    assert stopping.wait(60) == 0
    assert yard.did() == ["one"]


def test_what_is_added_to_the_batch_meanwhile_is_told_and_waited_for(yard: Any) -> None:
    """Another `interlock run` of the backlog, which has become longer."""
    yard.write("todo.md", "- [ ] one\n")
    process = yard.start("run", "todo.md", "--agent", WAITING)
    yard.until(lambda: yard.read("began") == "one\n", "an agent runs")
    yard.write("todo.md", "- [ ] one\n- [ ] two\n")
    other = yard.start("run", "todo.md", "--agent", WAITING)
    yard.until(lambda: yard.read("began").split() == ["one", "two"], "the other one has queued it")
    assert yard.interlock("add", "a stranger").returncode == 0
    yard.write("go", "")
    said, _ = process.communicate(timeout=60)
    assert other.wait(60) == 0
    assert "#2 queued" in " ".join(said.split())
    assert "stranger" not in said
    assert sorted(yard.did()) == ["one", "two"]


def test_agents_of_other_work_are_not_waited_for(yard: Any) -> None:
    """They were taken up because nobody looked after them."""
    yard.write("other.md", "- [ ] other\n")
    first = yard.start("run", "other.md", "--agent", WAITING)
    yard.until(lambda: yard.read("began") == "other\n", "an agent runs")
    first.kill()
    first.wait()
    yard.write("todo.md", "- [ ] one\n")
    done = yard.interlock("run", "todo.md", "--agent", NOTE)
    assert done.returncode == 0, done.stderr
    assert "1 agent of other work still run; `interlock up` looks after them" in done.stderr
    assert yard.states() == ["running", "completed"]
    yard.write("go", "")
    assert yard.interlock("run", "other.md", "--agent", WAITING).returncode == 0
    assert sorted(yard.did()) == ["one", "other"]


def test_sighup_leaves_agents_to_the_next_start(yard: Any) -> None:
    four(yard)
    process = yard.start("run", "todo.md", "--agent", WAITING, "-j", "2")
    yard.until(lambda: len(yard.read("began").split()) == 2, "two agents run")
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 129
    assert yard.agents_alive()
    yard.write("go", "")
    assert yard.interlock("run", "todo.md", "--agent", WAITING).returncode == 0
    assert sorted(yard.did()) == ["four", "one", "three", "two"]
    assert [run["fence"] for run in yard.runs()] == [1] * 4


# killed


def wait_until_done(yard: Any, process: Any, tasks: int) -> None:
    yard.until(lambda: len(yard.did()) >= tasks or process.poll() is not None, "it went on")


@pytest.mark.parametrize("seed", range(4))
def test_nothing_runs_twice_however_often_it_is_killed(yard: Any, seed: int) -> None:
    chance = random.Random(seed)
    names = [f"task {n}" for n in range(16)]
    yard.write("todo.md", "".join(f"- [ ] {name}\n" for name in names))
    agent = "sleep 0.1; head -n 1 | sed 's/^# //' >> did; sleep 0.1"
    for _ in range(4):
        process = yard.start("run", "todo.md", "--agent", agent, "-j", "3")
        done = len(yard.did())
        # At any moment of its life: so many tasks later, and a little.
        wait_until_done(yard, process, min(done + chance.randrange(4), len(names)))
        time.sleep(chance.random() * 0.3)
        process.kill()
        process.wait()
    last = yard.interlock("run", "todo.md", "--agent", agent, "-j", "3")
    assert last.returncode == 0, last.stdout + last.stderr
    assert sorted(yard.did()) == sorted(names)
    assert yard.states() == ["completed"] * len(names)
    assert not yard.agents_alive()


# a daemon


def start_daemon(yard: Any) -> Any:
    before = yard.locks_held()
    daemon = yard.start("up")
    yard.until(lambda: yard.locks_held() > before or daemon.poll() is not None, "the daemon is up")
    assert daemon.poll() is None, daemon.stderr.read()
    return daemon


def test_a_daemon_does_the_work(yard: Any) -> None:
    four(yard)
    yard.interlock("init")
    daemon = start_daemon(yard)
    done = yard.interlock("run", "todo.md", "--agent", NOTE, "--concurrency", "1")
    assert done.returncode == 0, done.stderr
    assert "a daemon is up" in done.stderr
    assert "--concurrency: ignored" in done.stderr
    assert "completed" in done.stdout
    assert sorted(yard.did()) == ["four", "one", "three", "two"]
    daemon.terminate()
    daemon.wait(60)


def test_it_takes_over_from_a_daemon_that_dies(yard: Any) -> None:
    four(yard)
    yard.interlock("init")
    daemon = start_daemon(yard)
    process = yard.start("run", "todo.md", "--agent", WAITING)
    yard.until(lambda: len(yard.read("began").split()) == 4, "the daemon works")
    daemon.kill()
    daemon.wait()
    yard.until(lambda: "takes over" in process.stderr.readline(), "it takes over")
    yard.write("go", "")
    assert process.wait(60) == 0
    assert sorted(yard.did()) == ["four", "one", "three", "two"]


def test_ctrl_c_leaves_a_daemon_alone(yard: Any) -> None:
    four(yard)
    yard.interlock("init")
    daemon = start_daemon(yard)
    process = yard.start("run", "todo.md", "--agent", WAITING)
    yard.until(lambda: len(yard.read("began").split()) == 4, "the daemon works")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert daemon.poll() is None
    yard.write("go", "")
    yard.until(lambda: yard.states() == ["completed"] * 4, "the daemon goes on")
    daemon.terminate()
    daemon.wait(60)


def test_a_reader_of_errors_that_does_not_read_holds_up_nothing(yard: Any) -> None:
    """Remarks into a pipe that is full: agents are started and ended, signals are heard."""
    four(yard)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for size in (4096, 1):
        with suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * size)
    os.set_blocking(writing, True)
    command = [sys.executable, "-m", "interlock", "--verbose", "run", "todo.md", "--agent", WAITING, "-j", "2"]
    process = subprocess.Popen(command, cwd=yard.folder, stdout=subprocess.DEVNULL, stderr=writing, env=yard.env)
    try:
        yard.until(lambda: len(yard.read("began").split()) == 2, "two agents run")
        process.send_signal(signal.SIGTERM)
        yard.until(lambda: not yard.agents_alive(), "the agents are stopped")
        assert process.wait(30) == 143
    finally:
        process.kill()
        os.close(reading)
        os.close(writing)
    assert yard.states() == ["queued"] * 4
