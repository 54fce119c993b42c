"""Commands over many runs: which are meant, and doing it in transactions that do not keep others waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from interlock.domain.run import Run
from interlock.domain.states import RunState
from interlock.ports.store import Tx
from interlock.service.context import Context
from interlock.service.operating import UNFINISHED, cancel
from interlock.service.reads import Filter
from interlock.service.service import Service

PAGE = 500
FAILED = (RunState.FAILED, RunState.TIMED_OUT)


async def unfinished(service: Service, *, tag: str | None = None) -> list[Run]:
    """Every run that has not ended, the newest first."""
    return await _every(service, UNFINISHED, tag)


async def failed_runs(service: Service, *, tag: str | None = None) -> list[Run]:
    """Runs that failed or timed out and have not been run again since, the oldest first."""
    failed = await _every(service, FAILED, tag, lambda tx, run: tx.retried_as(run.number) is None)
    failed.reverse()
    return failed


async def _every(
    service: Service,
    states: Sequence[RunState],
    tag: str | None,
    fits: Callable[[Tx, Run], bool] = lambda _, __: True,
) -> list[Run]:
    found: list[Run] = []
    before: int | None = None
    while True:
        page = Filter(states=tuple(map(str, states)), tag=tag, before=before, limit=PAGE)
        read, fitting = await service.store.read(lambda tx, page=page: _page(tx, page, fits))  # type: ignore[misc]
        found += fitting
        if len(read) < PAGE:
            return found
        before = read[-1].number


def _page(tx: Tx, page: Filter, fits: Callable[[Tx, Run], bool]) -> tuple[list[Run], list[Run]]:
    read = tx.find_runs(page)
    return read, [run for run in read if fits(tx, run)]


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
