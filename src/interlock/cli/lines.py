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
    return _STYLES.get(event.event, "")


def event_line(event: Event, run_title: str, *, took_ms: int | None = None) -> str:
    """One line without its newline: ``14:03:44  #12  started  fix the parser  (attempt 2)``. Fit for a terminal as it is, but
    not as rich markup: print it with ``markup=False`` or escape it. ``took_ms``: how long the attempt took, for an ending.
    """
    parts = [
        clock(event.at_ms),
        f"#{event.run:<4}",
        f"{event_word(event):<{_WORD_COLUMNS}}",
        short(run_title, TITLE_COLUMNS),
    ]
    line = "  ".join(parts)
    notes = []
    if event.fence is not None and ((event.event in ("start", "adopt") and event.fence > 1) or event.event == "retry"):
        notes.append(f"attempt {event.fence}")
    if took_ms is not None:
        notes.append(span(took_ms))
    if notes:
        line += f"  ({', '.join(notes)})"
    if event.message and event.event not in _SELF_EVIDENT:
        line += f": {short(event.message, MESSAGE_COLUMNS)}"
    return line
