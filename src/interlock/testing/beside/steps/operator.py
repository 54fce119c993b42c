"""What an operator does: stop, answer, pause, routes, another configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from interlock.domain.errors import Conflict, IllegalTransition, InvalidInput, NotFound
from interlock.domain.run import Route
from interlock.domain.settings import Limits, Settings
from interlock.domain.states import StopKind
from interlock.service import filing, operating, supervising
from interlock.testing.beside import values
from interlock.testing.beside.configuration import CONFIGURATION, drawn_settings, rules_of
from interlock.testing.beside.desk import ALL
from interlock.testing.beside.drawing import PICK, any_run, mostly, step
from interlock.testing.promises import must

if TYPE_CHECKING:
    from interlock.testing.beside.beside import Beside

REASONS = {
    "cancel": "operator",
    "close": "external_completion",
    "interrupt": "interrupted",
    "stall": "stalled",
}


@step(
    weight=5,
    when=any_run,
    pick=PICK,
    how=["cancel", "close", "interrupt", "stall"],
    words=mostly("why not", "  "),
)
def stop(beside: Beside, *, pick: int, how: str, words: str) -> None:
    """A run is to end, or its agent is."""
    run = beside.a_run(pick, *([] if pick % 4 == 0 else ["claimed", "running", "blocked", "dispatched"]))
    beside.tell(f"{how} #{run.number}")
    if run.ended and how in ("cancel", "close"):
        with beside.refused(Conflict):
            beside.on(run, getattr(operating, how), message=words, by="operator")
        return
    if how == "stall":
        beside.on(run, supervising.request_stop, StopKind.STALL, reason="stalled", message=words, by="system")
    else:
        beside.on(run, getattr(operating, how), message=words, by="operator")
    if run.live:
        _intend(beside, run, how)
    elif how in ("cancel", "close") and not run.ended:
        beside.world.finish(run, "cancelled" if how == "cancel" else "completed")
    else:
        beside.unchanged()


def _intend(beside: Beside, run: values.Run, how: str) -> None:
    """The first intent stands; a cancel or close behind another one is kept beside it."""
    if run.stop is None:
        run.stop = (how, REASONS[how])
    elif how in ("cancel", "close") and run.stop[0] not in ("cancel", "close") and run.then is None:
        run.then = how
    else:
        beside.unchanged()


@step(weight=2, when=any_run, pick=PICK)
def forget_process(beside: Beside, *, pick: int) -> None:
    """An operator vouches that an agent is gone."""
    run = beside.a_run(pick, *values.HELD)
    beside.tell(f"the operator says that the agent of #{run.number} is gone")
    beside.on(run, supervising.forget_process, by="operator")
    if not run.live:
        beside.unchanged()
    elif run.stop is not None:
        late = run.stop == ("timeout", "deadline")
        beside.world.end_attempt(run, values.STOP_MEANS[run.stop[0]], deadline=late)
    else:
        beside.world.end_attempt(run, "lost")


@step(
    weight=5,
    when=lambda beside: any(run.state == "blocked" for run in beside.world.runs.values()),
    pick=PICK,
    words=mostly("yes", " "),
)
def answer(beside: Beside, *, pick: int, words: str) -> None:
    """A question is answered."""
    run = beside.a_run(pick, *([] if pick % 4 == 0 else ["blocked"]))
    beside.tell(f"answer #{run.number}: {words!r}")
    if not words.strip() or run.state != "blocked":
        with beside.refused(InvalidInput, IllegalTransition):
            beside.on(run, operating.answer, words)
        return
    beside.on(run, operating.answer, words)
    beside.world.enqueue(run)


@step(weight=9, when=lambda beside: beside.world.paused)
def resume(beside: Beside) -> None:
    """Dispatching goes on."""
    beside.tell("resume")
    must(beside.write(lambda tx, _: operating.resume(tx)), "it was paused, and resuming says that it was not")
    must(not beside.write(lambda tx, _: operating.resume(tx)), "it was not paused, and resuming says that it was")
    beside.world.paused = False


@step(weight=1)
def pause(beside: Beside) -> None:
    """Dispatching is paused: open offers go back to the queue."""
    beside.tell("pause")
    beside.write(operating.pause)
    if not beside.world.paused:
        for run in list(beside.world.runs.values()):
            if run.state == "dispatched":
                beside.world.withdraw(run)
    beside.world.paused = True


@step(
    weight=2,
    when=lambda beside: beside.names.types,
    type_=lambda beside: beside.names.types,
    route=lambda beside: {
        "agent": list(dict.fromkeys(beside.names.agents)),
        "priority": range(-1, 3),
        "cap": [None, None, 0, 1],
        "minutes": [None, 5],
    },
    gone=[False, False, True],
)
def set_route(beside: Beside, *, type_: str, route: dict[str, Any], gone: bool) -> None:
    """A route is set, changed or removed."""
    routes = beside.world.routes
    if gone:
        beside.tell(f"remove the route of {type_}")
        if type_ not in routes:
            with beside.refused(NotFound):
                beside.write(lambda tx, _: operating.delete_route(tx, type_))
            return
        beside.write(lambda tx, _: operating.delete_route(tx, type_))
        del routes[type_]
        return
    made = values.RouteRule(**route)
    beside.tell(f"route {type_} to {made.agent}, priority {made.priority}, at most {made.cap}, {made.minutes} minutes")
    beside.write(
        operating.put_route,
        Route(
            workflow_type=type_,
            agent_id=made.agent,
            priority=made.priority,
            max_concurrent=made.cap,
            timeout_minutes=made.minutes,
        ),
    )
    routes[type_] = made


@step(
    weight=1,
    when=lambda beside: beside.names.defined,
    agent=lambda beside: beside.names.defined,
    broken=mostly(False, True, True),
)
def agent_health(beside: Beside, *, agent: str, broken: bool) -> None:
    """An agent cannot be started, or can again."""
    beside.tell(f"{agent} {'cannot be started' if broken else 'can be started'}")
    if not broken:
        beside.write(lambda tx, _: operating.agent_started(tx, agent))
        beside.world.unavailable.pop(agent, None)
        return
    beside.explored.count("faults", "agent cannot be started")
    health = beside.write(operating.agent_cannot_start, agent, "command not found")
    if beside.world.unavailable.get(agent, 0) > beside.now:
        beside.unchanged()
    else:
        wait = health.retry_ms - beside.now
        must(2500 <= wait <= 300_000, f"it is tried again after {wait} ms")
    beside.world.unavailable[agent] = health.retry_ms


@step(weight=1, when=lambda beside: not beside.fixed, rules=CONFIGURATION, rekey=[False, True])
def new_configuration(beside: Beside, *, rules: dict[str, Any], rekey: bool) -> None:
    """The daemon is restarted with another configuration; queued runs are filed anew at once, or not yet."""
    beside.desk.reopen()
    beside.settings = drawn_settings(rules)
    new = beside.world.rules = rules_of(beside.settings)
    beside.tell(f"restart with another configuration{'' if rekey else ', lanes as they were'}: {new.in_words()}")
    if not rekey:
        # Nothing was stored about lanes so far: then they follow whoever files.
        beside.rekeyed = beside.world.lanes_by == new.speaks_of and beside.rekeyed
        if beside.desk.read(lambda tx: tx.meta(filing.LIMITED_META)) is None:
            context = beside.context(_speaking_of(beside.world.lanes_by))
            beside.write(lambda tx, _: filing.begin_rekeying(tx, context))
            beside.write(lambda tx, ctx: filing.rekey(tx, ctx, 0, ALL))
        return
    after = beside.write(filing.begin_rekeying)
    while after is not None:
        after = beside.write(filing.rekey, after, 2)
    beside.rekeyed = True
    beside.world.lanes_by = new.speaks_of


def _speaking_of(named: tuple[frozenset[str], ...]) -> Settings:
    """Settings whose limits speak of these values."""
    projects, trackers, tags = (dict.fromkeys(sorted(names), 1) for names in named)
    return Settings(limits=Limits(per_project=projects, per_tracker=trackers, per_tag=tags))
