"""Faults that are put into Interlock on purpose, and the rule that each of them breaks under the seed or story that finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from interlock.actors import run as run_actor
from interlock.decide.outcome import Outcome, OutcomeKind
from interlock.domain.states import Reason, RunEvent
from interlock.service import Service, claims, dispatching, moves, operating, supervising
from interlock.store.sqlite import schema
from interlock.store.sqlite.transaction import SqliteTx

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutation:
    """``found_by``: the seed, with few tasks, or the kept story; ``rules``: any of what it breaks, as chance decides which is
    seen first.
    """

    name: str
    found_by: int | str
    rules: frozenset[str]
    patch: Patch


MUTATIONS: list[Mutation] = []


def mutation(found_by: int | str, *rules: str) -> Callable[[Patch], Patch]:
    def enter(patch: Patch) -> Patch:
        MUTATIONS.append(Mutation(patch.__name__, found_by, frozenset(rules), patch))
        return patch

    return enter


@mutation(1, "somebody_looks_after")
def claims_of_a_dispatcher_that_is_gone_are_left_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(supervising, "adopt", lambda *_, **__: None)


@mutation(1, "leases_are_renewed")
def leases_are_never_renewed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claims, "renew_owned", lambda *_: 0)


@mutation(11, "moved_only_when_gone")
def a_cancelled_run_does_not_wait_for_its_agent(patch: pytest.MonkeyPatch) -> None:
    def cancel(tx: Any, ctx: Any, run: Any, *, by: str = "operator", message: str = "cancelled") -> Any:
        return moves.move(tx, ctx, run, RunEvent.CANCEL, by=by, reason=str(Reason.OPERATOR), message=message)

    patch.setattr(operating, "cancel", cancel)


@mutation(1, "slots_as_needed", "slots_equal_recount")
def the_slots_of_an_ended_run_stay_taken(patch: pytest.MonkeyPatch) -> None:
    without = [statement for statement in schema.trigger_statements() if "DELETE FROM slots" not in statement]
    assert len(without) < len(schema.trigger_statements())
    patch.setattr(schema, "trigger_statements", lambda: without)


@mutation(1, "no_limit_exceeded")
def limits_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dispatching, "saturated", lambda *_: [])


@mutation(1, "outcome_is_the_agents")
def whoever_ends_has_done_its_work(patch: pytest.MonkeyPatch) -> None:
    done = Outcome(kind=OutcomeKind.COMPLETED, reason=Reason.DONE, message="done")
    patch.setattr(run_actor, "decide", lambda **_: done)


@mutation(4, "leases_hold")
def downtime_and_steps_of_the_clock_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(supervising, "_shift", lambda *_, **__: None)


@mutation(1, "everything_ends")
def nobody_tells_dependants(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(moves, "_tell_dependants", lambda *_: None)


@mutation(1, "stops_are_carried_out", "everything_ends")
def nobody_hears_of_a_stop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run_actor.RunActor, "ask_to_stop", lambda *_: None)


@mutation(2, "stale_claims_change_nothing", "legal_moves", "fence_grows_with_claims")
def the_holder_of_a_claim_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    def checked(tx: Any, number: int, holder: str, fence: int) -> Any:
        run = tx.run(number)
        return run, tx.attempt(number, run.fence)

    patch.setattr(claims, "checked", checked)


@mutation(1, "nothing_spins", "deadlines_are_kept")
def nothing_that_is_due_is_done(patch: pytest.MonkeyPatch) -> None:
    async def reap(*_: Any, **__: Any) -> list[Any]:
        await trio.lowlevel.checkpoint()
        return []

    patch.setattr(Service, "reap", reap)


@mutation(6, "offers_wait_for_agents")
def an_offer_expires_whether_anybody_is_there_or_not(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(supervising, "_was_there", lambda *_: True)


@mutation("agents-after-a-boot-set-the-clock-back", "agents_are_tried_again")
@mutation("agents-after-the-clock-was-set-back", "agents_are_tried_again")
def a_clock_that_is_set_leaves_backoffs_as_they_are(patch: pytest.MonkeyPatch) -> None:
    shift = supervising._shift
    patch.setattr(supervising, "_shift", lambda tx, ctx, by, **_: shift(tx, ctx, by, clock_was_set=False))


@mutation("an-agent-that-went-before-the-clock-was-set-back", "offers_wait_for_agents")
def a_clock_that_is_set_leaves_agents_in_the_future(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SqliteTx, "shift_pullers", lambda *_: None)


@mutation("leases-of-a-server-after-the-clock-was-set", "limits_of_time_are_given")
@mutation("no-stall-by-a-suspend", "limits_of_time_are_given")
def time_in_which_nobody_was_awake_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(supervising, "_shift", lambda *_, **__: None)


@mutation("heartbeat-before-the-clock-is-followed", "leases_hold")
def a_refused_command_has_followed_the_clock(patch: pytest.MonkeyPatch) -> None:
    follow = Service._follow_clock

    def follow_for_good(service: Any, tx: Any, *, stepped: bool) -> None:
        follow(service, tx, stepped=stepped)
        service._followed = True

    patch.setattr(Service, "_follow_clock", follow_for_good)
