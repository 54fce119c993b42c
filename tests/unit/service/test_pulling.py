"""Agents that come for offers: what each is given, and the next one claimed for it."""

from __future__ import annotations

from typing import Any

import pytest
from yard import Yard

from interlock.decide.outcome import OutcomeKind
from interlock.domain.errors import InvalidInput, StaleClaim
from interlock.domain.puller import Puller
from interlock.domain.run import Route, Run
from interlock.domain.settings import Limits, Mode
from interlock.domain.states import RunState
from interlock.service import operating, pulling
from interlock.service.claims import claim_of


def puller(holder: str = "h", **more: Any) -> Puller:
    return Puller(holder=holder, **more)


@pytest.fixture
def pulled(yard: Yard) -> Yard:
    """In pull mode, without a default agent: offers are open to all."""
    yard.configure(mode=Mode.PULL, default_agent=None)
    return yard


def offered(yard: Yard, *tasks: dict[str, Any]) -> list[Run]:
    runs = [yard.submit(f"t{n}", **fields) for n, fields in enumerate(tasks)]
    yard.dispatch()
    return [yard.get(run) for run in runs]


@pytest.mark.parametrize(
    ("who", "takes"),
    [
        ({}, [0, 1, 2, 3]),
        ({"types": ("build",)}, [0, 1, 3]),
        ({"types": ("review.*",)}, [0, 2, 3]),
        ({"types": ("build", "review.*")}, [0, 1, 2, 3]),
        ({"role": "reviewer"}, [0, 1, 2]),
        ({"role": "reviewer", "types": ("build",)}, [0, 1]),
        ({"agent": "a"}, [0, 1, 2, 3]),
    ],
)
def test_what_an_agent_takes(pulled: Yard, who: dict[str, Any], takes: list[int]) -> None:
    runs = offered(pulled, {}, {"type": "build"}, {"type": "review.code", "role": "reviewer"}, {"role": "writer"})
    found = pulled.do(pulling.look, puller(**who), 10)
    assert [run.number for run in found] == [runs[at].number for at in takes]
    assert [run.number for run in pulled.do(pulling.look, puller(**who), 1)] == [runs[takes[0]].number]


def test_an_offer_to_one_agent_is_no_others(pulled: Yard) -> None:
    pulled.do(operating.put_route, Route(workflow_type="build", agent_id="a"))
    offered(pulled, {"type": "build"})
    assert pulled.do(pulling.look, puller(agent="b"), 10) == []
    assert len(pulled.do(pulling.look, puller(agent="a"), 10)) == 1


def test_the_next_one_is_the_most_urgent(pulled: Yard) -> None:
    runs = offered(pulled, {"priority": 1}, {"priority": 5, "type": "x"}, {"priority": 3})
    claims = [pulled.do(pulling.claim_next, puller(f"h{n}", types=("y",))) for n in range(3)]
    assert [claim and claim.number for claim in claims] == [runs[2].number, runs[0].number, None]
    assert pulled.get(runs[2]).holder == "h0"


def test_many_offers_that_are_for_others_are_looked_past(pulled: Yard) -> None:
    runs = offered(pulled, *({"type": "x"} for _ in range(60)), {"type": "y"})
    claim = pulled.do(pulling.claim_next, puller(types=("y",)))
    assert claim.number == runs[-1].number


def test_the_same_request_again_gets_the_same_claim(pulled: Yard) -> None:
    offered(pulled, {}, {})
    first = pulled.do(pulling.claim_next, puller(), request_id="q")
    assert pulled.do(pulling.claim_next, puller(), request_id="q") == first
    other = pulled.do(pulling.claim_next, puller("somebody else"), request_id="q")
    assert other.number != first.number, "request ids are a holder's own"
    pulled.end(claim_of(first), OutcomeKind.COMPLETED)
    with pytest.raises(StaleClaim, match="request q has had its claim"):
        pulled.do(pulling.claim_next, puller(), request_id="q")


def test_an_agent_that_has_all_it_may_have_gets_none(pulled: Yard) -> None:
    pulled.configure(limits=Limits(total=10, per_agent={"a": 1}))
    offered(pulled, {}, {})
    assert pulled.do(pulling.claim_next, puller(agent="a")) is not None
    assert pulled.do(pulling.claim_next, puller(agent="a")) is None
    assert pulled.do(pulling.claim_next, puller(agent="b")) is not None


def test_none_while_dispatching_is_paused(pulled: Yard) -> None:
    (run,) = offered(pulled, {})
    pulled.do(operating.pause)
    assert pulled.do(pulling.claim_next, puller()) is None
    assert pulled.get(run).state is RunState.QUEUED


@pytest.mark.parametrize(
    "wrong", [{"holder": ""}, {"holder": "x" * 201}, {"agent": ""}, {"types": ("",)}, {"role": ""}]
)
def test_names_have_a_length(pulled: Yard, wrong: dict[str, Any]) -> None:
    who = Puller(**{"holder": "h", **wrong})
    with pytest.raises(InvalidInput, match="longer than 200"):
        pulled.do(pulling.look, who, 1)
    with pytest.raises(InvalidInput, match="longer than 200"):
        pulled.do(pulling.claim_next, who)


def test_who_takes_another_role_was_not_there_for_an_offer(pulled: Yard) -> None:
    from interlock.service import supervising

    (run,) = offered(pulled, {"role": "writer"})
    for role, count in (("reviewer", 1), ("writer", 2)):
        pulled.now += pulled.settings.leases.claim_timeout_ms
        pulled.do(lambda tx, ctx, role=role: tx.put_puller(puller(role=role), ctx.now_ms))
        pulled.do(supervising.reap, 10)
        assert pulled.get(run).dispatch_count == count
