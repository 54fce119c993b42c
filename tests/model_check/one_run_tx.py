"""A transaction over one run, in memory: what the service's own commands run on in the model.

It refuses what the database's triggers and CHECKs refuse (the pairs come from the compiled tables), so that a command which only
the file would have stopped is found here as well. What a command must not ask for is not there: an unknown method raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from interlock.decide.capacity import GLOBAL
from interlock.domain.puller import Puller
from interlock.domain.run import Attempt, Event, Lane, Run
from interlock.domain.states import ACTIVE, HELD_BY_AGENT, TERMINAL, RunState
from interlock.machines.table import ATTEMPT, RUN
from interlock.ports.store import Undone
from interlock.service.brakes import PAUSED_META, Pause

NUMBER = 1


class Refused(Exception):
    """The database would have refused this write."""


class OneRunTx:
    """``elsewhere``: slots that other runs hold. ``meta_values``: the table of that name. ``pullers``: who asked for offers."""

    def __init__(
        self,
        run: Run,
        attempts: dict[int, Attempt],
        *,
        slots: bool,
        elsewhere: int,
        paused: bool,
        pullers: Sequence[str] = (),
        requests: dict[str, Attempt] | None = None,
        alive_ms: int | None = None,
    ) -> None:
        self._run = run
        self._attempts = dict(attempts)
        self._slots = {GLOBAL} if slots else set[str]()
        self._elsewhere = elsewhere
        self._pullers = pullers
        self._requests = requests or {}
        self._meta = {"generation": "g"}
        if paused:
            self._meta[PAUSED_META] = msgspec.json.encode(Pause(by="operator", at_ms=0)).decode()
        if alive_ms is not None:
            self._meta["alive_ms"] = str(alive_ms)
        self.moved: list[str] = []

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a command asks the transaction for '{name}': say in {__file__} what one run answers")

    @property
    def now_run(self) -> Run:
        """The run as it is now."""
        return self._run

    @property
    def has_slots(self) -> bool:
        """Whether the run holds its slots."""
        return bool(self._slots)

    def hint(self) -> None:
        """Others may be able to start something."""

    @contextmanager
    def apart(self) -> Iterator[None]:
        kept = self._run, dict(self._attempts), set(self._slots)
        try:
            yield
        except Exception as error:
            self._run, self._attempts, self._slots = kept
            raise Undone(error) from error

    # runs

    def run(self, number: int) -> Run | None:
        return self._run if number == NUMBER else None

    def save_run(self, old: Run, new: Run) -> None:
        if old != self._run:
            raise Refused("the run is not as it was read")
        if old.state in TERMINAL:
            raise Refused("a terminal run is final")
        if new.state is not old.state and (old.state, new.state) not in RUN.pairs:
            raise Refused(f"no move leads from {old.state} to {new.state}")
        claims = old.state is RunState.DISPATCHED and new.state is RunState.CLAIMED
        if new.fence - old.fence != int(claims):
            raise Refused("the fence grows by one with a claim, and only then")
        _check_row(new)
        self._run = new
        if new.state not in ACTIVE:
            self._slots.clear()

    def live_runs(self) -> list[Run]:
        return [self._run] if self._run.state in ACTIVE else []

    def quarantine(self, number: int, due_ms: int, message: str) -> RunState | None:
        raise Refused(f"run {number} could not be dealt with until {due_ms}: {message}")

    # needs: no other run waits for this one

    def dependants(self, *_: int) -> list[int]:
        return []

    def take_untold(self) -> None:
        return None

    # the queue

    def lane(self, key: str) -> int:
        del key
        return 1

    def lanes(self, limit: int, after: Lane | None = None) -> list[Lane]:
        del limit
        head = self.lane_of(1)
        return [] if head is None or after is not None else [head]

    def lane_of(self, lane: int) -> Lane | None:
        head = self._run
        if not head.ready:
            return None
        return Lane(id=lane, key="{}", head_number=NUMBER, head_priority=head.priority, head_score=head.score)

    def offers(self, *, pull: bool, limit: int) -> list[Run]:
        del limit
        open_now = self._run.state is RunState.DISPATCHED and self._run.pull is pull
        return [self._run] if open_now else []

    # deadlines

    def due(self, now_ms: int, limit: int) -> list[int]:
        del limit
        return [NUMBER] if self._run.due_ms is not None and self._run.due_ms <= now_ms else []

    def shift_deadlines(self, by_ms: int) -> None:
        if self._run.state not in ACTIVE:
            return
        names = ("lease_expires_ms", "timeout_at_ms", "offered_ms", "claimed_ms", "due_ms")
        moved = {name: at + by_ms for name in names if (at := getattr(self._run, name)) is not None}
        self._run = msgspec.structs.replace(self._run, **moved)

    # attempts

    def attempt(self, run: int, fence: int) -> Attempt | None:
        del run
        return self._attempts.get(fence)

    def attempt_by_request(self, run: int, request_id: str) -> Attempt | None:
        del run
        return self._requests.get(request_id)

    def add_attempt(self, attempt: Attempt) -> None:
        live = [known for known in self._attempts.values() if known.ended_ms is None]
        if live or attempt.fence in self._attempts or attempt.state is not ATTEMPT.initial:
            raise Refused("an attempt starts with a claim, once")
        if self._run.state is not RunState.CLAIMED or self._run.fence != attempt.fence:
            raise Refused("an attempt belongs to the claim of its fence")
        self._attempts[attempt.fence] = attempt

    def save_attempt(self, old: Attempt, new: Attempt) -> None:
        if self._attempts.get(old.fence) != old:
            raise Refused("the attempt is not as it was read")
        if old.ended_ms is not None:
            raise Refused("an attempt that has ended is final")
        if new.state is not old.state and (old.state, new.state) not in ATTEMPT.pairs:
            raise Refused(f"no move of an attempt leads from {old.state} to {new.state}")
        if (new.ended_ms is not None) is not (new.state in ATTEMPT.final):
            raise Refused("an attempt has an end when its state says so")
        if new.ended_ms is not None and not (new.reason and new.message):
            raise Refused("an end has a reason and a message")
        self._attempts[old.fence] = new

    # slots

    def take_slots(self, run: int, keys: Iterable[str]) -> None:
        del run
        keys = set(keys)
        if self._run.state not in ACTIVE or keys & self._slots:
            raise Refused("a slot is taken once, by an active run")
        self._slots |= keys

    def free_slot(self, run: int, key: str) -> None:
        del run
        self._slots.discard(key)

    def used(self) -> dict[str, int]:
        return {GLOBAL: self._elsewhere + len(self._slots & {GLOBAL})}

    def used_of(self, key: str) -> int:
        return self.used().get(key, 0)

    # what stands beside runs

    def add_event(self, event: Event) -> None:
        self.moved.append(event.event)

    def routes(self) -> dict[str, Any]:
        return {}

    def healths(self) -> dict[str, Any]:
        return {}

    def adhoc_agents(self) -> dict[str, Any]:
        return {}

    def pullers_since(self, seen_ms: int) -> list[Puller]:
        del seen_ms
        return [Puller(holder=holder) for holder in self._pullers]

    def drop_pullers(self, seen_before_ms: int) -> None:
        """They are not kept here."""

    def meta(self, key: str) -> str | None:
        return self._meta.get(key)

    def set_meta(self, key: str, value: str | None) -> None:
        self._meta.pop(key, None)
        if value is not None:
            self._meta[key] = value


def _check_row(run: Run) -> None:
    checks: tuple[tuple[str, Callable[[Run], bool]], ...] = (
        ("ended_ms iff terminal", lambda new: (new.ended_ms is not None) is (new.state in TERMINAL)),
        ("an end has a reason and a message", lambda new: new.ended_ms is None or bool(new.reason and new.message)),
        ("a holder iff held", lambda new: (new.holder is not None) is (new.state in HELD_BY_AGENT)),
        ("ready only when queued", lambda new: not new.ready or new.state is RunState.QUEUED),
        ("a blocked run has its question", lambda new: new.state is not RunState.BLOCKED or bool(new.question)),
    )
    for what, holds in checks:
        if not holds(run):
            raise Refused(f"{what}: {run}")
