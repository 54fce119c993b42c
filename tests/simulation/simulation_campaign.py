"""What the tests of the simulation share: how much to play, and how to tell a broken rule so that it can be played again.

``INTERLOCK_SIMULATION_SEEDS`` (how many), ``INTERLOCK_SIMULATION_FIRST_SEED``, ``INTERLOCK_SIMULATION_RUNS`` (tasks of each) and
``INTERLOCK_SIMULATION_HOURS`` make the campaign of the tests as long as wanted. As a command it goes on unattended:

    python tests/simulation/simulation_campaign.py --seeds 200          # many small worlds, each with settings of its own
    python tests/simulation/simulation_campaign.py --week               # one world: 100,000 tasks in seven days
    python tests/simulation/simulation_campaign.py --week --twice       # and the same again: are the event logs equal?

Exit status 1 when a rule was broken, or the second event log was another one.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from filecmp import cmp
from pathlib import Path

import msgspec

from interlock.domain.run import Route
from interlock.domain.settings import MINUTE, Agent, Limits, Role, Settings
from interlock.testing.simulation import Faults, Scenario, Story, draw, draw_settings, encode, play, shrink, tell
from interlock.testing.simulation.scenario import Deed, DeedKind

KEPT = Path(__file__).resolve().parents[2] / "fixtures" / "simulation"
SEEDS = int(os.environ.get("INTERLOCK_SIMULATION_SEEDS", "4"))
FIRST_SEED = int(os.environ.get("INTERLOCK_SIMULATION_FIRST_SEED", "1"))
RUNS = int(os.environ.get("INTERLOCK_SIMULATION_RUNS", "80"))
HOURS = float(os.environ.get("INTERLOCK_SIMULATION_HOURS", "1"))
WEEK_RUNS = 100_000
WEEK_HOURS = 7 * 24.0
WEEK_LIMITS = Limits(
    total=12,
    per_project={"web": 5, "api": 3},
    per_tracker={"jira": 4},
    per_role={"reviewer": 4},
    per_tag={"gpu": 3, "db": 4},
    per_agent={"tester": 6},
)
WEEK_AGENTS = {
    "coder": Agent(name="coder", command="coder"),
    "tester": Agent(name="tester", command="tester"),
    "writer": Agent(name="writer", command="writer", grace_ms=30_000),
}
WEEK_ROUTES = (
    Route(workflow_type="review", agent_id="tester", priority=5, max_concurrent=4),
    Route(workflow_type="docs", agent_id="writer", max_concurrent=3, stall_minutes=2),
)
WEEK_SETTINGS = Settings(
    limits=WEEK_LIMITS,
    agents=WEEK_AGENTS,
    roles={"reviewer": Role(name="reviewer", agent="tester"), "author": Role(name="author", agent="writer")},
    default_agent="coder",
    timeout_ms=3 * MINUTE,
)
"""Wide enough that a week is enough for the work of a week, agents that hang included; they are reached again and again."""
LIMITED_MS = 90 * MINUTE
SHRINK_SECONDS = 60.0
PROGRESS_LINES = 50_000


def drawn(seed: int, *, runs: int = RUNS, hours: float = HOURS, often: float | None = None) -> Scenario:
    """A scenario with settings of its own. However short it is, it has the faults of a day and a half."""
    settings, routes = draw_settings(seed)
    faults = Faults().often(36 / hours if often is None else often)
    return draw(settings, seed, runs=runs, hours=hours, routes=routes, faults=faults)


def a_week(seed: int, *, runs: int = WEEK_RUNS, hours: float = WEEK_HOURS) -> Scenario:
    """One world for long, with the faults of every day: agents that are started by two dispatchers."""
    scenario = draw(WEEK_SETTINGS, seed, runs=runs, hours=hours, routes=WEEK_ROUTES)
    # Who sets another limit sets it back after a while: a week at a third of it would leave work for ten days.
    changes = [entry for entry in scenario.entries if isinstance(entry, Deed) and entry.kind is DeedKind.LIMIT]
    back = [msgspec.structs.replace(deed, at_ms=deed.at_ms + LIMITED_MS, number=WEEK_LIMITS.total) for deed in changes]
    entries = sorted([*scenario.entries, *back], key=lambda entry: entry.at_ms)
    return msgspec.structs.replace(scenario, entries=tuple(entries))


def assert_every_rule_holds(scenario: Scenario, folder: Path) -> Story:
    """Play; a broken rule is told with its smallest story, which is kept in ``folder`` to be played again."""
    story = play(scenario)
    if story.failure is not None:
        raise AssertionError(_told(story, folder))
    return story


def _told(story: Story, folder: Path) -> str:
    story = shrink(story, seconds=SHRINK_SECONDS)
    kept = folder / f"seed-{story.scenario.seed}.json"
    kept.write_bytes(encode(story.scenario))
    again = f"To play it again: python -m interlock.testing.simulation --scenario {kept}"
    return f"{tell(story)}\n\n{again}\nOnce it is mended, keep it: copy the file to {KEPT}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when every rule held, and equal seeds gave equal logs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--seeds", type=int, metavar="N", help="so many small worlds")
    kind.add_argument("--week", action="store_true", help="one world for a week")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first seed, or the seed of the week")
    parser.add_argument(
        "--twice", action="store_true", help="play each twice, and compare the event logs byte for byte"
    )
    parser.add_argument("--runs", type=int, help=f"tasks of each (small: {RUNS}, week: {WEEK_RUNS})")
    parser.add_argument("--hours", type=float, help=f"simulated hours of each (small: {HOURS:g}, week: {WEEK_HOURS:g})")
    parser.add_argument("--keep", type=Path, default=Path(), metavar="FOLDER", help="where stories that fail are kept")
    parser.add_argument("--record", type=Path, metavar="FILE", help="append what came of each, a line of JSON")
    options = parser.parse_args(arguments)
    size = {name: value for name in ("runs", "hours") if (value := getattr(options, name)) is not None}
    draws = a_week if options.week else drawn
    good = True
    for seed in range(options.first, options.first + (options.seeds or 1)):
        good &= _campaign(draws(seed, **size), options)
    return 0 if good else 1


def _campaign(scenario: Scenario, options: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory(prefix="interlock-campaign-") as folder:
        logs = [Path(folder) / f"log-{number}" for number in range(1 + options.twice)]
        for log in logs:
            story = _play(scenario, log, options)
            if story.failure is not None:
                print(f"\n{_told(story, options.keep)}\n", flush=True)
                return False
        if options.twice:
            equal = cmp(*logs, shallow=False)
            print(f"  played twice: {logs[0].stat().st_size} bytes, {'equal' if equal else 'NOT EQUAL'}", flush=True)
            return equal
    return True


def _play(scenario: Scenario, path: Path, options: argparse.Namespace) -> Story:
    wall, cpu = time.monotonic(), time.process_time()
    lines = 0
    with path.open("wb") as log:

        def write(line: bytes) -> None:
            nonlocal lines
            log.write(line)
            lines += 1
            if not lines % PROGRESS_LINES:
                print(f"  {lines} lines, {time.monotonic() - wall:.0f} s", file=sys.stderr, flush=True)

        story = play(scenario, log=write)
    record = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "seed": scenario.seed,
        "mode": scenario.settings.mode,
        "tasks": scenario.jobs,
        "ok": story.ok,
        "seconds": round(time.monotonic() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "simulated_hours": round(story.simulated_ms / 3_600_000, 1),
        "log_bytes": path.stat().st_size,
        **{name: getattr(story, name) for name in ("checks", "events", "faults", "deeds", "conducts", "ends", "waits")},
        "digest": story.digest,
    }
    told = ", ".join(f"{record[name]} {name}" for name in ("mode", "tasks", "simulated_hours", "cpu_seconds", "checks"))
    print(f"seed {scenario.seed}: {'ok' if story.ok else 'FAILED'}, {told}, log {story.digest[:12]}", flush=True)
    if options.record is not None:
        with options.record.open("ab") as records:
            records.write(msgspec.json.encode(record) + b"\n")
    return story


if __name__ == "__main__":
    sys.exit(main())
