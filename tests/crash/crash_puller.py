"""An agent from outside, through the service: crash_puller.py DATA NAME SEED SECONDS LEASE_MS [stop]

Takes offers one after the other, works on each for about so many seconds, and renews its lease meanwhile. With ``stop`` it
stands still (SIGSTOP) as soon as it has begun the first one. It says ``claimed ID FENCE``, ``completed ID FENCE`` once that
was acknowledged, and ``refused ID FENCE CODE`` when it was not; before it asks, ``try ID FENCE``.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from random import Random

import trio
from crash_client import open_service, say

from interlock.domain.errors import InterlockError, Unavailable
from interlock.domain.run import Claim, Run
from interlock.service import Service


class Puller:
    """One agent from outside."""

    def __init__(self, service: Service, name: str, rng: Random, seconds: float, lease_ms: int) -> None:
        self.service = service
        self.name = name
        self.rng = rng
        self.seconds = seconds
        self.lease_ms = lease_ms

    async def claim(self, run: Run) -> Claim | None:
        """Claim an offer; asked twice, as an agent does whose answer was lost: it is the same claim."""
        request = uuid.uuid4().hex
        with suppress(InterlockError):
            first = await self.service.claim(
                run,
                holder=self.name,
                agent=self.name,
                request_id=request,
                lease_ms=self.lease_ms,
                offer=run.dispatch_count,
            )
            if self.rng.random() < 0.5:
                again = await self.service.claim(run, holder=self.name, agent=self.name, request_id=request)
                assert (again.run, again.fence) == (first.run, first.fence), "the same request got another claim"
            return first
        return None

    async def work(self, claim: Claim, *, stand_still: bool) -> None:
        """See one claim through."""
        who = (claim.run_id, str(claim.fence))
        say("claimed", *who)
        try:
            heartbeat = await self.service.renew(claim, self.lease_ms)
            ends = trio.current_time() + self.rng.uniform(0.5, 1.5) * self.seconds
            if stand_still:
                os.kill(os.getpid(), signal.SIGSTOP)
                # It knows nothing of the time that went by: what it has done it brings.
                ends = trio.current_time()
            while heartbeat.go_on and trio.current_time() < ends:
                await trio.sleep(min(self.seconds, self.lease_ms / 3000))
                heartbeat = await self.service.renew(claim, self.lease_ms)
            say("try", *who)
            await self.service.complete(claim, result={"by": self.name, "fence": claim.fence})
            # A lost answer is asked for again, and is the same.
            await self.service.complete(claim, result={"by": self.name, "fence": claim.fence})
            say("completed", *who)
        except InterlockError as error:
            say("refused", *who, error.code)

    async def run(self, *, stand_still: bool) -> None:
        """Until the process is killed."""
        while True:
            with suppress(Unavailable):
                for run in await self.service.offers(holder=self.name, agent=self.name, limit=2):
                    if (claim := await self.claim(run)) is not None:
                        await self.work(claim, stand_still=stand_still)
                        stand_still = False
            await trio.sleep(0.03)


async def main() -> None:
    """Forever."""
    data, name, seed, seconds, lease_ms, *stop = sys.argv[1:]
    _, service = open_service(Path(data))
    await Puller(service, name, Random(int(seed)), float(seconds), int(lease_ms)).run(stand_still=bool(stop))


if __name__ == "__main__":
    trio.run(main)
