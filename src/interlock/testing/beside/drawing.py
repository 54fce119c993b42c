"""The steps that there are, and how one of them is drawn: by Hypothesis or by chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interlock.testing.beside.beside import Beside

Draw = Callable[[str, Sequence[Any]], Any]
"""(label, options) -> one of them. The first option is the plainest."""


def by_chance(chance: Random) -> Draw:
    """A draw that takes any option alike."""

    def draw(label: str, options: Sequence[Any]) -> Any:  # noqa: ARG001 - the shape of every draw
        return chance.choice(options)

    return draw


def mostly(usual: Any, *others: Any) -> list[Any]:
    """The usual value at least half of the time."""
    return [usual] * len(others) + [usual, *others]


def drawn(draw: Draw, name: str, options: Any) -> Any:
    """One of ``options``; of each entry, when it is a mapping."""
    if isinstance(options, dict):
        return {key: drawn(draw, f"{name}.{key}", some) for key, some in options.items()}
    return draw(name, options)


@dataclass(frozen=True)
class Step:
    """A step that can be taken: how often beside the others, and when. ``options`` may follow from where things stand."""

    work: Callable[..., None]
    weight: int
    when: Callable[[Beside], object]
    options: dict[str, Any]

    def of(self, beside: Beside) -> dict[str, Any]:
        """The options as they are now."""
        return {name: some(beside) if callable(some) else some for name, some in self.options.items()}


@dataclass(frozen=True)
class Taken:
    """A step as it was taken, to be taken again."""

    name: str
    drawn: dict[str, Any]


STEPS: dict[str, Step] = {}


def step(
    *, weight: int = 1, when: Callable[[Beside], object] = lambda _: True, **options: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Steps are drawn within one rule: Hypothesis leaves whole rules out of most of its tries, and a run needs many of them."""

    def enter(work: Callable[..., None]) -> Callable[..., None]:
        STEPS[work.__name__] = Step(work, weight, when, options)
        return work

    return enter


def any_run(beside: Beside) -> object:
    """When there is a run."""
    return beside.world.runs


PICK = range(60)
"""Picks one of what there is, whatever that is."""
