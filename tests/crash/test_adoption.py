"""Agents outlive their dispatcher: whoever comes next takes them up in the same attempt, and records them once."""

from __future__ import annotations

import os
import shutil
import signal
from typing import Any

import pytest
from crash_yard import Yard, until

BOTH = pytest.mark.parametrize("contained", [True, False], ids=["cgroup", "plain"])


def test_a_killed_daemon_adopts_what_runs(yard: Yard) -> None:
    first = yard.up()
    (run,) = yard.submit("waits")
    yard.until_ready(run)
    yard.until_state(run, "running")
    pids = {seen.pid for seen in yard.processes(run)}
    first.kill()
    second = yard.up()
    until(lambda: "adopt" in yard.event_names(run))
    # A look at the process list in which a short-lived `sleep` of the agent may have changed.
    assert pids & {seen.pid for seen in yard.processes(run)}
    identity = yard.attempts(run)[0].process
    assert identity is not None
    assert identity.pid in pids
    yard.go()
    run = yard.until_state(run, "completed")
    assert yard.event_names(run) == ["submit", "dispatch", "claim", "start", "adopt", "complete"]
    assert yard.begun(run) == [1]
    assert second.alive


def test_what_ended_while_no_daemon_lived_is_recorded_once(yard: Yard) -> None:
    first = yard.up()
    good, bad = yard.submit("waits", "waits")
    yard.until_ready(good)
    yard.until_ready(bad)
    first.kill()
    victim = next(seen for seen in yard.processes(bad) if yard.journal_pid(bad) == seen.pid)
    os.kill(victim.pid, signal.SIGTERM)
    yard.go()
    until(lambda: not yard.processes())
    yard.up()
    good = yard.until_state(good, "completed")
    bad = yard.until_state(bad, "completed")
    assert yard.event_names(good).count("complete") == 1
    assert yard.begun(good) == [1]
    # The other one was ended by a signal: a failure, recorded as one, and tried again.
    assert [attempt.exit_status for attempt in yard.attempts(bad)] == [143, 0]
    assert bad.failures == 1


@BOTH
@pytest.mark.parametrize("point", ["before_launch", "launch.locked", "launch.contained"])
def test_killed_before_the_spawn_it_goes_on_at_no_cost(make_yard: Any, contained: bool, point: str) -> None:
    yard = make_yard(contained=contained)
    (run,) = yard.submit("blink")
    assert yard.daemon(crash_at=point).until_ended() == -signal.SIGKILL
    assert yard.get(run).state == "claimed"
    yard.up()
    run = yard.until_state(run, "completed")
    assert (run.failures, run.losts, run.fence) == (0, 0, 2)
    assert yard.begun(run) == [2]
    assert [attempt.state for attempt in yard.attempts(run)] == ["interrupted", "succeeded"]
    assert yard.faults() == []


@BOTH
@pytest.mark.parametrize("point", ["launch.spawned", "launch.released", "after_launch"])
def test_killed_after_the_spawn_it_is_adopted(make_yard: Any, contained: bool, point: str) -> None:
    yard = make_yard(contained=contained)
    (run,) = yard.submit("waits")
    assert yard.daemon(crash_at=point).until_ended() == -signal.SIGKILL
    assert yard.get(run).state == "claimed"
    yard.up()
    yard.until_state(run, "running")
    yard.until_ready(run)
    yard.go()
    run = yard.until_state(run, "completed")
    assert run.fence == 1
    assert yard.begun(run) == [1]
    assert yard.faults() == []


@pytest.mark.parametrize("point", ["before_finish", "after_finish"])
def test_killed_at_the_end_of_an_attempt_it_is_recorded_once(yard: Yard, point: str) -> None:
    (run,) = yard.submit("writes")
    assert yard.daemon(crash_at=point).until_ended() == -signal.SIGKILL
    yard.up()
    run = yard.until_state(run, "completed")
    assert run.result == {"n": 7}
    assert yard.begun(run) == [1]
    assert yard.event_names(run).count("complete") == 1


def test_a_crash_in_the_middle_of_recovery_is_recovered_from(yard: Yard) -> None:
    (run,) = yard.submit("blink")
    assert yard.daemon(crash_at="before_launch").until_ended() == -signal.SIGKILL
    for point in ("recover.locked", "recover.voided"):
        assert yard.daemon(crash_at=point).until_ended() == -signal.SIGKILL
    yard.up()
    run = yard.until_state(run, "completed")
    assert yard.begun(run) == [2]
    assert yard.event_names(run).count("adopt") == 3


def test_a_launcher_that_stood_still_never_starts_a_second_process(yard: Yard) -> None:
    """It stops between claim and launch; its lock is taken from it by force; another one gives the attempt up; it wakes."""
    (run,) = yard.submit("waits")
    stopped = yard.daemon(stop_at="before_launch")
    until(lambda: yard.get(run).state == "claimed")
    until(lambda: stat_of(stopped.pid) == "T")
    os.unlink(yard.data / "instances" / "0.lock")
    with yard.watcher(1) as watcher:
        yard.up(peer=True)
        yard.until_ready(run)
        assert yard.get(run).fence == 2
        stopped.signal(signal.SIGCONT)
        until(lambda: b"its end changes nothing" in stopped.log.read_bytes(), what="the sleeper's awakening")
        yard.go()
        run = yard.until_state(run, "completed")
        assert watcher.faults == []
    assert yard.begun(run) == [2]
    # That an attempt is void says nothing of the agent.
    assert yard.store.read_now(lambda tx: tx.healths()) == {}


def test_a_daemon_that_stood_still_goes_on(yard: Yard) -> None:
    daemon = yard.up()
    runs = yard.submit("blink", "nap", "nap")
    until(lambda: len(yard.journal()) >= 3)
    daemon.stand_still()
    more = yard.submit("blink", "blink")
    until(lambda: not yard.processes())
    daemon.signal(signal.SIGCONT)
    for run in [*runs, *more]:
        yard.until_state(run, "completed")
        assert yard.begun(run) == [1]


def test_a_peer_takes_over_when_the_other_is_killed_and_limits_hold(yard: Yard) -> None:
    yard.configure(concurrency={"global": 4, "perTag": {"gpu": 1}})
    with yard.watcher(4, gpu=1) as watcher:
        daemons = [yard.up(peer=True), yard.up(peer=True)]
        longer = yard.submit("waits", "waits")
        for run in longer:
            yard.until_ready(run)
        runs = yard.submit(*["blink"] * 20) + yard.submit(*["blink"] * 5, tags=["gpu"])
        until(lambda: len({words[0] for _, _, words in yard.journal()}) == 3)
        owners = {yard.get(run).owner for run in longer}
        victim = next(daemon for daemon in daemons if any(f":{daemon.pid}:" in (owner or "") for owner in owners))
        victim.kill()
        survivor = next(daemon for daemon in daemons if daemon is not victim)
        # Its work goes on all the while: a takeover that waited for a quiet moment would not come.
        until(
            lambda: all(f":{survivor.pid}:" in (yard.get(run).owner or "") for run in longer), 15, what="the takeover"
        )
        yard.go()
        for run in [*longer, *runs]:
            yard.until_state(run, "completed")
            assert len(yard.begun(run)) == 1
        assert watcher.faults == []
    assert watcher.most >= 3


def test_an_upgrade_is_a_detach_and_a_start(yard: Yard) -> None:
    first = yard.up()
    (run,) = yard.submit("waits")
    yard.until_ready(run)
    stopped = yard.run_command("stop", "--detach")
    assert stopped.returncode == 0, stopped.stderr
    assert first.until_ended() == 0
    assert yard.get(run).state == "running"
    assert yard.processes(run)
    yard.up()
    yard.go()
    run = yard.until_state(run, "completed")
    assert yard.event_names(run).count("adopt") == 1
    assert yard.begun(run) == [1]


def test_an_agent_outlives_its_keeper_and_is_tried_again_when_it_has_ended(yard: Yard) -> None:
    with yard.watcher(2) as watcher:
        yard.up()
        (run,) = yard.submit("waits")
        yard.until_ready(run)
        agent = yard.journal_pid(run)
        os.kill(parent_of(agent), signal.SIGKILL)
        (later,) = yard.submit("blink")
        yard.until_state(later, "completed")
        assert yard.get(run).state == "running"
        assert agent in {seen.pid for seen in yard.processes(run)}
        yard.go()
        run = yard.until_state(run, "completed")
        assert watcher.faults == []
    # Nobody was there to see how the first one ended.
    assert [attempt.state for attempt in yard.attempts(run)] == ["lost", "succeeded"]
    assert run.failures == 0


@BOTH
def test_an_agent_whose_folder_was_removed_is_adopted_all_the_same(make_yard: Any, contained: bool) -> None:
    yard: Yard = make_yard(contained=contained)
    with yard.watcher(2) as watcher:
        first = yard.up()
        (run,) = yard.submit("waits")
        yard.until_ready(run)
        yard.until_state(run, "running")
        first.kill()
        shutil.rmtree(yard.data / "attempts")
        yard.up()
        until(lambda: "adopt" in yard.event_names(run))
        (later,) = yard.submit("blink")
        yard.until_state(later, "completed")
        assert yard.get(run).state == "running"
        yard.go()
        yard.until_state(run, "completed")
        assert watcher.faults == []
    assert yard.begun(run) == [1]
    assert yard.faults() == []


@BOTH
def test_a_folder_that_is_removed_under_a_live_daemon_holds_nothing_up(make_yard: Any, contained: bool) -> None:
    yard: Yard = make_yard(contained=contained)
    yard.configure(concurrency={"global": 2})
    with yard.watcher(2) as watcher:
        daemon = yard.up()
        ends, stays = yard.submit("waits", "deaf")
        yard.until_ready(ends)
        yard.until_ready(stays)
        shutil.rmtree(yard.data / "attempts")
        yard.go()
        # How it ended is nowhere written, but the daemon's keeper told it.
        ends = yard.until_state(ends, "completed")
        assert yard.begun(ends) == [1]
        assert ends.failures == 0
        daemon.signal(signal.SIGINT)
        until(lambda: b"Nothing new starts" in daemon.log.read_bytes())
        daemon.signal(signal.SIGINT)
        assert daemon.until_ended() == 0
        assert yard.processes() == []
        assert yard.get(stays).state == "queued"
        assert watcher.faults == []


def test_a_third_signal_leaves_at_once_and_the_next_daemon_sees_to_it(yard: Yard) -> None:
    yard.configure(stopGrace="10m")
    daemon = yard.up()
    (run,) = yard.submit("deaf")
    yard.until_ready(run)
    for said in (b"Nothing new starts", b"Stopping 1 agent", b"Leaving at once"):
        if said.startswith(b"Leaving"):
            until(lambda: yard.get(run).stop is not None)
        daemon.signal(signal.SIGINT)
        until(lambda said=said: said in daemon.log.read_bytes())
    assert daemon.until_ended() == 0
    assert b"the next `interlock up` sees to it" in daemon.log.read_bytes()
    assert yard.processes(run)
    yard.configure(stopGrace="100ms")
    yard.up()
    yard.until_ready(run, times=2)
    assert yard.attempts(run)[0].state == "interrupted"
    yard.cancel(run)
    yard.until_state(run, "cancelled")


def stat_of(pid: int) -> str:
    """State letter of a process."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def parent_of(pid: int) -> int:
    """Parent of a process."""
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])
