"""What is written is what is read: any value, whatever its texts hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.domain.run import AgentHealth, Attempt, Event, Instance, ProcessIdentity, Route, Run, Stop, Usage
from interlock.domain.states import AttemptState, RunEvent, RunState, StopKind
from interlock.domain.task import Task, TaskContext
from interlock.store.sqlite.queries import SQL
from interlock.store.sqlite.rows import ATTEMPTS, EVENTS, HEALTHS, INSTANCES, ROUTES, RUNS, Rows, to_json
from interlock.store.sqlite.schema import migration_scripts, statements
from interlock.store.sqlite.transaction import SqliteTx

HOSTILE = st.sampled_from(
    [
        "",
        " ",
        "\0",
        "a\0b",
        "'; DROP TABLE runs; --",
        '"\\',
        "\N{RIGHT-TO-LEFT OVERRIDE}gnp.exe",
        "\N{ZERO WIDTH JOINER}",
        "e\N{COMBINING ACUTE ACCENT}",
        "\U0001f9ea\U0010ffff",
        "\r\n\t\v\f\x1b[31m\x7f\x85\u2028",
        "null",
        "{}",
        "1e999",
        "007",
        "0x10",
        "NaN",
        "x" * 5000,
    ]
)
texts = st.one_of(HOSTILE, st.text(max_size=40))
maybe_text = st.none() | texts
integers = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(0, 2**63 - 1)
maybe_integer = st.none() | integers
floats = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | integers | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)
some_texts = st.lists(texts, max_size=3).map(tuple)

tasks = st.builds(
    Task,
    title=texts,
    id=maybe_text,
    content=texts,
    context=st.builds(
        TaskContext,
        description=maybe_text,
        files=some_texts,
        related=some_texts,
        criteria=some_texts,
        labels=some_texts,
        source_url=maybe_text,
        extra=json_objects,
    ),
    priority=integers,
    tags=some_texts,
    project=maybe_text,
    tracker=maybe_text,
    role=maybe_text,
    type=maybe_text,
    agent=maybe_text,
    needs=some_texts,
    timeout_ms=maybe_integer,
    stall_ms=maybe_integer,
    not_before_ms=maybe_integer,
    unique=maybe_text,
    metadata=json_objects,
)
stops = st.builds(Stop, kind=st.sampled_from(StopKind), reason=texts, message=texts, by=texts, at_ms=integers)


def any_of(kind: type[msgspec.Struct], **special: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A strategy for a value whose other fields follow from their types."""
    by_type = {
        int: integers,
        str: texts,
        bool: st.booleans(),
        float: floats,
        int | None: maybe_integer,
        str | None: maybe_text,
        Any: json_values,
    }
    fields = {
        field.name: special[field.name] if field.name in special else by_type[field.type]
        for field in msgspec.structs.fields(kind)
    }
    return st.builds(kind, **fields)


runs = any_of(
    Run,
    number=st.integers(1, 2**63 - 1),
    state=st.sampled_from(RunState),
    task=tasks,
    stop=st.none() | stops,
    fence=counts,
    owner_epoch=counts,
    needs_left=counts,
)
attempts = any_of(
    Attempt,
    fence=st.integers(1, 2**63 - 1),
    state=st.sampled_from(AttemptState),
    process=st.none() | any_of(ProcessIdentity),
    usage=st.none()
    | st.builds(Usage, input_tokens=maybe_integer, output_tokens=maybe_integer, cost_usd=st.none() | floats),
)
events = any_of(
    Event, seq=st.integers(1, 2**63 - 1), event=texts | st.sampled_from(RunEvent), data=st.none() | json_objects
)


@pytest.fixture(scope="module")
def connection() -> Iterator[sqlite3.Connection]:
    """The tables without the rules between their columns: here it is about cells."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        for _, script in migration_scripts():
            for statement in statements(script):
                made.execute(statement)
        made.execute("PRAGMA ignore_check_constraints = ON")
        yield made


def written_and_read(connection: sqlite3.Connection, rows: Rows[Any], table: str, value: Any) -> Any:
    """The value after a way through the file."""
    connection.execute("BEGIN")
    try:
        cells = rows.write(value)
        names = ", ".join(rows.fields)
        connection.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(cells))})", cells)
        for column in ("task", "stop", "result", "process", "usage", "data"):
            if column in rows.fields:
                assert connection.execute(
                    f"SELECT {column} IS NULL OR json_valid({column}) FROM {table}"
                ).fetchone() == (1,)
        (row,) = connection.execute(f"SELECT {names} FROM {table}").fetchall()
        return rows.read(row)
    finally:
        connection.execute("ROLLBACK")


relaxed = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)


@relaxed
@given(value=runs)
def test_a_run_comes_back_as_it_was(connection: sqlite3.Connection, value: Run) -> None:
    back = written_and_read(connection, RUNS, "runs", value)
    assert back == value
    assert type(back.state) is RunState
    assert [type(getattr(back, name)) for name in ("ready", "held", "pull", "remote")] == [bool] * 4


@relaxed
@given(value=attempts)
def test_an_attempt_comes_back_as_it_was(connection: sqlite3.Connection, value: Attempt) -> None:
    back = written_and_read(connection, ATTEMPTS, "attempts", value)
    assert back == value
    assert type(back.state) is AttemptState
    assert type(back.remote) is bool


@relaxed
@given(value=events)
def test_an_event_comes_back_as_it_was(connection: sqlite3.Connection, value: Event) -> None:
    assert written_and_read(connection, EVENTS, "run_events", value) == value


@relaxed
@given(value=any_of(Route))
def test_a_route_comes_back_as_it_was(connection: sqlite3.Connection, value: Route) -> None:
    assert written_and_read(connection, ROUTES, "workflow_agent_routing", value) == value


@relaxed
@given(value=any_of(Instance))
def test_an_instance_comes_back_as_it_was(connection: sqlite3.Connection, value: Instance) -> None:
    assert written_and_read(connection, INSTANCES, "instances", value) == value


@relaxed
@given(value=any_of(AgentHealth))
def test_an_agents_health_comes_back_as_it_was(connection: sqlite3.Connection, value: AgentHealth) -> None:
    assert written_and_read(connection, HEALTHS, "agent_health", value) == value


@relaxed
@given(old=runs, new=runs)
def test_only_what_differs_is_written_and_that_is_all(connection: sqlite3.Connection, old: Run, new: Run) -> None:
    new = msgspec.structs.replace(new, number=old.number)
    connection.execute("BEGIN")
    try:
        cells = RUNS.write(old)
        connection.execute(f"INSERT INTO runs ({', '.join(RUNS.fields)}) VALUES ({', '.join('?' * len(cells))})", cells)
        tx = SqliteTx(connection)
        tx.save_run(old, new)
        assert tx.run(old.number) == new
        names, _ = RUNS.changes(old, new)
        assert set(names) == {name for name in RUNS.fields if getattr(old, name) != getattr(new, name)}
    finally:
        connection.execute("ROLLBACK")


@pytest.mark.parametrize(
    ("rows", "table"),
    [
        (RUNS, "runs"),
        (ATTEMPTS, "attempts"),
        (EVENTS, "run_events"),
        (ROUTES, "workflow_agent_routing"),
        (INSTANCES, "instances"),
        (HEALTHS, "agent_health"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_column_is_a_field(connection: sqlite3.Connection, rows: Rows[Any], table: str) -> None:
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    assert list(rows.fields) == names


def test_the_columns_for_people_are_those_of_the_task(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    task = Task(title='it\'s "quoted"', project="p", tracker="t", role="r", type="bug")
    run = Run(number=1, id="a", state=RunState.QUEUED, task=task, content_hash="")
    SqliteTx(connection).add_run(run)
    names = ("title", "project", "tracker", "role", "workflow_type")
    assert connection.execute(f"SELECT {', '.join(names)} FROM runs").fetchone() == (task.title, "p", "t", "r", "bug")
    connection.execute("ROLLBACK")


def test_nothing_is_null_and_null_is_nothing() -> None:
    assert to_json(None) is None
    assert to_json({}) == "{}"
    assert to_json("") == '""'
    assert to_json(0) == "0"


def test_half_a_character_is_refused_before_it_gets_anywhere(connection: sqlite3.Connection) -> None:
    """A lone surrogate is no text: neither JSON nor SQLite takes it."""
    with pytest.raises(UnicodeEncodeError):
        connection.execute(SQL["set_meta"], ("key", "\ud800"))
    with pytest.raises(UnicodeEncodeError):
        to_json({"title": "\ud800"})
