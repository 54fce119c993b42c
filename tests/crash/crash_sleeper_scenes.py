"""Whoever stands still (SIGSTOP) for longer than its lease and goes on afterwards doubles nothing: the late writer is fenced.

These are scenes (see crash_scenes.py): ``scene(yard)``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from crash_yard import Daemon, Yard, until

from interlock.domain.run import Run

LEASE = {"local": "1s", "remote": "1500ms", "grace": "200ms"}
LOCAL_MS = 1200
REMOTE_MS = 1700


def until_lapsed(yard: Yard, run: Run, ms: int) -> None:
    """Until the run's lease and its grace are over, counted from its last renewal."""
    lease = yard.get(run).lease_expires_ms
    assert lease is not None
    until(lambda: yard.now_ms() > lease + ms, what="the end of the lease")


def owned_by(yard: Yard, run: Run, daemon: Daemon) -> bool:
    return f":{daemon.pid}:" in (yard.get(run).owner or "")


def a_daemon_that_sleeps_past_its_lease_keeps_its_runs(yard: Yard) -> None:
    """Its lock is held: it lives, and what it looks after is nobody else's, lapsed lease or not."""
    yard.configure(leases=LEASE, concurrency={"global": 4})
    with yard.watcher(4) as witness:
        sleeper = yard.up(peer=True)
        held, ends, deferred = yard.submit("waits", "nap", "later")
        for run in (held, ends, deferred):
            until(lambda run=run: yard.begun(run))
        yard.until_state(held, "running")
        sleeper.stand_still()
        other = yard.up(peer=True)
        until_lapsed(yard, held, LOCAL_MS)
        # The other one works, and has looked for dispatchers that are gone: it adopts what one has left that was killed.
        third = yard.up(peer=True)
        (left,) = yard.submit("waits")
        yard.until_state(left, "running")
        (third if owned_by(yard, left, third) else other).kill()
        survivor = other if other.alive else third
        until(lambda: owned_by(yard, left, survivor), what="a takeover from one that was killed")
        assert owned_by(yard, held, sleeper)
        assert "adopt" not in yard.event_names(held)
        sleeper.signal(signal.SIGCONT)
        yard.go()
        for run in (held, ends, deferred, left):
            yard.until_state(run, "completed")
    assert witness.faults == []
    assert [yard.begun(run) for run in (held, ends, left)] == [[1], [1], [1]]
    assert yard.begun(deferred) == [1, 2]
    for run in (held, ends):
        assert not {"adopt", "release"} & set(yard.event_names(run))


def a_sleeper_whose_run_was_taken_over_records_its_end_once(yard: Yard) -> None:
    """Its lock is taken from it by force. Both see the agent end; the claim is the same, and so is what is recorded."""
    yard.configure(leases=LEASE)
    with yard.watcher(1) as witness:
        sleeper = yard.up(peer=True)
        (run,) = yard.submit("waits")
        yard.until_ready(run)
        yard.until_state(run, "running")
        sleeper.stand_still()
        os.unlink(yard.data / "instances" / "0.lock")
        other = yard.up(peer=True)
        until(lambda: owned_by(yard, run, other))
        sleeper.signal(signal.SIGCONT)
        yard.go()
        yard.until_state(run, "completed")
        (after,) = yard.submit("blink")
        yard.until_state(after, "completed")
    assert witness.faults == []
    assert yard.event_names(run).count("complete") == 1
    assert yard.begun(run) == [1]


def a_sleeper_whose_run_was_given_to_another_attempt_is_fenced(yard: Yard) -> None:
    """While it sleeps its run is taken over, interrupted and started anew; it wakes to an agent that is gone."""
    yard.configure(leases=LEASE)
    with yard.watcher(1) as witness:
        sleeper = yard.up(peer=True)
        (run,) = yard.submit("waits")
        yard.until_ready(run)
        yard.until_state(run, "running")
        sleeper.stand_still()
        os.unlink(yard.data / "instances" / "0.lock")
        other = yard.up(peer=True)
        until(lambda: owned_by(yard, run, other))
        yard.interrupt(run)
        yard.until_ready(run, times=2)
        yard.until_state(run, "running")
        assert yard.get(run).fence == 2
        sleeper.signal(signal.SIGCONT)
        until(lambda: b"its end changes nothing" in sleeper.log.read_bytes(), what="the late writer's refusal")
        # What it came to late has changed nothing: the second attempt goes on.
        assert yard.get(run).state == "running"
        assert owned_by(yard, run, other)
        yard.go()
        yard.until_state(run, "completed")
    assert witness.faults == []
    assert yard.begun(run) == [1, 2]
    assert [str(attempt.state) for attempt in yard.attempts(run)] == ["interrupted", "succeeded"]


def pulled(yard: Yard) -> tuple[Run, Callable[..., tuple[Any, Any]]]:
    yard.configure(mode="pull", leases=LEASE)
    yard.up()

    def start(name: str, seconds: float, *more: str) -> tuple[Any, Any]:
        return yard.client("crash_puller.py", name, "1", str(seconds), "1500", *more)

    return yard.submit_one("anyone"), start


def an_agent_from_outside_that_sleeps_past_its_lease_is_fenced(yard: Yard) -> None:
    run, start = pulled(yard)
    late, words = start("late", 0.1, "stop")
    until(lambda: b"claimed" in words.read_bytes(), what="its claim")
    yard.until_state(run, "running")
    until_lapsed(yard, run, REMOTE_MS)
    _, others = start("other", 1.0)
    until(lambda: f"claimed {run.id} 2".encode() in others.read_bytes(), what="the next claim")
    late.send_signal(signal.SIGCONT)
    until(lambda: b"refused" in words.read_bytes(), what="the late writer's refusal")
    assert f"refused {run.id} 1 stale_claim" in words.read_text()
    done = yard.until_state(run, "completed")
    assert done.result == {"by": "other", "fence": 2}
    assert [str(attempt.state) for attempt in yard.attempts(run)] == ["lapsed", "succeeded"]
    assert yard.event_names(run).count("complete") == 1


def one_that_wakes_before_anybody_else_has_come_is_fenced_as_well(yard: Yard) -> None:
    """Its run is on offer again: what it brings is not taken, and it may ask for the offer like anybody else."""
    run, start = pulled(yard)
    late, words = start("late", 0.1, "stop")
    until(lambda: b"claimed" in words.read_bytes(), what="its claim")
    yard.until_state(run, "running")
    until(lambda: "release" in yard.event_names(run), what="the lapse")
    late.send_signal(signal.SIGCONT)
    done = yard.until_state(run, "completed")
    assert f"refused {run.id} 1 stale_claim" in words.read_text()
    assert (done.fence, done.result) == (2, {"by": "late", "fence": 2})


def a_lease_does_not_lapse_while_the_daemon_sleeps(yard: Yard) -> None:
    """A daemon that stood still gives everybody the time back, before it judges."""
    run, start = pulled(yard)
    daemon = yard.daemons[-1]
    agent, words = start("patient", 600)
    until(lambda: b"claimed" in words.read_bytes(), what="its claim")
    yard.until_state(run, "running")
    # Agent and daemon sleep for the same time, as in a suspend.
    agent.send_signal(signal.SIGSTOP)
    daemon.stand_still()
    asleep = yard.now_ms()
    until(lambda: yard.now_ms() > asleep + 12_500, what="a long sleep")
    agent.send_signal(signal.SIGCONT)
    daemon.signal(signal.SIGCONT)
    lease = yard.get(run).lease_expires_ms
    until(lambda: yard.get(run).lease_expires_ms != lease, what="a heartbeat")
    assert yard.get(run).fence == 1
    assert "release" not in yard.event_names(run)


SCENES = [
    a_daemon_that_sleeps_past_its_lease_keeps_its_runs,
    a_sleeper_whose_run_was_taken_over_records_its_end_once,
    a_sleeper_whose_run_was_given_to_another_attempt_is_fenced,
    an_agent_from_outside_that_sleeps_past_its_lease_is_fenced,
    one_that_wakes_before_anybody_else_has_come_is_fenced_as_well,
    a_lease_does_not_lapse_while_the_daemon_sleeps,
]
