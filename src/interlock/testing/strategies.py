"""Hypothesis strategies: tasks, backlogs, settings, and sequences of events. For configuration files see
:mod:`interlock.testing.strategies_config`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from hypothesis import strategies as st

from interlock.domain.run import Route
from interlock.domain.settings import (
    MINUTE,
    Agent,
    Budgets,
    Leases,
    Limits,
    Mode,
    OnNeedFailed,
    OnNeverClaimed,
    OnTimeout,
    Retry,
    Role,
    Server,
    Settings,
)
from interlock.domain.task import PRIORITY_LIMIT, Task, TaskContext
from interlock.machines.table import TABLES
from interlock.testing.beside.configuration import names_of

MachineName = Literal["run", "attempt", "worker", "dispatcher"]
DAY = 24 * 60 * MINUTE

NAMES = ("alpha", "beta", "gamma", "two words", "ünïcode", "007", "no", "it's", 'a "b"', "x" * 100)
"""Names that have made trouble somewhere, and some that have not."""

names: st.SearchStrategy[str] = st.sampled_from(NAMES)


def texts(*, most: int = 60) -> st.SearchStrategy[str]:
    """Any text that can be stored: every character but surrogates."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=most)


def _lines(*, most: int) -> st.SearchStrategy[str]:
    """Text that a configuration file takes: one line, without control characters."""
    return st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=most)


def _titles() -> st.SearchStrategy[str]:
    return texts(most=40).filter(lambda text: bool(text.strip()))


def _json() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts(most=10)
    return st.recursive(
        leaves, lambda some: st.lists(some, max_size=3) | st.dictionaries(texts(most=5), some, max_size=3)
    )


def tasks(
    *, configuration: Settings | None = None, routes: Sequence[Route] = (), not_before_ms: int | None = None
) -> st.SearchStrategy[Task]:
    """Tasks that are accepted when they are submitted; without ``needs``, for which see :func:`backlogs`.

    With a ``configuration`` (and ``routes``) they carry the projects, trackers, roles, tags, types and agents that it speaks of,
    and some that it does not. ``not_before_ms``: around when they may start (Unix milliseconds); None: at once.
    """
    if configuration is None:
        words: dict[str, st.SearchStrategy[str]] = dict.fromkeys(
            ("project", "tracker", "role", "type", "agent", "tag"), names
        )
    else:
        spoken = names_of(configuration, routes)
        words = {
            "project": st.sampled_from(spoken.projects),
            "tracker": st.sampled_from(spoken.trackers),
            "role": st.sampled_from(spoken.roles),
            "type": st.sampled_from([*spoken.routed, *spoken.types]),
            "agent": st.sampled_from(spoken.agents),
            "tag": st.sampled_from(spoken.tags),
        }
    context = st.builds(
        TaskContext,
        description=st.none() | texts(),
        files=st.lists(texts(most=20), max_size=2).map(tuple),
        related=st.lists(texts(most=20), max_size=2).map(tuple),
        criteria=st.lists(texts(most=20), max_size=2).map(tuple),
        labels=st.lists(texts(most=20), max_size=2).map(tuple),
        source_url=st.none() | st.just("https://example.org/1"),
        extra=st.dictionaries(texts(most=5), _json(), max_size=2),
    )
    start = st.none() if not_before_ms is None else st.none() | st.integers(not_before_ms - DAY, not_before_ms + DAY)
    return st.builds(
        Task,
        title=_titles(),
        content=texts(),
        context=st.just(TaskContext()) | context,
        priority=st.integers(-3, 3) | st.sampled_from([-PRIORITY_LIMIT, PRIORITY_LIMIT]),
        tags=st.lists(words["tag"], max_size=3).map(tuple),
        project=st.none() | words["project"],
        tracker=st.none() | words["tracker"],
        role=st.none() | words["role"],
        type=st.none() | words["type"],
        agent=st.none() | words["agent"],
        timeout_ms=st.none() | st.integers(1, DAY),
        stall_ms=st.none() | st.integers(1, DAY),
        not_before_ms=start,
        metadata=st.just({}) | st.dictionaries(texts(most=5), _json(), max_size=2),
    )


@st.composite
def backlogs(
    draw: st.DrawFn,
    *,
    configuration: Settings | None = None,
    routes: Sequence[Route] = (),
    least: int = 1,
    most: int = 8,
    circular: bool = False,
) -> list[Task]:
    """``least`` to ``most`` tasks with unique ids, which need each other without a circle; submitted together they are accepted.

    ``circular``: with a circle in it (of one task or more), which is refused.
    """
    drawn = draw(st.lists(tasks(configuration=configuration, routes=routes), min_size=least, max_size=most))
    ids = [f"task-{index}" for index in range(len(drawn))]
    # Needs point at earlier ones; then the order is shuffled, so that they point anywhere.
    needs = [
        draw(st.lists(st.sampled_from(ids[:index]), unique=True, max_size=3)) if index else []
        for index in range(len(ids))
    ]
    if circular:
        circle = draw(st.permutations(range(len(ids))).map(lambda order: order[: draw(st.integers(1, len(ids)))]))
        for here, there in zip(circle, [*circle[1:], circle[0]], strict=True):
            needs[here] = list(dict.fromkeys([*needs[here], ids[there]]))
    made = [
        msgspec.structs.replace(task, id=name, needs=tuple(wanted))
        for task, name, wanted in zip(drawn, ids, needs, strict=True)
    ]
    return draw(st.permutations(made))


# settings


def _limits(agents: Sequence[str]) -> st.SearchStrategy[Limits]:
    caps = st.dictionaries(names, st.integers(0, 5), max_size=2)
    return st.builds(
        Limits,
        total=st.integers(0, 20),
        per_project=caps,
        per_tracker=caps,
        per_role=caps,
        per_tag=caps,
        per_agent=st.dictionaries(st.sampled_from(agents) if agents else names, st.integers(0, 5), max_size=2),
    )


@st.composite
def _retries(draw: st.DrawFn) -> Retry:
    base, longest = sorted((draw(st.integers(0, DAY)), draw(st.integers(0, DAY))))
    return Retry(max_retries=draw(st.integers(0, 5)), base_delay_ms=base, max_delay_ms=longest)


def _agents() -> st.SearchStrategy[dict[str, Agent]]:
    words = _lines(most=10).map(lambda text: f"x{text}")
    commands = words | st.lists(words, min_size=1, max_size=3).map(tuple)
    agent = st.builds(
        Agent,
        name=st.just(""),
        command=commands,
        env=st.dictionaries(st.sampled_from(["A", "B_2"]), _lines(most=10), max_size=2),
        cwd=st.none() | st.just("somewhere"),
        max_concurrent=st.none() | st.integers(0, 5),
        timeout_ms=st.none() | st.integers(1, DAY),
        stall_ms=st.none() | st.integers(1, DAY),
        grace_ms=st.none() | st.integers(0, DAY),
    )
    return st.dictionaries(names, agent, max_size=3).map(
        lambda found: {name: msgspec.structs.replace(one, name=name) for name, one in found.items()}
    )


_templates = st.fixed_dictionaries(
    {"title": st.sampled_from(("Review $repo", "Nightly"))}, optional={"priority": st.just(3)}
)
_servers = st.builds(
    Server,
    enabled=st.booleans(),
    listen=st.sampled_from(("127.0.0.1:7420", "[::1]:0", "0.0.0.0:80")),
    hosts=st.lists(names, max_size=2, unique=True).map(tuple),
    require_token=st.booleans(),
)


@st.composite
def settings(draw: st.DrawFn) -> Settings:
    """Settings as a sound configuration file can give them: names that are used are defined, numbers are in their ranges."""
    agents = draw(_agents())
    known = st.sampled_from(sorted(agents)) if agents else st.nothing()
    role = st.builds(Role, name=st.just(""), agent=st.none() | known, prompt=st.none() | st.just("prompts/role.md"))
    roles = draw(st.dictionaries(names, role, max_size=2))
    span = st.integers(1, DAY)
    return Settings(
        enabled=draw(st.booleans()),
        mode=draw(st.sampled_from(Mode)),
        limits=draw(_limits(sorted(agents))),
        retry=draw(_retries()),
        budgets=draw(
            st.builds(
                Budgets,
                max_losts=st.integers(1, 5),
                max_defers=st.integers(0, 5),
                max_offers=st.integers(1, 5),
                default_defer_ms=st.integers(0, DAY),
            )
        ),
        leases=draw(
            st.builds(
                Leases,
                local_ms=st.integers(1000, DAY),
                remote_ms=st.integers(1000, DAY),
                grace_ms=st.integers(0, DAY),
                claim_timeout_ms=span,
            )
        ),
        agents=agents,
        roles={name: msgspec.structs.replace(one, name=name) for name, one in roles.items()},
        default_agent=draw(st.none() | known),
        default_role=draw(st.none() | names),
        timeout_ms=draw(span),
        stall_ms=draw(st.none() | span),
        deadline_ms=draw(st.none() | span),
        on_timeout=draw(st.sampled_from(OnTimeout)),
        on_need_failed=draw(st.sampled_from(OnNeedFailed)),
        on_never_claimed=draw(st.sampled_from(OnNeverClaimed)),
        min_free_memory_bytes=draw(st.integers(0, 2**40)),
        stop_grace_ms=draw(st.integers(0, DAY)),
        poll_ms=draw(st.integers(10, DAY)),
        templates=draw(st.dictionaries(names, _templates, max_size=2)),
        server=draw(_servers),
    )


# events


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A move of a machine: where it was, what happened, where it is then."""

    before: str
    event: str
    after: str


@st.composite
def event_sequences(draw: st.DrawFn, machine: MachineName = "run", *, least: int = 0, most: int = 40) -> list[Move]:
    """A legal way through a machine from its first state: ``least`` to ``most`` moves, fewer where it ends before."""
    table: Any = TABLES[machine]
    state, moves = table.initial, []
    for _ in range(draw(st.integers(least, most))):
        allowed = table.allowed(state)
        if not allowed:
            break
        event = draw(st.sampled_from(allowed))
        after = table.target(state, event)
        moves.append(Move(before=str(state), event=event, after=str(after)))
        state = after
    return moves


def illegal_pairs(machine: MachineName = "run") -> st.SearchStrategy[tuple[str, str]]:
    """A state of a machine and an event that it does not allow there; ``levitate`` is an event that no machine has."""
    table: Any = TABLES[machine]
    events = sorted({str(event) for _, event in table.moves} | {"levitate"})
    pairs = [(str(state), event) for state in table.states for event in events if (state, event) not in table.moves]
    return st.sampled_from(pairs)
