"""The wall clock jumps by an hour, both ways, under real daemons and real agents: nothing is early or late by that hour.

The jump is made to the wall clock of Interlock's own processes (see crash_daemon.py): to set that of the machine would move
it for everybody. What agents write down is by the clock of the boot, which nobody can set. A daemon looks at the clock every
five seconds; what is pending here lasts longer, so that a deadline that moved along with the clock would show.

These are scenes (see crash_scenes.py): ``scene(yard, jump_ms)``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from crash_yard import Yard, until

from interlock.domain.run import Run

HOUR_MS = 3600 * 1000
JUMPS = {"forward": HOUR_MS, "back": -HOUR_MS}
SECONDS = 8.0
"""How long everything lasts that must not end early; longer than it takes to notice the jump."""
MS = int(SECONDS * 1000)
LATE_SECONDS = 60.0


def uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def said(yard: Yard, run: Run, word: str) -> list[float]:
    """When the run's agent said so, in seconds since boot."""
    return [float(words[-1]) for name, _, words in yard.journal() if name == run.id and words[0] == word]


def jump(yard: Yard, jump_ms: int) -> None:
    """Set the clock, and wait until the daemon has noticed."""

    def epoch() -> str | None:
        return yard.store.read_now(lambda tx: tx.meta("epoch"))

    before = epoch()
    yard.set_clock(jump_ms)
    until(lambda: epoch() != before, what="the daemon's look at the clock")


def lasted(since: float, ends: Mapping[str, Callable[[], bool]]) -> dict[str, float]:
    """How many seconds after ``since`` each was first seen to be true."""
    found: dict[str, float] = {}

    def look() -> bool:
        for name, has_ended in ends.items():
            if name not in found and has_ended():
                found[name] = uptime() - since
        return len(found) == len(ends)

    until(look, LATE_SECONDS, what=f"not all of {list(ends)}")
    return found


def tell_puller(yard: Yard, name: str, seconds: float) -> tuple[Any, Any]:
    return yard.client("crash_puller.py", name, "1", str(seconds), str(MS))


def timeouts_and_deadlines(yard: Yard, jump_ms: int) -> None:
    yard.configure(deadline="30m")
    yard.up()
    began = uptime()
    (works,) = yard.submit("waits", timeout_ms=20 * 60 * 1000)
    (overdue,) = yard.submit("long", timeout_ms=MS)
    yard.until_ready(works)
    yard.until_state(overdue, "running")
    jump(yard, jump_ms)
    times = lasted(began, {"timeout": lambda: yard.get(overdue).state == "timed_out"})
    assert times["timeout"] >= SECONDS, times
    assert yard.get(works).state == "running"
    yard.go()
    assert yard.until_state(works, "completed").fence == 1
    assert yard.begun(works) == [1]


def an_agent_that_does_nothing(yard: Yard, jump_ms: int) -> None:
    yard.up()
    began = uptime()
    (quiet,) = yard.submit("long", stall_ms=MS)
    yard.until_state(quiet, "running")
    jump(yard, jump_ms)
    times = lasted(began, {"stall": lambda: "stop" in yard.event_names(quiet)})
    assert times["stall"] >= SECONDS, times


def backoffs_and_times_that_were_asked_for(yard: Yard, jump_ms: int) -> None:
    retry = {"maxRetries": 1, "baseDelayMs": 2 * MS, "maxDelayMs": 2 * MS}
    yard.configure(retry=retry, budgets={"defaultDefer": f"{MS}ms"})
    yard.up()
    failed, deferred = yard.submit("flaky", "later")
    asked = yard.submit_one("at a time of its own", agent="blink", not_before_ms=yard.now_ms() + HOUR_MS // 2)
    for run in (failed, deferred):
        yard.until_state(run, "queued")
        until(lambda run=run: said(yard, run, "end"))
    jump(yard, jump_ms)
    for run in (failed, deferred):
        yard.until_state(run, "completed", seconds=LATE_SECONDS)
        # A backoff is a length of time, half of it at least. To a hundredth, as the kernel's clock ticks.
        assert said(yard, run, "begin")[1] - said(yard, run, "end")[0] >= SECONDS - 0.02
    # A time that somebody asked for is a time, not a length of it.
    if jump_ms > 0:
        yard.until_state(asked, "completed")
    else:
        assert yard.get(asked).state == "queued"


def a_jump_while_no_daemon_lives(yard: Yard, jump_ms: int) -> None:
    first = yard.up()
    (works,) = yard.submit("waits", timeout_ms=20 * 60 * 1000)
    yard.until_ready(works)
    yard.until_state(works, "running")
    first.kill()
    yard.set_clock(jump_ms)
    yard.up()
    until(lambda: "adopt" in yard.event_names(works))
    left = (yard.get(works).timeout_at_ms or 0) - yard.now_ms()
    assert 19 * 60 * 1000 < left <= 20 * 60 * 1000 + 1000
    yard.go()
    assert yard.until_state(works, "completed").fence == 1


def an_agent_from_outside_keeps_its_claim(yard: Yard, jump_ms: int) -> None:
    """It renews by the clock of its own process, which was started before the jump; so does one that comes after it."""
    yard.configure(mode="pull", leases={"remote": f"{MS}ms", "grace": "1s"}, claimTimeout="30m")
    yard.up()
    early = yard.submit_one("anyone")
    process, words = tell_puller(yard, "early", 2 * SECONDS)
    until(lambda: b"claimed" in words.read_bytes(), what="its claim")
    yard.set_clock(jump_ms)
    late = yard.submit_one("anyone")
    _, after = tell_puller(yard, "late", 1.5 * SECONDS)
    for run in (early, late):
        ended = yard.until_state(run, "completed", seconds=LATE_SECONDS)
        assert ended.fence == 1, words.read_text() + after.read_text()
    assert process.poll() is None


def a_lease_that_is_not_renewed_any_more_lapses(yard: Yard, jump_ms: int) -> None:
    yard.configure(mode="pull", leases={"remote": f"{MS}ms", "grace": "100ms"}, claimTimeout="30m")
    yard.up()
    run = yard.submit_one("anyone")
    process, words = tell_puller(yard, "renews", 600)
    until(lambda: b"claimed" in words.read_bytes(), what="its claim")
    jump(yard, jump_ms)
    before = yard.get(run).lease_expires_ms
    until(lambda: yard.get(run).lease_expires_ms != before, what="a heartbeat")
    process.kill()
    lasted(uptime(), {"lease": lambda: "release" in yard.event_names(run)})


SCENES = [
    timeouts_and_deadlines,
    an_agent_that_does_nothing,
    backoffs_and_times_that_were_asked_for,
    a_jump_while_no_daemon_lives,
    an_agent_from_outside_keeps_its_claim,
    a_lease_that_is_not_renewed_any_more_lapses,
]
