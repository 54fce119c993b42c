"""What the holder of a claim does, and what it tries to do when its claim is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from interlock.decide.outcome import Outcome, OutcomeKind, decide
from interlock.domain.errors import InvalidInput, StaleClaim
from interlock.domain.run import Claim, ProcessIdentity, Usage
from interlock.domain.states import Reason
from interlock.service import claims
from interlock.testing.beside import values
from interlock.testing.beside.drawing import PICK, mostly, step
from interlock.testing.promises import must

if TYPE_CHECKING:
    from interlock.testing.beside.beside import Beside

DISTORTIONS = mostly("", "old", "holder", "fence")
ENDS = mostly(
    "completed",
    "failed",
    "failed",
    "permanent",
    "deferred",
    "deferred_long",
    "blocked",
    "lost",
    "returned",
    "cannot_start",
)


def _any_claim(beside: Beside) -> object:
    return beside.claims


def _is_live(beside: Beside, claim: Claim) -> bool:
    run = beside.world.runs.get(claim.run)
    return run is not None and run.live and run.fence == claim.fence and run.holder == claim.holder


def _a_claim(beside: Beside, pick: int, distortion: str) -> tuple[Claim, bool]:
    """A claim and whether it is the live one. Mostly a live one."""
    live = [claim for claim in beside.claims if _is_live(beside, claim)]
    # Those that work already come twice.
    live += [claim for claim in live if beside.world.runs[claim.run].state == "running"]
    chosen = live if live and distortion != "old" else beside.claims
    claim = chosen[pick % len(chosen)]
    fields = {name: getattr(claim, name) for name in claim.__struct_fields__}
    if distortion == "holder":
        claim = Claim(**{**fields, "holder": "somebody else"})
    elif distortion == "fence":
        claim = Claim(**{**fields, "fence": claim.fence + (-1 if pick % 2 else 1)})
    is_live = _is_live(beside, claim)
    if not is_live:
        beside.explored.count("faults", "write under a claim that is over")
    return claim, is_live


def _under(claim: Claim) -> str:
    return f"#{claim.run} under {claim.holder}, fence {claim.fence}"


@step(weight=8, when=_any_claim, pick=PICK, distortion=DISTORTIONS)
def start(beside: Beside, *, pick: int, distortion: str) -> None:
    """An agent is confirmed to be working."""
    claim, live = _a_claim(beside, pick, distortion)
    process = ProcessIdentity(boot_id="b", pid_namespace="n", pid=1, start_ticks=2)
    beside.tell(f"start {_under(claim)}")
    arguments = (claims.start, claim.run, claim.holder, claim.fence, process)
    if not live:
        with beside.refused(StaleClaim):
            beside.write(*arguments)
        return
    beside.write(*arguments)
    run = beside.world.runs[claim.run]
    if run.state == "running":
        beside.unchanged()
    run.state, run.misfires = "running", 0


@step(weight=4, when=_any_claim, pick=PICK, distortion=DISTORTIONS, lease=mostly(None, 90_000, -5))
def renew(beside: Beside, *, pick: int, distortion: str, lease: int | None) -> None:
    """A heartbeat."""
    claim, live = _a_claim(beside, pick, distortion)
    beside.tell(f"renew {_under(claim)}" + (f", for {lease} ms" if lease is not None else ""))
    arguments = (claims.renew, claim.run, claim.holder, claim.fence, lease)
    if not live or lease == -5:
        with beside.refused(InvalidInput if lease == -5 else StaleClaim):
            beside.write(*arguments)
        return
    beat = beside.write(*arguments)
    run, rules = beside.world.runs[claim.run], beside.world.rules
    if run.remote:
        run.state, run.misfires = "running", 0
    must(beat.go_on == (run.stop is None), f"the answer is go_on={beat.go_on}, and the stop intent is {run.stop}")
    must(beat.go_on or beat.reason, "an agent is told to stop and not why")
    if run.stop is None:
        run.lease = beside.now + (lease or (rules.remote_lease if run.remote else rules.local_lease))
    must(beat.lease_expires_ms == run.lease, f"it answers a lease until {beat.lease_expires_ms}, should be {run.lease}")


@step(weight=2, owner=("o1", "o2"))
def renew_owned(beside: Beside, *, owner: str) -> None:
    """A dispatcher renews all that is its own."""
    beside.tell(f"{owner} renews its claims")
    mine = [run for run in beside.world.runs.values() if run.live and run.owner == owner]
    renewed = beside.write(claims.renew_owned, owner)
    must(renewed == len(mine), f"{renewed} were renewed, and it has {len(mine)}")
    for run in mine:
        run.lease = beside.now + beside.world.rules.local_lease


@step(weight=2, when=_any_claim, pick=PICK, distortion=DISTORTIONS, tokens=range(6))
def report_usage(beside: Beside, *, pick: int, distortion: str, tokens: int) -> None:
    """An agent says what it used."""
    claim, live = _a_claim(beside, pick, distortion)
    beside.tell(f"report {tokens} tokens for {_under(claim)}")
    arguments = (claims.report_usage, claim.run, claim.holder, claim.fence, Usage(input_tokens=tokens))
    if live:
        beside.write(*arguments)
        return
    with beside.refused(StaleClaim):
        beside.write(*arguments)


@step(
    weight=16,
    when=_any_claim,
    pick=PICK,
    distortion=DISTORTIONS,
    end=ENDS,
    doubled=[False, True],
    words=["so it is", ""],
)
def end(beside: Beside, *, pick: int, distortion: str, end: str, doubled: bool, words: str) -> None:
    """A holder ends its claim, once or twice."""
    claim, live = _a_claim(beside, pick, distortion)
    kind = OutcomeKind({"permanent": "failed", "deferred_long": "deferred"}.get(end, end))
    outcome = Outcome(
        kind=kind,
        reason=Reason.AGENT_FAILED,
        message=words,
        permanent=end == "permanent",
        delay_ms=3 * values.MINUTE if end == "deferred_long" else None,
    )
    run = beside.world.runs.get(claim.run)
    beside.tell(f"end {_under(claim)}: {end.replace('_', ' ')}")
    arguments: tuple[Any, ...] = (claims.finish, claim.run, claim.holder, claim.fence, outcome)
    if not live:
        past = None if run is None else run.attempts.get(claim.fence)
        if past is not None and past.holder == claim.holder and past.asked == kind:
            beside.write(*arguments)
            beside.unchanged()
            return
        with beside.refused(StaleClaim):
            beside.write(*arguments)
        return
    must(run is not None, "a live claim has its run")
    assert run is not None
    beside.write(*arguments)
    beside.world.end_attempt(run, str(kind), permanent=outcome.permanent, delay=outcome.delay_ms)
    if kind is OutcomeKind.LOST:
        beside.explored.count("faults", "agent gone without a trace")
    if doubled:
        beside.explored.count("faults", "ending said twice")
        beside.write(*arguments)
        beside.unchanged()


@step(weight=6, when=lambda beside: any(run.live and run.stop for run in beside.world.runs.values()), pick=PICK)
def stopped_tree_is_gone(beside: Beside, *, pick: int) -> None:
    """What the actor of a local run does once its agent is stopped; a remote agent acknowledges."""
    stopping = [run for run in beside.world.runs.values() if run.live and run.stop]
    run = stopping[pick % len(stopping)]
    assert run.stop is not None
    outcome = decide(stop=beside.stored(run.number).stop, exit_status=143, result=None, result_fault=None, tail="")
    beside.tell(f"the agent of #{run.number} is gone, having been stopped ({outcome.kind})")
    beside.write(claims.finish, run.number, run.holder, run.fence, outcome)
    late = run.stop == ("timeout", "deadline")
    beside.world.end_attempt(run, values.STOP_MEANS[run.stop[0]], deadline=late)
