"""Tells a story in plain words."""

from __future__ import annotations

from interlock.testing.simulation.story import Story
from interlock.testing.simulation.words import moment, of_entry

LINES = 40
"""So many sentences of either half are told: what happened from outside, and what Interlock did before a rule was broken."""


def tell(story: Story) -> str:
    """What was played and what came of it, for a person to read. A failing story is best shrunk before."""
    scenario = story.scenario
    head = (
        f"seed {scenario.seed}: {scenario.jobs} task(s), {scenario.dispatchers} dispatcher(s), mode {scenario.settings.mode}, "
        f"at most {scenario.settings.limits.total} at once; {sum(story.faults.values())} fault(s), "
        f"{sum(story.deeds.values())} deed(s), {sum(story.events.values())} event(s), {story.checks} check(s)"
    )
    if story.failure is None:
        return f"{head}: every rule held."
    failure = story.failure
    sentences = [f"{moment(entry.at_ms)}  {line}" for entry in scenario.entries for line in of_entry(entry)]
    whom = "" if failure.run is None else f"run #{failure.run}: "
    return "\n".join(
        [
            head,
            "",
            f"Broken: {failure.rule}. At {moment(failure.at_ms)}, {whom}{failure.what}.",
            "",
            "What happens from outside:",
            *_first(sentences),
            "",
            "What happened before:",
            *failure.log[-LINES:],
        ]
    )


def _first(sentences: list[str]) -> list[str]:
    if len(sentences) <= LINES:
        return sentences
    return [*sentences[:LINES], f"... and {len(sentences) - LINES} more"]
