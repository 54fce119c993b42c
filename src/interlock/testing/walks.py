"""Walks by chance: the service beside the model, one step after the other as a seed says; and the smallest way to a failure."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from interlock.domain.run import Route
from interlock.domain.settings import Settings
from interlock.testing.beside import steps
from interlock.testing.beside.beside import Beside
from interlock.testing.beside.configuration import CONFIGURATION
from interlock.testing.beside.desk import Desk, SqliteDesk, StoreDesk
from interlock.testing.beside.drawing import STEPS, Taken, by_chance
from interlock.testing.explored import Explored
from interlock.testing.promises import Broken

__all__ = ["FailingStory", "Walk", "WalkFailed", "steps", "walk"]

STEPS_OF_A_WALK = 80
MOST_TRIES = 600
"""How often a failing walk is tried in a smaller form."""


class FailingStory(msgspec.Struct, frozen=True, kw_only=True):
    """The way to a failure: what was done, one sentence each, and what was wrong at the end. ``steps_before``: how many it was
    found with, before everything that does not matter was left out.
    """

    seed: int
    lines: tuple[str, ...]
    fault: str
    steps_before: int


class WalkFailed(Broken):
    """A walk came to a failure; ``story`` is the smallest way to it that was found."""

    def __init__(self, story: FailingStory) -> None:
        numbered = [f"{number}. {line}" for number, line in enumerate(story.lines, 1)]
        super().__init__("\n".join([story.fault, *numbered, f"seed {story.seed}"]))
        self.story = story


class Walk(msgspec.Struct, frozen=True, kw_only=True):
    """How walks are walked. ``settings`` None: each walk draws its own. ``routes`` are there from the beginning, ``desk`` makes the
    place where commands are given (None: the SQLite store in a temporary folder), ``count`` is how many steps are taken.
    """

    settings: Settings | None = None
    routes: tuple[Route, ...] = ()
    desk: Callable[[], Desk] = SqliteDesk
    count: int = STEPS_OF_A_WALK

    def beside(self) -> Beside:
        """A fresh service beside its model; close it."""
        return Beside(self.desk(), settings=self.settings, routes=self.routes)

    def take(
        self,
        seed: int,
        *,
        shown: Callable[[Explored], None] = lambda _: None,
        failed: Callable[[FailingStory], None] = lambda _: None,
    ) -> Explored:
        """Walk the way of ``seed``. ``shown`` is given what was explored, also of a walk that fails or is interrupted. ``failed``
        is given the story of a failure as it was found, before it is made small.

        Raises :class:`WalkFailed`.
        """
        draw = by_chance(Random(seed))  # noqa: S311 - a seed is to give the same way again
        with closing(self.beside()) as beside:
            try:
                beside.begin(draw)
                for _ in range(self.count):
                    beside.step(draw)
            except Exception as error:
                found = _Found(beside.taken, beside.log, error)
                story = FailingStory(
                    seed=seed, lines=tuple(found.log), fault=fault_of(error), steps_before=len(found.taken) - 1
                )
                failed(story)
                raise WalkFailed(self._smallest(story, found)) from error
            finally:
                shown(beside.explored)
            return beside.explored

    def _smallest(self, story: FailingStory, found: _Found) -> FailingStory:
        smaller = _Smaller(self, found)
        smaller.leave_out()
        smaller.make_plain()
        smaller.leave_out()
        log, error = smaller.found.log, smaller.found.error
        return msgspec.structs.replace(story, lines=tuple(log), fault=fault_of(error))


def walk(
    seed: int,
    *,
    settings: Settings | None = None,
    routes: Sequence[Route] = (),
    make_store: Callable[[Path], Any] | None = None,
    count: int = STEPS_OF_A_WALK,
) -> Explored:
    """Walk ``count`` steps as ``seed`` says, and return what was explored. The same arguments walk the same way again.

    ``settings``: limits, agents, budgets to walk under; None draws small ones. ``routes`` are there from the beginning.
    ``make_store`` opens the store of a folder (it may be async); None: the SQLite store. Not to be called inside a trio loop.
    Raises :class:`WalkFailed` with the smallest story that leads to the failure.
    """
    desk: Callable[[], Desk] = SqliteDesk
    if make_store is not None:
        wanted = make_store

        def desk() -> Desk:
            return StoreDesk(wanted)

    return Walk(settings=settings, routes=tuple(routes), desk=desk, count=count).take(seed)


def fault_of(error: BaseException) -> str:
    """What was wrong, in a sentence."""
    words = str(error).strip()
    if isinstance(error, AssertionError):
        return words or "a check failed"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


class _Found:
    """A failure, and the steps that lead to it."""

    def __init__(self, taken: Sequence[Taken], log: Sequence[str], error: Exception) -> None:
        self.taken = list(taken)
        self.log = list(log)
        self.error = error
        frames = traceback.extract_tb(error.__traceback__)
        where = [(frame.filename, frame.lineno) for frame in frames if "interlock" in frame.filename]
        # The same failure: of the same kind, at the same place.
        self.mark = (type(error), where[-1] if where else None)


class _Smaller:
    """Makes a failing walk small: leaves out steps, then takes plainer ones, as long as the same failure comes."""

    def __init__(self, walk: Walk, found: _Found) -> None:
        self.walk = walk
        self.found = found
        self.tries = 0

    def _fails(self, taken: Sequence[Taken]) -> bool:
        """Whether these steps lead to the same failure; then they are the best so far."""
        if self.tries >= MOST_TRIES:
            return False
        self.tries += 1
        with closing(self.walk.beside()) as beside:
            try:
                beside.configure(taken[0].drawn)
                for one in taken[1:]:
                    if STEPS[one.name].when(beside):
                        beside.take(one)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what the story is to lead to
                found = _Found(beside.taken, beside.log, error)
                if found.mark == self.found.mark:
                    self.found = found
                    return True
        return False

    def leave_out(self) -> None:
        """Leave out pieces, the large ones first."""
        size = max(1, (len(self.found.taken) - 1) // 2)
        while True:
            start, shorter = 1, False
            while start < len(self.found.taken):
                taken = self.found.taken
                if self._fails([*taken[:start], *taken[start + size :]]):
                    shorter = True
                else:
                    start += size
            if size == 1 and not shorter:
                return
            size = max(1, size // 2)
            if self.tries >= MOST_TRIES:
                return

    def make_plain(self) -> None:
        """Put the plainest option in the place of each that was drawn."""
        if self.found.taken[0].drawn:
            self._plain(0, CONFIGURATION)
        for index in range(1, len(self.found.taken)):
            if index < len(self.found.taken):
                with closing(self.walk.beside()) as beside:
                    if self.found.taken[0].drawn:
                        beside.configure(self.found.taken[0].drawn)
                    options = STEPS[self.found.taken[index].name].of(beside)
                self._plain(index, options)

    def _plain(self, index: int, options: dict[str, Any]) -> None:
        for name, some in options.items():
            paths = [(name, inner) for inner in some] if isinstance(some, dict) else [(name, None)]
            for outer, inner in paths:
                if index >= len(self.found.taken):
                    return
                taken = self.found.taken[index]
                plainest = some[inner][0] if inner is not None else some[0]
                drawn = _with(taken.drawn, outer, inner, plainest)
                if drawn != taken.drawn:
                    changed = list(self.found.taken)
                    changed[index] = Taken(taken.name, drawn)
                    self._fails(changed)


def _with(drawn: dict[str, Any], outer: str, inner: str | None, value: Any) -> dict[str, Any]:
    if inner is None:
        return {**drawn, outer: value}
    return {**drawn, outer: {**drawn[outer], inner: value}}
