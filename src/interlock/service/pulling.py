"""Agents from outside that come for offers: what there is for one, and the next one claimed for it."""

from __future__ import annotations

from collections.abc import Iterator

from interlock.domain.errors import Conflict, InvalidInput, StaleClaim
from interlock.domain.puller import Puller
from interlock.domain.run import Run
from interlock.ports.store import Tx
from interlock.service.claims import claim_offered
from interlock.service.context import Context

FIRST_LOOK = 2
NAME_LIMIT = 200


def look(tx: Tx, ctx: Context, puller: Puller, limit: int) -> list[Run]:
    """Up to ``limit`` offers that ``puller`` may claim, the most urgent first. Asking is a sign that it is there to take them."""
    _check(puller)
    tx.put_puller(puller, ctx.now_ms)
    found: list[Run] = []
    for run in _offers_for(tx, puller):
        if len(found) == limit:
            break
        found.append(run)
    return found


def claim_next(
    tx: Tx, ctx: Context, puller: Puller, *, request_id: str | None = None, lease_ms: int | None = None
) -> Run | None:
    """Claim the most urgent offer that ``puller`` takes: the run under its claim; None when there is none. The same ``request_id``
    again gets the same claim.

    Raises StaleClaim for a request whose claim is over.
    """
    _check(puller)
    tx.put_puller(puller, ctx.now_ms)
    if request_id is not None and (made := tx.claimed_by_request(request_id, puller.holder)) is not None:
        run = tx.run(made.run)
        if run is not None and made.ended_ms is None and run.fence == made.fence:
            return run
        raise StaleClaim(
            f"request {request_id} has had its claim on #{made.run}",
            hint="ask for the next offer with a new request id",
        )
    for run in _offers_for(tx, puller):
        try:
            return claim_offered(
                tx,
                ctx,
                run,
                holder=puller.holder,
                agent=puller.agent,
                request_id=request_id,
                lease_ms=lease_ms,
            )
        except Conflict:
            # Dispatching is paused, or this agent has all the runs that it may have: perhaps another offer.
            continue
    return None


def _offers_for(tx: Tx, puller: Puller) -> Iterator[Run]:
    seen: set[int] = set()
    limit = FIRST_LOOK
    while True:
        # There are never more than the global limit lets be active.
        page = tx.offers(pull=True, limit=limit)
        for run in page:
            if run.number not in seen:
                seen.add(run.number)
                if puller.takes(run):
                    yield run
        if len(page) < limit:
            return
        limit *= 8


def _check(puller: Puller) -> None:
    for what, value in (
        ("the session", puller.holder),
        ("agent_id", puller.agent),
        ("role", puller.role),
        *(("a type", t) for t in puller.types),
    ):
        if value is not None and not 0 < len(value) <= NAME_LIMIT:
            raise InvalidInput(f"{what} is empty or longer than {NAME_LIMIT} characters", hint="give it a short name")
