"""What the server is told of an attempt: its output as it grows, its outcome as one call."""

from __future__ import annotations

import os

from interlock.actors.words import open_regular
from interlock.agent.link import Link
from interlock.agent.spool import Ticket
from interlock.client import Held, Request, calls
from interlock.decide.outcome import Outcome, OutcomeKind
from interlock.domain.errors import Conflict, InterlockError, InvalidInput, NotFound, StaleClaim, TooLarge
from interlock.domain.run import Usage
from interlock.wire import RunOut, UsageIn

CHUNK_BYTES = 512 * 1024


class Output:
    """The output of an attempt on its way to the server, by byte offset."""

    def __init__(self, link: Link, ticket: Ticket) -> None:
        assert ticket.taken is not None
        self._link = link
        self._held = ticket.taken.held
        self._path = ticket.files.log
        self._offset = 0
        self.refused: InterlockError | None = None
        """Why the server takes no more of it, if so."""

    async def find_place(self) -> None:
        """Ask how much of it the server has: an agent before this one may have sent some."""
        await self._send(b"")

    async def send_more(self) -> bool:
        """Send the next piece, if there is one: whether there was."""
        content = b"" if self.refused is not None else self._read()
        if content:
            await self._send(content)
        return bool(content)

    async def send_rest(self) -> None:
        """Until the server has all of it, or takes no more."""
        while await self.send_more():
            pass

    async def _send(self, content: bytes) -> None:
        try:
            self._offset = (await self._link.send(calls.append_log(self._held, self._offset, content))).size
        except Conflict as gap:
            size = gap.details.get("size")
            if isinstance(size, int) and size < self._offset:
                # A server that was restored from a backup has less than it had.
                self._offset = size
            else:
                self.refused = gap
        except InterlockError as refusal:
            self.refused = refusal

    def _read(self) -> bytes:
        try:
            fd = open_regular(str(self._path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.pread(fd, CHUNK_BYTES, self._offset)
        finally:
            os.close(fd)


def request_for(held: Held, outcome: Outcome) -> Request[RunOut]:
    """The call that ends a claim with ``outcome``. What is nobody's fault gives the run back."""
    usage = usage_in(outcome.usage)
    if outcome.kind is OutcomeKind.COMPLETED:
        return calls.complete(held, result=outcome.result, message=outcome.message, usage=usage)
    if outcome.kind is OutcomeKind.FAILED:
        return calls.fail(
            held,
            outcome.message,
            permanent=outcome.permanent,
            result=outcome.result,
            exit_status=outcome.exit_status,
            usage=usage,
        )
    if outcome.kind is OutcomeKind.DEFERRED:
        delay = None if outcome.delay_ms is None else max(outcome.delay_ms, 1) / 1000
        return calls.defer(held, delay_seconds=delay, message=outcome.message)
    if outcome.kind is OutcomeKind.BLOCKED:
        return calls.block(held, outcome.question or outcome.message)
    return calls.release(held, outcome.message)


def usage_in(usage: Usage | None) -> UsageIn | None:
    """Usage for the wire."""
    if usage is None:
        return None
    return UsageIn(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cost_usd=usage.cost_usd)


async def report(link: Link, held: Held, outcome: Outcome) -> RunOut:
    """Tell the outcome until the server has it: the run as it is then. Raises what it refuses for good (StaleClaim, NotFound).

    What it cannot take (a result beyond its limits) is told as a failure that says so.
    """
    usage = usage_in(outcome.usage)
    if usage is not None and outcome.kind in (OutcomeKind.DEFERRED, OutcomeKind.BLOCKED):
        try:
            await link.send(calls.report_usage(held, usage))
        except (StaleClaim, NotFound):
            raise
        except InterlockError:
            usage = None
    try:
        return await link.send(request_for(held, outcome))
    except (TooLarge, InvalidInput) as refusal:
        what = f"the server did not take how it ended ({outcome.kind}): {refusal.message}"
        return await link.send(calls.fail(held, what, exit_status=outcome.exit_status))
