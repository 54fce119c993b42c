"""What takes its time by itself: backoffs, patience with another program, time without a daemon. Scenes: ``scene(yard)``."""

from __future__ import annotations

import sqlite3
import time

from crash_yard import Yard, until


def a_missing_command_is_no_attempt_and_its_runs_go_on_when_it_is_there(yard: Yard) -> None:
    program = yard.base / "worker"
    yard.configure(agents={"worker": {"command": [str(program)]}})
    yard.up()
    runs = yard.submit("worker", "worker", "worker", "worker")
    until(lambda: yard.store.read_now(lambda tx: tx.healths()))
    for run in runs:
        now = yard.until_state(run, "queued")
        assert (now.failures, now.losts, now.defers) == (0, 0, 0)
    why = yard.run_command("why", f"#{runs[0].number}")
    assert f"{program} does not exist" in why.stdout
    health = yard.store.read_now(lambda tx: tx.healths())["worker"]
    assert health.tries == 1
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    for run in runs:
        assert yard.until_state(run, "completed", seconds=20).failures == 0
    assert yard.store.read_now(lambda tx: tx.healths()) == {}


def a_database_that_another_program_holds_pauses_the_daemon(yard: Yard) -> None:
    """Longer than the daemon's patience with it (10 s), so that its writes fail."""
    daemon = yard.up()
    (run,) = yard.submit("waits")
    yard.until_state(run, "running")
    holder = sqlite3.connect(yard.data / "interlock.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    yard.go()
    try:
        until(lambda: b"waits for the store" in daemon.log.read_bytes(), 25, what="the outage")
        assert daemon.alive
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    run = yard.until_state(run, "completed")
    assert yard.begun(run) == [1]
    (after,) = yard.submit("blink")
    yard.until_state(after, "completed")


def downtime_counts_for_no_timeout(yard: Yard) -> None:
    first = yard.up()
    (run,) = yard.submit("waits", timeout_ms=3000)
    yard.until_ready(run)
    yard.until_state(run, "running")
    first.kill()
    due = yard.get(run).timeout_at_ms
    assert due is not None
    until(lambda: time.time() * 1000 > due + 500, what="the time of the timeout")
    yard.up()
    until(lambda: "adopt" in yard.event_names(run))
    moved = yard.get(run).timeout_at_ms
    assert moved is not None
    assert moved > time.time() * 1000
    yard.go()
    yard.until_state(run, "completed")


SCENES = [
    a_missing_command_is_no_attempt_and_its_runs_go_on_when_it_is_there,
    a_database_that_another_program_holds_pauses_the_daemon,
    downtime_counts_for_no_timeout,
]
