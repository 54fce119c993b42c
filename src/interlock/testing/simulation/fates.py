"""What may become of a run after an agent's end: the truth that only the simulation knows, beside what was recorded."""

from __future__ import annotations

from interlock.domain.states import RunEvent, StopKind
from interlock.testing.simulation.machine import Tree
from interlock.testing.simulation.scenario import Conduct

_BY_ITSELF: dict[Conduct, frozenset[RunEvent]] = {
    Conduct.DONE: frozenset({RunEvent.COMPLETE}),
    Conduct.FAIL: frozenset({RunEvent.RETRY, RunEvent.FAIL}),
    Conduct.FAIL_FOR_GOOD: frozenset({RunEvent.FAIL}),
    Conduct.DEFER: frozenset({RunEvent.DEFER}),
    Conduct.ASK: frozenset({RunEvent.BLOCK}),
    Conduct.BABBLE: frozenset({RunEvent.RETRY, RunEvent.FAIL}),
    Conduct.VANISH: frozenset({RunEvent.RELEASE, RunEvent.WITHDRAW}),
}
_LOST = _BY_ITSELF[Conduct.VANISH]
_STOPPED: dict[StopKind, frozenset[RunEvent]] = {
    StopKind.CANCEL: frozenset({RunEvent.CANCEL}),
    StopKind.CLOSE: frozenset({RunEvent.CLOSE}),
    StopKind.TIMEOUT: frozenset({RunEvent.TIME_OUT, RunEvent.RETRY, RunEvent.FAIL}),
    StopKind.STALL: frozenset({RunEvent.RETRY, RunEvent.FAIL}),
    StopKind.INTERRUPT: frozenset({RunEvent.WITHDRAW}),
}


def fate_fits(tree: Tree | None, stop: StopKind | None, event: RunEvent) -> str | None:
    """What is wrong with ``event`` as the first move of a run whose agent is gone, or None.

    ``tree`` None: the attempt's agent was never started. ``stop``: the intent that was recorded for it, if any.
    """
    if tree is None:
        allowed = frozenset({RunEvent.WITHDRAW}) if stop is None else _STOPPED[stop]
        told = "its agent was never started"
    else:
        done = tree.of_itself and tree.plan.conduct is Conduct.DONE
        if stop is not None:
            # Work that was done counts as done, when it was done before the stop.
            allowed = _STOPPED[stop] | (_BY_ITSELF[Conduct.DONE] if done else frozenset())
            told = f"a stop ({stop}) was asked for and its agent " + ("had done its work" if done else "is gone")
        elif tree.of_itself:
            allowed = _BY_ITSELF[tree.plan.conduct]
            told = f"its agent ended by itself ({tree.plan.conduct})"
        elif tree.status is None:
            allowed, told = _LOST, "its agent died with the machine"
        else:
            return f"its agent was ended by a signal ({tree.status - 128}) that nobody asked for"
    if event in allowed:
        return None
    return f"{told}, and the run was moved by '{event}' (fitting: {', '.join(sorted(allowed)) or 'nothing'})"
