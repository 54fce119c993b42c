"""The loop of an agent from outside: ask, work, ask again; several at once; until it is told to end."""

from __future__ import annotations

import os
import socket
from collections import deque
from contextlib import suppress
from random import Random

import msgspec
import trio

from interlock.agent.spool import Asked, Spool, Ticket
from interlock.agent.work import Around, Happening, Work
from interlock.client import Request, calls
from interlock.client.calls import new_id
from interlock.domain.crashpoints import crashpoint
from interlock.domain.errors import InterlockError, InvalidInput, StaleClaim
from interlock.wire import Claimed

WAIT_SECONDS = 30.0
SHORTEST_ROUND_SECONDS = 1.0
"""A server that says at once that there is nothing is not asked again at once."""
SETTLE_SECONDS = 3.0
FIRST_REST_SECONDS, LONGEST_REST_SECONDS = 1.0, 60.0


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """As whom an agent comes, and what it takes: see :class:`interlock.domain.puller.Puller`."""

    url: str
    agent_id: str | None = None
    role: str | None = None
    types: tuple[str, ...] = ()


class PullingAgent:
    """Up to ``parallel`` claims at once. ``runs``: it ends by itself after so many, those that it takes up
    from an earlier one included; None: never.
    """

    def __init__(
        self,
        around: Around,
        identity: Identity,
        spool: Spool,
        *,
        parallel: int = 1,
        runs: int | None = None,
        rng: Random,
    ) -> None:
        self._around = around
        self._identity = identity
        self._spool = spool
        self._parallel = parallel
        self._runs_left = runs
        self._rng = rng
        self.session = f"{identity.agent_id or 'agent'}@{socket.gethostname()[:60]}:{os.getpid()}:{new_id()[:6]}"[-200:]
        self._room = trio.Semaphore(parallel)
        self._asked: deque[Ticket] = deque()
        self._asking: set[trio.CancelScope] = set()
        self._works: dict[str, Work] = {}
        self._ending = 0
        self._scope = trio.CancelScope()
        self.left = 0
        """How many claims it has left to the next one."""
        self._rest_seconds = 0.0

    @property
    def working(self) -> int:
        """How many claims it has."""
        return len(self._works)

    def end(self) -> int:
        """Told to end: first what runs is finished, then (told again) it is stopped and given back, then all is left as it is.

        How often it was told.
        """
        self._ending += 1
        for scope in self._asking:
            scope.cancel()
        if self._ending == 2:
            for work in self._works.values():
                work.end()
        elif self._ending > 2:
            self._scope.cancel()
        return self._ending

    async def run(self) -> None:
        """Until it was told to end, and has. Raises Unauthorized for a token that the server does not take, InvalidInput for a
        command that cannot be started, OSError for a spool that cannot be written.
        """
        reason = self._around.runtime.check(self._around.agent, self._around.cwd)
        if reason is not None:
            raise InvalidInput(reason, hint="--exec names the command that does the work")
        with self._scope:
            async with trio.open_nursery() as nursery:
                for ticket in self._spool.left(self._identity.url):
                    self._sort(ticket, nursery)
                for url, count in self._spool.elsewhere.items():
                    what = f"{count} of {url} left in {self._spool.folder}: an agent with --url {url} sees to it"
                    self._warn(what)
                for _ in range(self._parallel):
                    nursery.start_soon(self._slot)
        for ticket in self._asked:
            ticket.close()

    def _sort(self, ticket: Ticket, nursery: trio.Nursery) -> None:
        """Of what an earlier agent left: a claim is taken up, a question is asked again by one who would ask the same."""
        if ticket.taken is not None:
            self._counted()
            work = Work(self._around, ticket)
            self._works[work.taken.run] = work
            nursery.start_soon(self._take_up, work, ticket)
            return
        was, now = ticket.asked, self._identity
        if (was.agent_id, was.role, was.types) == (now.agent_id, now.role, now.types):
            self._asked.append(ticket)
        else:
            ticket.remove()

    async def _take_up(self, work: Work, ticket: Ticket) -> None:
        try:
            self._room.acquire_nowait()
            has_room = True
        except trio.WouldBlock:
            # The earlier one had more at once: they are not to wait.
            has_room = False
        try:
            await work.take_up()
        finally:
            self._part(work, ticket)
            if has_room:
                self._room.release()

    def _part(self, work: Work, ticket: Ticket) -> None:
        del self._works[work.taken.run]
        ticket.close()
        self.left += ticket.folder.exists()

    async def _slot(self) -> None:
        while not self._is_ending():
            async with self._room:
                if self._is_ending() or not self._counted():
                    return
                ticket = await self._next()
                if ticket is not None:
                    await self._work(ticket)

    def _is_ending(self) -> bool:
        return self._ending > 0

    def _counted(self) -> bool:
        if self._runs_left is None:
            return True
        self._runs_left -= 1
        return self._runs_left >= 0

    async def _next(self) -> Ticket | None:
        """A ticket with a claim; None when told to end."""
        with trio.CancelScope() as scope:
            self._asking.add(scope)
            try:
                while True:
                    await self._rest()
                    try:
                        return await self._ask(self._asked.popleft() if self._asked else self._new_ticket())
                    except OSError as error:
                        self._warn(
                            f"{self._spool.folder} cannot be written: {error.strerror}; no run is taken until it can"
                        )
                        self._lengthen_rest()
            finally:
                self._asking.discard(scope)
        return None

    async def _ask(self, ticket: Ticket) -> Ticket:
        """Until a claim is made: its ticket. Raises OSError when it cannot be written down; the run is given back then."""
        try:
            while True:
                began = trio.current_time()
                try:
                    claimed = await self._around.link.send(self._request(ticket.asked, wait=WAIT_SECONDS))
                except StaleClaim:
                    # What an earlier agent asked was answered, and is over.
                    ticket.remove()
                    ticket = self._new_ticket()
                    continue
                if claimed is not None:
                    crashpoint("agent.claimed")
                    ticket.take(claimed)
                    return ticket
                await trio.sleep(max(0.0, SHORTEST_ROUND_SECONDS - (trio.current_time() - began)))
        finally:
            if ticket.taken is None:
                await self._withdraw(ticket)

    def _request(self, asked: Asked, *, wait: float) -> Request[Claimed | None]:
        return calls.claim_next(
            asked.agent_session,
            agent_id=asked.agent_id,
            role=asked.role,
            types=asked.types,
            lease_seconds=self._around.lease_seconds,
            wait=wait,
            request_id=asked.request_id,
        )

    async def _withdraw(self, ticket: Ticket) -> None:
        """A question is not waited for any longer: should it have been answered meanwhile, that claim is given back."""
        # Asked once more without a wait, it has one answer: the claim that was made, one that is made now, or none.
        with trio.CancelScope(shield=True), trio.move_on_after(SETTLE_SECONDS), suppress(InterlockError):
            claimed = await self._around.link.send(self._request(ticket.asked, wait=0))
            if claimed is not None:
                await self._around.link.send(calls.release(claimed, "the agent ends"))
            ticket.remove()
        ticket.close()

    async def _work(self, ticket: Ticket) -> None:
        work = Work(self._around, ticket)
        self._works[work.taken.run] = work
        if self._ending > 1:
            work.end()
        try:
            await work.execute()
        finally:
            self._part(work, ticket)
        if work.unavailable is None:
            self._rest_seconds = 0.0
        else:
            self._warn(f"the command cannot be started: {work.unavailable} No run is taken until it can.")
            self._lengthen_rest()

    async def _rest(self) -> None:
        """After something that only a person can put right: asking again at once would only give runs back."""
        if self._rest_seconds:
            await trio.sleep(self._rest_seconds)
        while self._around.runtime.check(self._around.agent, self._around.cwd) is not None:
            self._lengthen_rest()
            await trio.sleep(self._rest_seconds)

    def _lengthen_rest(self) -> None:
        self._rest_seconds = min(LONGEST_REST_SECONDS, max(FIRST_REST_SECONDS, 2 * self._rest_seconds))

    def _warn(self, message: str) -> None:
        self._around.tell(Happening(message=message, warning=True))

    def _new_ticket(self) -> Ticket:
        identity = self._identity
        return self._spool.make(
            Asked(
                url=identity.url,
                agent_session=self.session,
                request_id=new_id(),
                agent_id=identity.agent_id,
                role=identity.role,
                types=identity.types,
            )
        )
