"""Each generated value is accepted by what it is for; each faulty one is refused, with the place."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, find, given
from hypothesis import settings as how
from hypothesis import strategies as st
from statemachine.exceptions import TransitionNotAllowed

from interlock.config import KEYS, parse_config
from interlock.domain.errors import IllegalTransition, InvalidConfig, InvalidInput
from interlock.domain.run import Route
from interlock.domain.settings import Agent, Limits, Settings
from interlock.domain.task import Task
from interlock.machines.table import TABLES
from interlock.service import submitting
from interlock.service.context import Context
from interlock.testing import (
    ConfigDocument,
    FaultyConfig,
    Move,
    backlogs,
    configs,
    event_sequences,
    faulty_configs,
    illegal_pairs,
    settings,
    tasks,
)
from interlock.testing.beside.desk import SqliteDesk
from interlock.testing.strategies_config import _FAULTS

NOW = 1_700_000_000_000
MINE = Settings(agents={"mine": Agent(name="mine", command="x")}, limits=Limits(per_tag={"gpu": 1}))
ROUTES = (Route(workflow_type="review", agent_id="mine"),)
quick = how(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
there_is = how(quick, max_examples=1000, phases=[Phase.generate])
"""For finding an example, which need not be a small one."""


@pytest.fixture(scope="module")
def desk() -> Any:
    made = SqliteDesk()
    yield made
    made.close()


def submit(desk: SqliteDesk, *some: Task) -> list[Task]:
    """The tasks as they are stored."""
    context = Context(now_ms=NOW, rng=Random(), settings=Settings())
    items = [submitting.Item(task=task) for task in some]
    done = desk.write(lambda tx: submitting.submit(tx, context, items))
    stored = [desk.read(lambda tx, n=made.run.number: tx.run(n)) for made in done]
    return [run.task for run in stored if run is not None]


@quick
@given(task=tasks() | tasks(not_before_ms=NOW))
def test_tasks_can_be_submitted_and_come_back(desk: SqliteDesk, task: Task) -> None:
    assert submit(desk, task) == [task]


@quick
@given(task=tasks(configuration=MINE, routes=ROUTES))
def test_tasks_speak_of_what_a_configuration_speaks_of(task: Task) -> None:
    assert task.agent in (None, "mine", "ghost")
    assert set(task.tags) <= {"gpu", "another-tag"}
    assert task.type in (None, "review", "unrouted-1", "unrouted-2")


@pytest.mark.parametrize("field", ["project", "tracker", "role", "type", "agent", "tags", "timeout_ms", "stall_ms"])
def test_tasks_have_every_field(field: str) -> None:
    find(tasks(), lambda task: bool(getattr(task, field)), settings=there_is)


@quick
@given(backlog=backlogs())
def test_backlogs_can_be_submitted(desk: SqliteDesk, backlog: list[Task]) -> None:
    assert submit(desk, *backlog) == backlog


@quick
@given(backlog=backlogs(circular=True))
def test_circular_backlogs_are_refused(desk: SqliteDesk, backlog: list[Task]) -> None:
    with pytest.raises(InvalidInput, match=r"circle|itself"):
        submit(desk, *backlog)


def test_backlogs_have_needs_in_either_direction() -> None:
    def points(backlog: list[Task], *, forward: bool) -> bool:
        place = {task.id: index for index, task in enumerate(backlog)}
        return any((place[need] > place[task.id]) == forward for task in backlog for need in task.needs)

    find(backlogs(), lambda backlog: points(backlog, forward=True), settings=there_is)
    find(backlogs(), lambda backlog: points(backlog, forward=False), settings=there_is)


@quick
@given(document=configs())
def test_configs_load_to_their_settings(document: ConfigDocument) -> None:
    config = parse_config(document.text.encode())
    assert config.settings == document.settings
    assert config.inactive == ()


def test_configs_say_every_key_that_is_in_force() -> None:
    """A setting that a file can have and the strategy never draws would go untested."""
    said: set[str] = set()

    def gather(value: Any, path: tuple[str, ...] = ()) -> None:
        if isinstance(value, dict) and (not path or path[-1][:3] != "per") and path[-1:] != ("env",):
            for name, inner in value.items():
                if path == ("templates",):
                    said.add("templates.*")
                    continue
                key = "*" if path in (("agents",), ("roles",)) else name
                gather(inner, (*path, key))
        else:
            said.add(".".join(path))

    import yaml

    @how(max_examples=80, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(document=configs())
    def look(document: ConfigDocument) -> None:
        gather(yaml.safe_load(document.text))

    look()
    wanted = {key.path for key in KEYS if key.target is not None} - {"agents.*.runtime"}
    assert wanted - said == set()


@quick
@given(config=faulty_configs())
def test_faulty_configs_are_refused_with_the_place(config: FaultyConfig) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_config(config.text.encode())
    assert config.word in caught.value.message
    assert "interlock.yaml:" in caught.value.message


@pytest.mark.parametrize("fault", _FAULTS, ids=lambda fault: fault.__name__)
def test_every_kind_of_fault_is_a_fault(fault: Any) -> None:
    """Without the fault the document is sound, so that it is the fault that is refused."""
    from interlock.testing.strategies_config import document_of, yaml_text

    @how(max_examples=15, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data(), drawn=settings())
    def look(data: st.DataObject, drawn: Settings) -> None:
        document = document_of(drawn)
        assert parse_config(yaml_text(document).encode()).settings == drawn
        word = fault(data.draw, document)
        assert word

    look()


@quick
@given(drawn=settings())
def test_settings_are_as_msgspec_takes_them(drawn: Settings) -> None:
    assert msgspec.convert(msgspec.to_builtins(drawn), Settings) == drawn


@pytest.mark.parametrize("machine", list(TABLES))
@given(data=st.data())
def test_event_sequences_are_legal(machine: Any, data: st.DataObject) -> None:
    moves: list[Move] = data.draw(event_sequences(machine))
    real = TABLES[machine].machine()
    for move in moves:
        assert real.current_state_value == move.before
        real.send(move.event)
        assert real.current_state_value == move.after


@pytest.mark.parametrize("machine", list(TABLES))
def test_event_sequences_reach_the_ends(machine: Any) -> None:
    table: Any = TABLES[machine]
    ends = {str(state) for state in table.final}
    find(event_sequences(machine, least=20), lambda moves: bool(moves) and moves[-1].after in ends, settings=there_is)


@pytest.mark.parametrize("machine", list(TABLES))
@given(data=st.data())
def test_illegal_pairs_are_refused(machine: Any, data: st.DataObject) -> None:
    state, event = data.draw(illegal_pairs(machine))
    table: Any = TABLES[machine]
    with pytest.raises(IllegalTransition):
        table.target(table.states(state), event)
    real = table.machine(start_value=table.states(state))
    with pytest.raises(TransitionNotAllowed):
        real.send(event)
