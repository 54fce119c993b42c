"""``python -m interlock.testing.simulation``: play one seed, or a scenario that was kept, and tell what came of it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from interlock.testing.simulation import (
    Faults,
    Scenario,
    Story,
    decode,
    draw,
    draw_settings,
    encode,
    play,
    shrink,
    tell,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when every rule held, 1 when one was broken, 2 for a usage error."""
    parser = argparse.ArgumentParser(prog="python -m interlock.testing.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="what to draw settings and scenario from")
    parser.add_argument("--runs", type=int, default=300, help="about how many tasks arrive")
    parser.add_argument("--hours", type=float, default=4.0, help="over how much simulated time")
    parser.add_argument("--often", type=float, default=1.0, help="how often things go wrong, beside the usual")
    parser.add_argument("--dispatchers", type=int, default=2, help="how many share the data folder")
    parser.add_argument("--fair", action="store_true", help="nothing goes wrong")
    parser.add_argument("--scenario", type=Path, help="play this file instead of drawing one")
    parser.add_argument("--log", type=Path, help="write the event log here")
    parser.add_argument("--keep", type=Path, help="write what was played here, shrunk if a rule was broken")
    parser.add_argument("--shrink-seconds", type=float, default=120.0, help="how long to look for a smaller story")
    options = parser.parse_args(arguments)
    try:
        scenario = _scenario(options)
    except (OSError, msgspec.DecodeError) as error:
        parser.error(f"{options.scenario}: {error}")
    began = time.monotonic()
    with ExitStack() as opened:
        log = opened.enter_context(options.log.open("wb")) if options.log is not None else None
        story = play(scenario, log=None if log is None else log.write)
    _say(f"{_summary(story)}\nreal time: {time.monotonic() - began:.1f} s\n")
    if story.failure is not None:
        story = shrink(story, seconds=options.shrink_seconds)
        _say(f"\n{tell(story)}\n")
    if options.keep is not None:
        options.keep.write_bytes(encode(story.scenario))
    return 0 if story.ok else 1


def _scenario(options: argparse.Namespace) -> Scenario:
    if options.scenario is not None:
        return decode(options.scenario.read_bytes())
    settings, routes = draw_settings(options.seed)
    return draw(
        settings,
        options.seed,
        hours=options.hours,
        runs=options.runs,
        routes=routes,
        faults=Faults.none() if options.fair else Faults().often(options.often),
        dispatchers=options.dispatchers,
    )


def _summary(story: Story) -> str:
    counts = {
        "events": story.events,
        "faults": story.faults,
        "deeds": story.deeds,
        "agents": story.conducts,
        "ends": story.ends,
        "left": story.waits,
    }
    lines = [
        f"{what}: {', '.join(f'{count} {name}' for name, count in found.items())}"
        for what, found in counts.items()
        if found
    ]
    lines.append(f"simulated: {story.simulated_ms / 3_600_000:.1f} h, {story.checks} checks, event log {story.digest}")
    return "\n".join([tell(story).partition("\n")[0], *lines])


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
