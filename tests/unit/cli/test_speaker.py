"""The speaker: bounded, and never in anybody's way."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from interlock.cli.speaker import Said, Speaker


def test_what_is_said_is_printed_in_order() -> None:
    printed: list[str] = []
    speaker = Speaker(lambda said: printed.extend(each.text for each in said))
    for number in range(1000):
        speaker.say(str(number))
    speaker.close()
    assert printed == [str(number) for number in range(1000)]


def test_a_reader_that_does_not_read_holds_up_nobody() -> None:
    stuck = threading.Event()
    printed: list[str] = []

    def write(said: Sequence[Said]) -> None:
        stuck.wait()
        printed.extend(each.text for each in said)

    speaker = Speaker(write, kept=10)
    for number in range(1000):
        speaker.say(str(number))
    assert not speaker.flush(0.01)
    stuck.set()
    assert speaker.flush(5)
    assert printed[0] == "0"
    assert any("left out: the reader is too slow" in line for line in printed)
    speaker.close()


def test_nothing_was_said() -> None:
    speaker = Speaker(lambda _: None)
    assert speaker.flush(0)
    speaker.close()


def test_a_queue_that_stays_full_is_not_waited_for() -> None:
    stuck, begun = threading.Event(), threading.Event()

    def write(_: Sequence[Said]) -> None:
        begun.set()
        stuck.wait()

    speaker = Speaker(write, kept=1)
    speaker.say("one")
    begun.wait()
    speaker.say("two")
    assert not speaker.flush(0.01)
    speaker.close(0.01)
    stuck.set()
    assert speaker.flush(5)
    speaker.close()
