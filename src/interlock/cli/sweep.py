"""Commands over many runs: which are meant, and doing it in transactions that do not keep others waiting."""

from __future__ import annotations

from collections.abc import Sequence

from interlock.domain.run import Run
from interlock.domain.states import RunState
from interlock.ports.store import Tx
from interlock.service import Service
from interlock.service.context import Context
from interlock.service.operating import UNFINISHED, cancel
from interlock.service.reads import Filter

PAGE = 500
FAILED = (RunState.FAILED, RunState.TIMED_OUT)


async def all_runs(
    service: Service, *, states: Sequence[str] = (), tag: str | None = None, down_to: int = 0
) -> list[Run]:
    """Every run that fits, the newest first; none with a number under ``down_to``."""
    found: list[Run] = []
    before: int | None = None
    while True:
        page = await service.find(Filter(states=tuple(map(str, states)), tag=tag, before=before, limit=PAGE))
        found += [run for run in page if run.number >= down_to]
        if len(page) < PAGE or page[-1].number <= down_to:
            return found
        before = page[-1].number


async def unfinished(service: Service, *, tag: str | None = None) -> list[Run]:
    """Every run that has not ended."""
    return await all_runs(service, states=UNFINISHED, tag=tag)


async def failed_runs(service: Service, *, tag: str | None = None) -> list[Run]:
    """Runs that failed or timed out and have not been run again since, the oldest first."""
    failed = await all_runs(service, states=FAILED, tag=tag)
    if not failed:
        return []
    later = await all_runs(service, down_to=failed[-1].number)
    again = {run.retry_of for run in later}
    return [run for run in reversed(failed) if run.number not in again]


async def cancel_all(service: Service, chosen: Sequence[Run]) -> list[Run]:
    """Cancel ``chosen``, dependants before what they need: otherwise they would fail for want of it. Those that ended
    meanwhile are left out.
    """
    numbers = {run.number for run in chosen}
    done: list[Run] = []
    for start in range(0, len(chosen), PAGE):
        page = [run.number for run in chosen[start : start + PAGE]]
        done += await service.write(lambda tx, ctx, page=page: _cancel_page(tx, ctx, page, numbers))  # type: ignore[misc]
    return done


def _cancel_page(tx: Tx, ctx: Context, page: Sequence[int], chosen: set[int]) -> list[Run]:
    done: list[Run] = []
    stack = [(number, False) for number in reversed(page)]
    while stack:
        number, dependants_done = stack.pop()
        if number not in chosen:
            continue
        if not dependants_done:
            stack.append((number, True))
            stack += [(dependant, False) for dependant in tx.dependants(number) if dependant in chosen]
            continue
        chosen.discard(number)
        run = tx.run(number)
        if run is not None and not run.terminal:
            done.append(cancel(tx, ctx, run))
    return done
