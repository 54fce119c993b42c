"""Stopping real trees: the intent first, then the whole tree, then the move."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest
from crash_yard import Yard, until

BOTH = pytest.mark.parametrize("contained", [True, False], ids=["cgroup", "plain"])


def test_a_cancel_that_was_recorded_while_no_daemon_lived_is_carried_out(yard: Yard) -> None:
    first = yard.up()
    (run,) = yard.submit("long")
    until(lambda: yard.begun(run))
    first.kill()
    cancelled = yard.run_command("cancel", f"#{run.number}")
    assert cancelled.returncode == 0, cancelled.stderr
    assert yard.get(run).stop is not None
    assert yard.processes(run)
    yard.up()
    run = yard.until_state(run, "cancelled")
    assert yard.processes(run) == []
    assert (run.reason, run.failures) == ("operator", 0)


def test_a_daemon_that_dies_while_it_stops_an_agent_leaves_the_intent(yard: Yard) -> None:
    yard.configure(stopGrace="1m")
    first = yard.up()
    (run,) = yard.submit("deaf")
    yard.until_ready(run)
    yard.cancel(run)
    until(lambda: "stop" in yard.event_names(run))
    first.kill()
    yard.configure(stopGrace="100ms")
    yard.up()
    run = yard.until_state(run, "cancelled")
    assert yard.processes() == []


@BOTH
def test_what_the_agent_left_behind_is_gone_before_the_run_is_completed(make_yard: Any, contained: bool) -> None:
    yard: Yard = make_yard(contained=contained)
    yard.up()
    runs = yard.submit("escapes", "forks", "stubborn")
    for run in runs:
        # Looked at in this order: first that it is completed, then that nobody is left.
        yard.until_state(run, "completed")
        assert yard.processes(run) == []
    assert yard.faults() == []


@BOTH
def test_an_agent_that_ignores_term_is_killed_after_its_grace(make_yard: Any, contained: bool) -> None:
    yard: Yard = make_yard(contained=contained)
    yard.configure(stopGrace="500ms")
    yard.up()
    (run,) = yard.submit("deaf")
    yard.until_ready(run)
    began = time.monotonic()
    yard.cancel(run)
    yard.until_state(run, "cancelled")
    assert yard.processes(run) == []
    assert time.monotonic() - began >= 0.5
    assert yard.attempts(run)[0].exit_status in (None, 137)


def test_a_timeout_ends_the_run(yard: Yard) -> None:
    yard.up()
    (run,) = yard.submit("long", timeout_ms=500)
    run = yard.until_state(run, "timed_out")
    assert (run.reason, run.message) == ("timeout", "it ran longer than its timeout")
    assert yard.processes() == []
    assert [attempt.state for attempt in yard.attempts(run)] == ["timed_out"]


def test_a_timeout_can_be_tried_again(yard: Yard) -> None:
    yard.configure(onTimeout="retry")
    yard.up()
    (run,) = yard.submit("long", timeout_ms=400)
    run = yard.until_state(run, "failed")
    assert run.reason == "retries_exhausted"
    assert [attempt.state for attempt in yard.attempts(run)] == ["timed_out", "timed_out"]


def test_a_stalled_agent_is_stopped_and_tried_again(yard: Yard) -> None:
    yard.up()
    quiet, _ = yard.submit("long", "blink", stall_ms=700)
    quiet = yard.until_state(quiet, "failed")
    assert [attempt.state for attempt in yard.attempts(quiet)] == ["stalled", "stalled"]
    assert "neither output nor CPU time" in (quiet.message or "")


def test_an_agent_that_works_or_talks_is_not_stalled(yard: Yard) -> None:
    talks = "i=0; while [ $i -lt 20 ]; do echo $i; sleep 0.1; i=$((i+1)); done"
    counts = "end=$(($(date +%s) + 3)); while [ $(date +%s) -lt $end ]; do :; done"
    yard.configure(agents={"talks": {"command": ["sh", "-c", talks]}, "counts": {"command": ["sh", "-c", counts]}})
    yard.up()
    for run in yard.submit("talks", "counts", stall_ms=1500):
        ended = yard.until_state(run, "completed", "failed")
        assert (ended.state, ended.fence) == ("completed", 1)


def test_one_signal_drains_and_a_second_one_kills(yard: Yard) -> None:
    daemon = yard.up()
    (run,) = yard.submit("deaf")
    yard.until_ready(run)
    daemon.signal(signal.SIGTERM)
    until(lambda: b"Nothing new starts" in daemon.log.read_bytes())
    late = yard.submit("blink")[0]
    assert daemon.alive
    assert yard.processes(run)
    daemon.signal(signal.SIGINT)
    assert daemon.until_ended() == 0
    assert yard.processes() == []
    run = yard.get(run)
    assert (run.state, run.failures, run.losts) == ("queued", 0, 0)
    assert [attempt.state for attempt in yard.attempts(run)] == ["interrupted"]
    assert yard.get(late).state == "queued"
    yard.up()
    yard.until_state(late, "completed")
    yard.cancel(run)
    yard.until_state(run, "cancelled")


def test_drain_waits_for_the_agents(yard: Yard) -> None:
    daemon = yard.up()
    (run,) = yard.submit("waits")
    yard.until_ready(run)
    stopping = threading.Thread(target=yard.run_command, args=("stop", "--drain"))
    stopping.start()
    until(lambda: any(one.state == "draining" for one in yard.store.read_now(lambda tx: tx.instances())))
    (late,) = yard.submit("blink")
    assert daemon.alive
    yard.go()
    assert daemon.until_ended() == 0
    stopping.join()
    assert yard.get(run).state == "completed"
    assert yard.get(late).state == "queued"


def test_kill_stops_and_requeues_and_the_next_daemon_goes_on(yard: Yard) -> None:
    daemon = yard.up()
    runs = yard.submit("waits", "deaf", "blink")
    for run in runs[:2]:
        yard.until_ready(run)
    yard.until_state(runs[2], "completed")
    assert yard.run_command("stop", "--kill").returncode == 0
    assert daemon.until_ended() == 0
    assert yard.processes() == []
    for run in runs[:2]:
        now = yard.get(run)
        assert (now.state, now.failures, now.losts) == ("queued", 0, 0)
    yard.go()
    yard.up()
    yard.until_state(runs[0], "completed")
    assert yard.begun(runs[0]) == [1, 2]
    yard.cancel(runs[1])
    yard.until_state(runs[1], "cancelled")


def test_ten_megabytes_on_one_line(yard: Yard) -> None:
    yard.up()
    (run,) = yard.submit("shouts")
    run = yard.until_state(run, "completed")
    (attempt,) = yard.attempts(run)
    assert (yard.data / (attempt.folder or "") / "output.log").stat().st_size == 10_000_000
    assert run.message == "x" * 200


@pytest.mark.parametrize("place", ["result.json", "output.log"])
def test_an_agent_that_puts_pipes_in_its_folder_keeps_nobody_waiting(yard: Yard, place: str) -> None:
    script = f'f=$INTERLOCK_ATTEMPT_DIR/{place}; rm -f "$f"; mkfifo "$f"; exit 0'
    yard.configure(agents={"plumber": {"command": ["sh", "-c", script]}})
    yard.up()
    odd, even = yard.submit("plumber", "blink")
    yard.until_state(even, "completed")
    odd = yard.until_state(odd, "completed", "failed")
    assert odd.state == ("completed" if place == "output.log" else "failed")


def test_an_agent_that_puts_a_pipe_in_place_of_its_exit_status_is_heard_all_the_same(yard: Yard) -> None:
    script = 'f=$INTERLOCK_ATTEMPT_DIR/exit; rm -f "$f"; mkfifo "$f"; exit 0'
    yard.configure(agents={"plumber": {"command": ["sh", "-c", script]}})
    yard.up()
    odd, even = yard.submit("plumber", "blink")
    yard.until_state(even, "completed")
    yard.until_state(odd, "completed")


def test_too_little_memory_holds_dispatching_back(yard: Yard) -> None:
    yard.configure(minFreeMemory="1000000GiB")
    daemon = yard.up()
    (run,) = yard.submit("blink")
    until(lambda: b"under the floor" in daemon.log.read_bytes())
    assert yard.get(run).state == "queued"
    assert "memory" in yard.run_command("why", f"#{run.number}").stdout
    daemon.kill()
    yard.configure(minFreeMemory="1MiB")
    yard.up()
    yard.until_state(run, "completed")
