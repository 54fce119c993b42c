from __future__ import annotations

import re
from typing import Any

from interlock.cli.lines import event_line, event_word, is_news
from interlock.domain.run import Event
from interlock.domain.states import Note, RunEvent


def event(name: str, **more: Any) -> Event:
    return Event(seq=1, run=12, event=name, from_state=None, to_state="queued", at_ms=0, by="system", **more)


def test_every_event_has_a_word() -> None:
    for name in [*RunEvent, *Note]:
        if name != "renew":
            assert event_word(event(str(name))), name
            assert "_" not in event_word(event(str(name)))


def test_a_line() -> None:
    line = event_line(event("start", fence=2), "fix\nthe [red]parser\x1b")
    assert re.fullmatch(r"\d\d:\d\d:\d\d  #12    started         fix the \[red\]parser\\x1b  \(attempt 2\)", line)


def test_first_attempts_are_not_counted() -> None:
    assert "attempt" not in event_line(event("start", fence=1), "x")


def test_endings_say_how_long_and_why() -> None:
    line = event_line(event("fail", fence=1, message="exit\n3"), "x", took_ms=1500)
    assert line.endswith("FAILED          x  (1.5s): exit 3")
    assert event_line(event("complete", message="done"), "x").endswith("completed       x")


def test_unknown_events_are_shown_as_they_are() -> None:
    assert event_word(event("later\x1b")) == "later\\x1b"


def test_claims_are_no_news() -> None:
    assert not is_news(event("claim"))
    assert is_news(event("start"))
    assert is_news(event("stop"))
