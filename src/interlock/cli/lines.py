"""One line per event: what ``interlock up``, and ``interlock run`` away from a terminal, print."""

from __future__ import annotations

from interlock.cli.text import clock, plain, short, span
from interlock.domain.run import Event

TITLE_COLUMNS = 48
MESSAGE_COLUMNS = 200

_WORDS = {
    "submit": "queued",
    "dispatch": "offered",
    "redispatch": "offered again",
    "withdraw": "back in queue",
    "claim": "claimed",
    "adopt": "taken up again",
    "start": "started",
    "complete": "completed",
    "close": "closed",
    "retry": "will retry",
    "release": "released",
    "defer": "deferred",
    "block": "asks",
    "answer": "answered",
    "fail": "FAILED",
    "reject": "FAILED",
    "time_out": "TIMED OUT",
    "cancel": "cancelled",
    "stop": "stopping",
    "hold": "on hold",
    "unhold": "off hold",
    "priority": "priority",
    "note": "note",
}
_WORD_COLUMNS = max(len(word) for word in _WORDS.values())

_STYLES = {
    "complete": "green",
    "close": "green",
    "retry": "yellow",
    "release": "yellow",
    "withdraw": "yellow",
    "defer": "yellow",
    "block": "magenta",
    "stop": "yellow",
    "fail": "red",
    "reject": "red",
    "time_out": "red",
    "cancel": "dim",
    "submit": "dim",
}

# What is told by the line that follows at once (started), or by nothing that a person waits for.
_NOISE = frozenset({"dispatch", "claim", "renew"})
# Their message only repeats the word.
_SELF_EVIDENT = frozenset({"submit", "start", "complete"})


def event_word(event: Event) -> str:
    """What the event is called before people."""
    return _WORDS.get(event.event, plain(event.event))


def is_news(event: Event) -> bool:
    """Whether a person who watches wants a line for it."""
    return event.event not in _NOISE


def event_style(event: Event) -> str:
    """The rich style of the event's line; empty for none."""
    return style_of(event.event)


def style_of(event: str) -> str:
    """The rich style of a line about an event of that name."""
    return _STYLES.get(event, "")


def event_line(event: Event, run_title: str, *, took_ms: int | None = None) -> str:
    """One line without its newline: ``14:03:44  #12  started  fix the parser  (attempt 2)``. Fit for a terminal as it is, but
    not as rich markup: print it with ``markup=False`` or escape it. ``took_ms``: how long the attempt took, for an ending.
    """
    return line_of(event.event, event.at_ms, event.run, run_title, event.message, fence=event.fence, took_ms=took_ms)


def line_of(
    event: str,
    at_ms: int,
    number: int,
    run_title: str,
    message: str | None = None,
    *,
    fence: int | None = None,
    took_ms: int | None = None,
) -> str:
    """The same from the parts of an event."""
    word = _WORDS.get(event, plain(event))
    line = "  ".join([clock(at_ms), f"#{number:<4}", f"{word:<{_WORD_COLUMNS}}", short(run_title, TITLE_COLUMNS)])
    notes = []
    if fence is not None and ((event in ("start", "adopt") and fence > 1) or event == "retry"):
        notes.append(f"attempt {fence}")
    if took_ms is not None:
        notes.append(span(took_ms))
    if notes:
        line += f"  ({', '.join(notes)})"
    if message and event not in _SELF_EVIDENT:
        line += f": {short(message, MESSAGE_COLUMNS)}"
    return line
