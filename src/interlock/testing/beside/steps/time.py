"""Time passes, processes come and go, and somebody tries what the machine does not allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.domain.errors import IllegalTransition
from interlock.domain.states import RunEvent
from interlock.machines.table import RUN
from interlock.service import supervising
from interlock.service.moves import move
from interlock.testing.beside import values
from interlock.testing.beside.desk import ALL
from interlock.testing.beside.drawing import PICK, any_run, step
from interlock.testing.promises import Broken, must

if TYPE_CHECKING:
    from interlock.testing.beside.beside import Beside

EPOCH = ("boot", 0)
SPANS = [
    "due",
    "due",
    "almost",
    1,
    1000,
    12_000,
    30_000,
    61_000,
    5 * values.MINUTE + 1,
    16 * values.MINUTE,
    45 * values.MINUTE,
]


def _length(beside: Beside, span: int | str) -> int:
    """A number of milliseconds; ``due``: up to the next moment at which something is due, ``almost``: up to the one before."""
    if isinstance(span, int):
        return span
    world = beside.world
    dues = [due for run in world.runs.values() if (due := world.due(run)) is not None and due > beside.now]
    return (min(dues) if dues else beside.now + 1) - beside.now - (span == "almost")


def _pass(beside: Beside, span: int | str) -> int:
    length = _length(beside, span)
    beside.world.now += length
    return length


@step(weight=4, span=SPANS)
def time_passes(beside: Beside, *, span: int | str) -> None:
    """Nothing happens for a while."""
    beside.tell(f"{_pass(beside, span)} ms pass")


@step(weight=6, span=SPANS)
def reap(beside: Beside, *, span: int | str) -> None:
    """Time passes, and the reaper looks at what is due."""
    beside.tell(f"{_pass(beside, span)} ms pass, and the reaper looks")
    # An end may bring the next one: a lapsed claim is offered again, and its deadline has passed as well.
    for _ in range(4):
        reaped = beside.write(supervising.reap, ALL)
        if reaped:
            beside.add(": " + ", ".join(f"#{one.run.number} {one.due.kind}" for one in reaped))
        for one in reaped:
            if one.due.kind == "lapse":
                beside.explored.count("faults", "lease that ran out")
        beside.world.reap()
        if not reaped:
            break
    else:
        raise Broken("the reaper would spin: a fourth look in a row at the same moment found something")
    ready = [number for number in beside.world.runs if beside.stored(number).ready]
    wanted = [run.number for run in beside.world.runs.values() if beside.world.is_ready(run)]
    must(sorted(ready) == sorted(wanted), f"after the reaper {ready} are ready, and should be {wanted}")


@step(weight=1)
def restart(beside: Beside) -> None:
    """The store is closed and opened again."""
    beside.tell("the store is closed and opened again")
    beside.explored.count("faults", "restart")
    beside.desk.reopen()


@step(weight=1, span=SPANS)
def downtime(beside: Beside, *, span: int | str) -> None:
    """Time in which no dispatcher was awake counts against nobody."""
    length = _length(beside, span)
    beside.tell(f"the dispatcher is down for {length} ms")
    beside.explored.count("faults", "downtime")
    beside.write(supervising.catch_up, epoch=EPOCH, threshold_ms=0)
    beside.world.catch_up()
    beside.world.now += length
    beside.desk.reopen()
    shifted = beside.write(supervising.catch_up, epoch=EPOCH, threshold_ms=0)
    must(shifted == length, f"deadlines were moved on by {shifted} ms, and it was down for {length}")
    beside.world.catch_up()


@step(weight=3, when=any_run, pick=PICK, old=("o1", "o2"), new=("o1", "o2"))
def adopt(beside: Beside, *, pick: int, old: str, new: str) -> None:
    """A dispatcher takes a run over from one that is gone."""
    run = beside.a_run(pick, *values.HELD)
    if pick % 3 and run.owner is not None:
        old = run.owner
    beside.tell(f"{new} takes #{run.number} over from {old}")
    adopted = beside.write(supervising.adopt, run.number, old_owner=old, new_owner=new)
    if not run.live or run.remote or run.owner != old:
        must(adopted is None, f"{new} was given #{run.number}, which {old} does not have")
        beside.unchanged()
        return
    beside.explored.count("faults", "takeover by another dispatcher")
    run.owner, run.epoch = new, run.epoch + 1
    run.lease = beside.now + beside.world.rules.local_lease


@step(
    weight=2,
    when=any_run,
    pick=PICK,
    event=[event for event in RunEvent if event is not RunEvent.SUBMIT],
)
def illegal_move(beside: Beside, *, pick: int, event: RunEvent) -> None:
    """Somebody asks for a move that the machine does not have."""
    run = beside.a_run(pick)
    if (run.state, event) in {(str(state), name) for state, name in RUN.moves}:
        beside.tell(f"nothing: #{run.number}, which is {run.state}, could {event}")
        return
    beside.tell(f"let #{run.number}, which is {run.state}, {event}")
    beside.explored.count("faults", "move that the machine does not have")
    with beside.refused(IllegalTransition):
        beside.on(run, move, event, by="nobody")
