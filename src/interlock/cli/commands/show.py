"""``interlock show``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from interlock.cli.lines import event_word
from interlock.cli.output import cell, json_text, print_json, print_table, say, table
from interlock.cli.runs import STATE_STYLES, indented, json_option, run_argument, shown_state, state_cell
from interlock.cli.session import Session, pass_session
from interlock.cli.text import count, moment, plain, span
from interlock.domain.run import Attempt, Event, Run

if TYPE_CHECKING:
    from interlock.cli.host import Opened
    from interlock.service.reads import Story

EVENTS_AT_START, EVENTS_AT_END = 10, 40
CONTENT_LINES = 12
RESULT_LINES = 40


@click.command()
@run_argument
@json_option
@pass_session
def show(session: Session, /, run: str, as_json: bool) -> None:
    """Everything about one run: facts, needs, limits, attempts, timeline, result.

    \b
    Examples:
      interlock show 42
      interlock show r8j3 --json
    """

    async def tell(il: Opened) -> None:
        story = await il.service.story(run)
        if as_json:
            print_json(story)
        else:
            _tell(story, il)

    session.run(tell)


def _tell(story: Story, il: Opened) -> None:
    run = story.run
    now = il.service.clock.now_ms()
    say(f"#{run.number}  {plain(run.task.title)}", "bold")
    state = shown_state(run)
    say(f"{state}{_since(run, now)}", STATE_STYLES.get(state, ""))
    if run.message and state != "completed":
        say(indented(run.message))
    facts = table("", "")
    facts.show_header = False
    for name, value in _facts(run):
        facts.add_row(cell(name, "dim"), cell(value))
    print_table(facts)
    _texts(run)
    if story.needs:
        _heading("Needs")
        needs = table("#", "STATE", "TITLE", "", right=("#",), flexible=("TITLE",))
        for need in story.needs:
            needs.add_row(
                cell(need.number),
                state_cell(str(need.state)),
                cell(need.title),
                cell("" if need.met else "waits for it"),
            )
        print_table(needs)
    if story.dependants:
        say(
            "\nWaiting for it: "
            + ", ".join(f"#{number}" for number in story.dependants[:20])
            + _more(story.dependants, 20)
        )
    if story.slots:
        say("\nCounts under: " + ", ".join(story.slots))
    if story.attempts:
        _attempts(story.attempts, now)
    _timeline(story.events, run.created_ms)
    say(f"\n{_next(story)}", "dim")


def _more(found: Sequence[Any], shown: int) -> str:
    return f" and {len(found) - shown} more" if len(found) > shown else ""


def _heading(words: str) -> None:
    say(f"\n{words}", "bold")


def _since(run: Run, now: int) -> str:
    if run.ended_ms is not None:
        reason = f" ({run.reason})" if run.reason else ""
        worked = f", after {span(run.ended_ms - run.created_ms)}" if run.first_claimed_ms is not None else ""
        return f"{reason} at {moment(run.ended_ms)}{worked}"
    if run.held_by_agent and run.claimed_ms is not None:
        return f" for {span(now - run.claimed_ms)}"
    return ", on hold" if run.held else ""


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    task = run.task
    yield "id", run.id
    yield "created", moment(run.created_ms)
    if run.not_before_ms is not None and not run.terminal:
        yield "not before", f"{moment(run.not_before_ms)}{f' ({run.not_before_why})' if run.not_before_why else ''}"
    if run.timeout_at_ms is not None:
        yield "times out", moment(run.timeout_at_ms)
    if run.agent or task.agent:
        yield "agent", run.agent or task.agent or ""
    if run.holder is not None:
        yield "held by", f"{run.holder}, fence {run.fence}"
    added = run.priority - run.base_priority
    yield "priority", f"{run.priority}{f' ({run.base_priority} and its route {added:+d})' if added else ''}"
    for name, value in (
        ("task id", task.id),
        ("batch", run.batch),
        ("project", task.project),
        ("tracker", task.tracker),
        ("role", task.role),
        ("type", task.type),
        ("tags", ", ".join(task.tags)),
        ("unique", task.unique),
        ("timeout", None if task.timeout_ms is None else span(task.timeout_ms)),
        ("retry of", None if run.retry_of is None else f"#{run.retry_of}"),
    ):
        if value:
            yield name, value
    spent = [
        f"{value} {what}"
        for what, value in (("failed", run.failures), ("lost", run.losts), ("deferred", run.defers))
        if value
    ]
    if spent:
        yield "so far", ", ".join(spent)


def _texts(run: Run) -> None:
    for name, text, most in (
        ("Content", run.task.content, CONTENT_LINES),
        ("Description", run.task.context.description, CONTENT_LINES),
        ("Question", run.question, RESULT_LINES),
        ("Answer", run.answer, RESULT_LINES),
        ("Result", _result_text(run.result), RESULT_LINES),
    ):
        if text and text.strip():
            _heading(name)
            lines = indented(text.strip()).splitlines()
            for line in lines[:most]:
                say(short_line(line))
            if len(lines) > most:
                say(f"  ... {count(len(lines) - most, 'more line')}: --json has all")


def short_line(line: str) -> str:
    """A line of somebody's text, cut where it would flood the screen."""
    return line if len(line) <= 500 else line[:500] + "…"


def _result_text(result: Any) -> str | None:
    if result is None:
        return None
    return result if isinstance(result, str) else json_text(result)


def _attempts(attempts: Sequence[Attempt], now: int) -> None:
    _heading("Attempts")
    made = table(
        "#",
        "AGENT",
        "STATE",
        "STARTED",
        "TOOK",
        "EXIT",
        "REASON",
        "MESSAGE",
        right=("#", "TOOK", "EXIT"),
        flexible=("MESSAGE",),
    )
    for attempt in attempts:
        ended = attempt.ended_ms
        made.add_row(
            cell(attempt.fence),
            cell(attempt.agent or attempt.holder, columns=24),
            cell(str(attempt.state)),
            cell(moment(attempt.started_ms or attempt.claimed_ms)),
            cell(span((now if ended is None else ended) - attempt.claimed_ms)),
            cell(attempt.exit_status),
            cell(attempt.reason),
            cell(attempt.message),
        )
    print_table(made)


def _timeline(events: Sequence[Event], since_ms: int) -> None:
    _heading("Timeline")
    made = table("WHEN", "WHAT", "BY", "WHY", right=("WHEN",), flexible=("WHY",))
    cut = len(events) - EVENTS_AT_START - EVENTS_AT_END
    shown = events if cut <= 0 else [*events[:EVENTS_AT_START], *events[-EVENTS_AT_END:]]
    for index, event in enumerate(shown):
        if cut > 0 and index == EVENTS_AT_START:
            made.add_row(cell(""), cell(f"... {cut} more"), cell(""), cell("--json has them all"))
        made.add_row(
            cell(f"+{span(max(0, event.at_ms - since_ms))}", "dim"),
            cell(event_word(event)),
            cell(event.by, columns=32),
            cell(event.message or event.reason or ""),
        )
    print_table(made)


def _next(story: Story) -> str:
    run = story.run
    tips = []
    if story.attempts and not all(attempt.remote for attempt in story.attempts):
        follow = "" if run.terminal else " -f"
        tips.append(f"`interlock logs {run.number}{follow}` has its output")
    if not run.terminal:
        tips.append(f"`interlock why {run.number}` says what it waits for")
    return ", ".join(tips) or f"`interlock show {run.number} --json` has all of it"
