"""Two daemons on one data folder: refused, unless they are asked to be peers; then limits hold across both."""

from __future__ import annotations

import signal

from crash_books import journal_faults
from crash_yard import Yard, until


def test_a_second_one_is_refused_in_words(yard: Yard) -> None:
    first = yard.up()
    (run,) = yard.submit("waits")
    yard.until_ready(run)
    for _ in range(2):
        second = yard.run_command("up")
        assert second.returncode == 4
        assert "a dispatcher is up for this data folder already" in second.stderr
        assert f":{first.pid}:" in second.stderr
        assert "--peer starts one beside it" in second.stderr
        assert "Traceback" not in second.stderr
    # Neither has touched anything.
    assert first.alive
    assert yard.event_names(run) == ["submit", "dispatch", "claim", "start"]
    yard.go()
    yard.until_state(run, "completed")


def test_one_that_was_killed_is_not_in_the_way(yard: Yard) -> None:
    yard.up().kill()
    yard.up()
    (run,) = yard.submit("blink")
    yard.until_state(run, "completed")


def test_of_two_that_start_at_the_same_moment_one_is_refused(yard: Yard) -> None:
    both = [yard.daemon(), yard.daemon()]
    for daemon in both:
        daemon.until_up()
    until(lambda: sum(daemon.alive for daemon in both) == 1)
    (refused,) = [daemon for daemon in both if not daemon.alive]
    assert refused.until_ended() == 4
    assert b"a dispatcher is up for this data folder already" in refused.log.read_bytes()


def test_peers_share_the_limits_and_every_run_runs_once(yard: Yard) -> None:
    yard.configure(concurrency={"global": 4, "perTag": {"gpu": 1}, "perAgent": {"nap": 2}})
    with yard.watcher(4, gpu=1) as witness:
        first = yard.up(peer=True)
        held = yard.submit("waits", "waits")
        for run in held:
            yard.until_ready(run)
        # It holds two of the four slots, and takes no part in what comes.
        first.stand_still()
        others = [yard.up(peer=True), yard.up(peer=True)]
        runs = yard.submit(*["blink"] * 12) + yard.submit(*["blink"] * 6, tags=["gpu"]) + yard.submit(*["nap"] * 8)
        for run in runs:
            yard.until_state(run, "completed")
        first.signal(signal.SIGCONT)
        yard.go()
        for run in held:
            yard.until_state(run, "completed")
    assert witness.faults == []
    assert witness.most >= 3
    assert yard.faults() == []
    assert list(journal_faults(yard.journal())) == []
    assert all(yard.begun(run) == [1] for run in [*runs, *held])
    assert all(daemon.alive for daemon in (first, *others))


def test_peers_that_are_stopped_one_after_the_other_leave_nothing(yard: Yard) -> None:
    daemons = [yard.up(peer=True), yard.up(peer=True)]
    runs = yard.submit(*["nap"] * 4)
    until(lambda: len(yard.journal()) > 0)
    assert yard.run_command("stop", "--drain").returncode == 0
    for daemon in daemons:
        assert daemon.until_ended() == 0
    assert yard.processes() == []
    assert yard.store.read_now(lambda tx: tx.instances()) == []
    states = {yard.get(run).state for run in runs}
    assert states <= {"completed", "queued"}
