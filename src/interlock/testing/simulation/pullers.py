"""Agents from outside: they come for offers, claim them, send heartbeats, and end their claims. Or twice, or too late, or never."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from interlock.domain.errors import InterlockError, StaleClaim, Unavailable
from interlock.domain.run import Claim
from interlock.domain.states import HELD_BY_AGENT
from interlock.service import Service
from interlock.testing.simulation.chances import chance_of
from interlock.testing.simulation.people import People
from interlock.testing.simulation.scenario import Conduct, Plan
from interlock.testing.simulation.world import World

ROUND_SECONDS = (5.0, 60.0)
AGAIN_SECONDS = 3.0
SLACK_SECONDS = 10.0
"""Two steps of the wall clock that are too small to be followed, and the time that a call takes."""


class Puller:
    """An agent from outside. ``agent``: under which name it comes; None takes whatever is offered."""

    def __init__(self, world: World, people: People, number: int, agent: str | None) -> None:
        self.holder = f"remote-{number}"
        self._agent = agent
        self._world = world
        self._people = people
        self._chance = chance_of(world.scenario.seed, self.holder)
        self._requests = 0
        self._sure_until = 0.0
        leases = world.scenario.settings.leases
        self._lease_seconds = leases.remote_ms / 1000
        self._lapse_seconds = (leases.remote_ms + leases.grace_ms) / 1000

    @property
    def _service(self) -> Service:
        return self._people.api

    async def work(self) -> None:
        """Round after round."""
        while True:
            await trio.sleep(self._chance.uniform(*ROUND_SECONDS))
            try:
                claim = await self._come_for_work()
                if claim is not None:
                    await self._serve(claim, self._world.plan_of(claim.run, claim.fence))
            except Unavailable:
                continue
            except InterlockError as error:
                self._world.watcher.tell(f"{self.holder} is refused: {error.message}")

    async def _come_for_work(self) -> Claim | None:
        offers = await self._service.offers(holder=self.holder, agent=self._agent)
        self._world.watcher.came_ms = self._world.machine.elapsed_ms()
        if not offers:
            return None
        offer = offers[self._chance.randrange(min(3, len(offers)))]
        self._requests += 1
        request = f"{self.holder}.{self._requests}"
        # Its answer may take its time, and the offer is another's then.
        await trio.sleep(self._chance.choice((0, 0, 0.01, 90)))
        self._sure_until = 0.0
        claim = await self._claim(offer.number, request, offer.dispatch_count)
        if self._chance.random() < 0.1:
            # The answer was lost: asked again, it is the same claim.
            again = await self._claim(offer.number, request, offer.dispatch_count)
            if (again.fence, again.holder) != (claim.fence, claim.holder):
                what = f"request {request} was given fence {claim.fence}, and then {again.fence}"
                self._world.broken("same_request_same_claim", what, claim.run)
        return claim

    async def _claim(self, number: int, request: str, offer: int) -> Claim:
        return await self._service.claim(number, holder=self.holder, agent=self._agent, request_id=request, offer=offer)

    async def _serve(self, claim: Claim, plan: Plan) -> None:
        if plan.conduct is Conduct.VANISH:
            await self._vanish(claim, plan)
            return
        left = float("inf") if plan.conduct is Conduct.HANG else plan.ms / 1000
        while True:
            beat = await self._heartbeat(claim)
            if beat:
                self._sure_until = trio.current_time() + self._lease_seconds - SLACK_SECONDS
            elif not plan.deaf:
                # Told to stop: it acknowledges, and the intent decides what that means.
                await self._end(claim, lambda: self._service.fail(claim, "stopped"))
                return
            if not left:
                break
            step = min(left, self._lease_seconds / 3)
            await trio.sleep(step)
            left -= step
        await self._end(claim, lambda: self._say(claim, plan.conduct))
        if plan.quiet:
            self._sure_until = 0.0
            await self._say(claim, plan.conduct)

    async def _heartbeat(self, claim: Claim) -> bool:
        while True:
            was_live = self._is_live(claim)
            try:
                beat = await self._service.renew(claim)
            except Unavailable:
                await trio.sleep(AGAIN_SECONDS)
                continue
            except StaleClaim:
                self._check_lease(claim)
                raise
            self._check_live(claim, was_live=was_live)
            return beat.go_on

    def _check_live(self, claim: Claim, *, was_live: bool) -> None:
        if not was_live:
            what = f"{self.holder} was heard under fence {claim.fence}, which was not the live claim any more"
            self._world.broken("stale_claims_change_nothing", what, claim.run)

    def _check_lease(self, claim: Claim) -> None:
        """Nobody but its holder ends a claim within its lease, whatever the clocks do."""
        if trio.current_time() < self._sure_until:
            what = f"{self.holder} kept its lease under fence {claim.fence}, and lost its claim all the same"
            self._world.broken("leases_hold", what, claim.run)

    async def _vanish(self, claim: Claim, plan: Plan) -> None:
        """Not a word until the lease has long run out; then it comes back and says that it is done."""
        if plan.ms % 2:
            await self._heartbeat(claim)
        await trio.sleep(3 * self._lapse_seconds)
        if plan.ms % 3:
            await self._heartbeat(claim)
        await self._end(claim, lambda: self._say(claim, Conduct.DONE))

    async def _say(self, claim: Claim, conduct: Conduct) -> object:
        service = self._service
        match conduct:
            case Conduct.FAIL:
                return await service.fail(claim, "it did not work")
            case Conduct.FAIL_FOR_GOOD:
                return await service.fail(claim, "this can not be done", permanent=True)
            case Conduct.DEFER:
                return await service.defer(claim, "not now")
            case Conduct.ASK:
                return await service.block(claim, "which one?")
            case Conduct.BABBLE:
                return await service.release(claim)
            case _:
                return await service.complete(claim)

    async def _end(self, claim: Claim, act: Callable[[], Awaitable[object]]) -> None:
        """End a claim. What counts is whether it is the live one, in both directions."""
        while True:
            was_live = self._is_live(claim)
            try:
                await act()
            except Unavailable:
                await trio.sleep(AGAIN_SECONDS)
                continue
            except StaleClaim:
                if self._is_live(claim):
                    what = f"{self.holder} was refused under fence {claim.fence}, which is the live claim"
                    self._world.broken("a_live_claim_is_heard", what, claim.run)
                self._check_lease(claim)
                raise
            self._check_live(claim, was_live=was_live)
            return

    def _is_live(self, claim: Claim) -> bool:
        run = self._world.watcher.runs.get(claim.run)
        return run is not None and run.state in HELD_BY_AGENT and run.fence == claim.fence
