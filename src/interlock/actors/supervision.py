"""Keeps the singleton actors running."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable

import trio

from interlock.domain.errors import Unavailable

log = logging.getLogger("interlock")

CRASHES = 5
WITHIN_SECONDS = 60.0
LONGEST_WAIT_SECONDS = 30.0


async def keep_running(
    name: str,
    loop: Callable[[], Awaitable[None]],
    *,
    outage: Callable[[str | None], None] = lambda _: None,
    probe: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """Run ``loop`` until it returns, again after every crash, with a growing wait.

    A store that cannot serve is no crash: it is waited for, and ``outage`` is told (None once it serves again, that is once
    ``probe``, a write that changes nothing that matters, has gone through). A loop that crashes five times in a minute
    ends the process with its error: something is wrong that a restart does not mend.
    """
    crashes: deque[float] = deque(maxlen=CRASHES)
    outages = 0
    while True:
        began = trio.current_time()
        try:
            await loop()
        except Unavailable as error:
            outages = 1 if trio.current_time() - began > WITHIN_SECONDS else outages + 1
            if outages == 1:
                log.warning("%s waits for the store: %s", name, error)
            outage(str(error))
            outages = await _until_served(probe, outages)
            outage(None)
        except Exception:
            now = trio.current_time()
            crashes.append(now)
            if len(crashes) == CRASHES and now - crashes[0] < WITHIN_SECONDS:
                log.critical("%s crashed %d times in a minute", name, CRASHES)
                raise
            log.exception("%s crashed and is started again", name)
            await trio.sleep(min(0.1 * 4 ** len(crashes), LONGEST_WAIT_SECONDS))
        else:
            return


async def _until_served(probe: Callable[[], Awaitable[object]] | None, outages: int) -> int:
    """Wait until the store serves again; the number of waits so far, which lengthens the next one."""
    while True:
        await trio.sleep(min(0.2 * 2 ** min(outages, 10), LONGEST_WAIT_SECONDS / 3))
        if probe is None:
            return outages
        try:
            await probe()
        except Unavailable:
            outages += 1
        else:
            return outages


async def persist(what: str, act: Callable[[], Awaitable[None]]) -> None:
    """Do ``act``, and again while the store cannot serve: for what must not be given up, like the end of an attempt."""
    tries = 0
    while True:
        try:
            await act()
        except Unavailable as error:
            tries += 1
            if tries == 1:
                log.warning("%s waits for the store: %s", what, error)
            await trio.sleep(min(0.1 * 2 ** min(tries, 10), LONGEST_WAIT_SECONDS / 3))
        else:
            return
