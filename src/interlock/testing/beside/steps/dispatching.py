"""Runs are admitted: a dispatcher starts or offers them, agents from outside look for offers and claim them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from interlock.domain.errors import (
    AlreadyClaimed,
    Conflict,
    IllegalTransition,
    InterlockError,
    InvalidInput,
    StaleClaim,
)
from interlock.domain.puller import Puller
from interlock.service import claims, dispatching
from interlock.testing.beside import values
from interlock.testing.beside.drawing import PICK, any_run, mostly, step
from interlock.testing.promises import Broken, must

if TYPE_CHECKING:
    from interlock.testing.beside.beside import Beside

HOLDERS = ["h1", "h2"]


@step(
    weight=16,
    when=any_run,
    owner=("o1", "o2"),
    scope=[None, None, None, None, None, "B"],
    bound=lambda beside: [1, 2, 3, 4, *([64, 64] if beside.fixed else [])],
)
def dispatch(beside: Beside, *, owner: str, scope: str | None, bound: int) -> None:
    """A round of dispatching."""
    stored = beside.desk.read(lambda tx: [tx.run(number) for number in beside.world.runs])
    ready = [run.number for run in stored if run is not None and run.ready]
    beside.tell(f"dispatch by {owner}, up to {bound}" + (f", of batch {scope}" if scope else ""))
    done = beside.write(dispatching.dispatch, owner=owner, scope=scope, bound=bound)
    offered = [run.number for run in done.offered]
    claimed = [run.number for run, _ in done.claimed]
    beside.add(f": started {claimed}, offered {offered}" + (", not yet done" if done.more else ""))
    if not beside.rekeyed:
        _follow(beside, claimed, offered, owner, scope, done)
    else:
        taken, more = beside.world.dispatch(ready, owner=owner, scope=scope, bound=bound)
        # Runs that still had their slots are claimed here even when new ones are only offered.
        if claimed + offered != taken:
            raise Broken(_otherwise(beside, claimed + offered, taken))
        must(done.more == more, f"it says that it is{' not' if done.more else ''} done, and it is the other way")
    for run, agent in done.claimed:
        must(run.agent == agent.name, f"#{run.number} is for {run.agent} and was handed to {agent.name}")
        beside.claims.append(claims.claim_of(run))
    for number in claimed + offered:
        run = beside.world.runs[number]
        if run.type in beside.world.routes:
            beside.explored.count("routes", f"{run.type} -> {run.agent}")


def _otherwise(beside: Beside, started: list[int], wanted: list[int]) -> str:
    """What is wrong with a round that started others than it should have."""
    world = beside.world
    words = f"it started {started or 'nothing'} and should have started {wanted or 'nothing'}"
    if wanted[: len(started)] == started and len(wanted) > len(started):
        return f"{words}: #{wanted[len(started)]} is ready and every limit has room for it"
    used, caps = world.used(), world.caps()
    for number in started:
        run = world.runs[number]
        if number not in wanted:
            keys = sorted(world.keys(run, world.agent_for(run)))
            full = [f"{key} allows {caps[key]} at once" for key in keys if key in caps and used[key] >= caps[key]]
            return f"{words}: #{number} may not start" + (f", since {', '.join(full)}" if full else "")
    return words


def _follow(
    beside: Beside,
    claimed: list[int],
    offered: list[int],
    owner: str,
    scope: str | None,
    done: dispatching.Dispatched,
) -> None:
    """Lanes still follow other limits: no limit may be passed; the order is the lanes' own affair until they are filed anew."""
    world = beside.world
    if not world.paused and not world.rules.pull and world.rules.enabled:
        for run in list(world.runs.values()):
            if run.state == "dispatched" and run.pull and scope in (None, run.batch):
                world.enqueue(run)
    kept = [n for n in claimed if world.runs[n].state == "dispatched"]
    for run in list(world.runs.values()):
        unclaimed = run.state == "dispatched" and not run.pull and run.number not in kept
        if unclaimed and str(beside.stored(run.number).state) != "dispatched":
            impossible = world.rules.worker(run.agent) is None or world.unavailable.get(run.agent or "", 0) > beside.now
            must(impossible, f"#{run.number} was withdrawn though its agent can be started")
            world.enqueue(run)
    for number in claimed + offered:
        run = world.runs[number]
        if number in kept:
            world.claim_local(run, owner)
            continue
        must(world.is_ready(run), f"#{number} was started and is not ready")
        must(world.startable(run), f"#{number} was started and may not start")
        world.admit(run)
        if not world.rules.pull:
            world.claim_local(run, owner)
    must(done.more or len(claimed + offered) < 64, "a round that took all that it may says that it is done")


@step(
    weight=4,
    holder=HOLDERS,
    agent=lambda beside: [None, *beside.names.defined],
    types=lambda b: [(), b.names.types[:1]],
)
def look_for_offers(beside: Beside, *, holder: str, agent: str | None, types: tuple[str, ...]) -> None:
    """An agent from outside shows itself."""
    beside.tell(f"{holder} looks for offers as {agent or 'any agent'}" + (f", of type {types[0]}" if types else ""))
    beside.write(lambda tx, ctx: tx.put_puller(Puller(holder=holder, agent=agent, types=types), ctx.now_ms))
    beside.world.pullers[holder] = (agent, types, beside.now)


@step(
    weight=12,
    when=lambda beside: any(run.state in values.ACTIVE for run in beside.world.runs.values()),
    pick=PICK,
    which=["open"] * 6 + ["held", "held", "ours", "any"],
    holder=HOLDERS,
    agent=lambda beside: mostly(None, *beside.names.defined),
    request=[None, "same", "q1", "q2", "q3", "q4", "q5"],
    offer=mostly("any", "this", "old"),
    lease=mostly(None, 60_000, 90_000, 0),
)
def claim(
    beside: Beside,
    *,
    pick: int,
    which: str,
    holder: str,
    agent: str | None,
    request: str | None,
    offer: str,
    lease: int | None,
) -> None:
    """An agent from outside claims a run: one that is offered, mostly."""
    run = _wished(beside, which, pick)
    if request == "same":
        request = run.attempts[run.fence].request if run.attempts else None
    number = {"any": None, "this": run.dispatches, "old": run.dispatches - 1}[offer]
    more = [
        f" {word} {value}"
        for word, value in (("as", agent), ("request", request), ("lease", lease))
        if value is not None
    ]
    beside.tell(f"{holder} claims #{run.number}{''.join(more)}{' by an offer that is over' if offer == 'old' else ''}")
    wanted: dict[str, Any] = {
        "holder": holder,
        "agent": agent,
        "request_id": request,
        "offer": number,
        "lease_ms": lease,
    }
    known = next((a for a in run.attempts.values() if request is not None and a.request == request), None)
    if known is not None and known.asked is None and known.holder == holder and lease != 0:
        made = beside.on(run, claims.claim_offer, **wanted)
        same = (made.fence, made.holder) == (run.fence, holder)
        must(same, f"the same request again got another claim: fence {made.fence} of {made.holder}")
        beside.unchanged()
        beside.explored.count("faults", "claim asked for twice")
        return
    refusals = _refusals(beside, run, known, agent, offer, lease)
    if refusals:
        with beside.refused(*refusals):
            beside.on(run, claims.claim_offer, **wanted)
        return
    if run.agent is None and agent is not None:
        run.slots |= {f"agent:{agent}"}
    made = beside.on(run, claims.claim_offer, **wanted)
    beside.add(f": fence {made.fence}")
    beside.claims.append(made)
    rules = beside.world.rules
    beside.world.claim(run, holder, run.agent or agent, None, request, lease or rules.remote_lease)


def _wished(beside: Beside, which: str, pick: int) -> values.Run:
    runs = beside.world.runs.values()
    fitting = {
        "open": [run for run in runs if run.pull],
        "held": [run for run in runs if run.live],
        "ours": [run for run in runs if run.state == "dispatched" and not run.pull],
    }.get(which)
    return fitting[pick % len(fitting)] if fitting else beside.a_run(pick)


def _refusals(
    beside: Beside, run: values.Run, known: values.Attempt | None, agent: str | None, offer: str, lease: int | None
) -> tuple[type[InterlockError], ...]:
    world = beside.world
    if lease == 0:
        return (InvalidInput,)
    if known is not None:
        return (StaleClaim,)
    if run.live:
        return (AlreadyClaimed,)
    if offer == "old" or (offer == "this" and run.state != "dispatched"):
        return (StaleClaim,)
    if run.state == "dispatched" and world.braked(run):
        return (Conflict,)
    if run.state == "dispatched" and not run.pull:
        return (Conflict,)
    if run.state != "dispatched":
        # What is wrong first does not matter: there is no offer, and it may have been another agent's.
        return (IllegalTransition, InvalidInput)
    if agent is not None and run.agent is not None and agent != run.agent:
        return (InvalidInput,)
    if run.agent is None and agent is not None and not world.has_room(frozenset({f"agent:{agent}"})):
        return (Conflict,)
    return ()
