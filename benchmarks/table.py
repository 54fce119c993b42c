"""Rows of the table: what was measured, against what, what is asked for, and whether that is met."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What a row's value has to reach. ``at_most``: the less the better. ``unit`` stands behind the number."""

    must: float
    stretch: float
    at_most: bool = False
    unit: str = " x"

    def meets(self, value: float, wanted: float) -> bool:
        """Whether ``value`` is as good as ``wanted``."""
        return value <= wanted if self.at_most else value >= wanted

    def words(self, wanted: float) -> str:
        """A bound as the table shows it."""
        return f"{'<=' if self.at_most else '>='} {wanted:g}{self.unit}"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line. ``value`` is what ``bound`` judges, in its unit; a row without a bound informs."""

    what: str
    figure: str
    against: str = ""
    value: float | None = None
    bound: Bound | None = None
    probe: str = ""

    @property
    def verdict(self) -> str:
        """met, missed, stretch; empty for a row that only informs, "not measured" when there is a bound and no value."""
        if self.bound is None:
            return ""
        if self.value is None:
            return "not measured"
        if self.bound.meets(self.value, self.bound.stretch):
            return "stretch met"
        return "met" if self.bound.meets(self.value, self.bound.must) else "**missed**"

    def cells(self, *, judged: bool) -> list[str]:
        """The columns of the table."""
        unit = " x" if self.bound is None else self.bound.unit
        value = "" if self.value is None else f"{self.value:.{_digits(self.value)}f}{unit}"
        bounds = ["", ""] if self.bound is None else [self.bound.words(each) for each in _wanted(self.bound)]
        verdict = self.verdict if judged else "not judged" if self.bound is not None else ""
        return [self.what, self.figure, self.against, value, *bounds, verdict, self.probe]


HEADINGS = ("what", "figure", "against", "ratio or value", "must", "stretch", "verdict", "fdatasync, ms")


def table(rows: Iterable[Row], *, judged: bool = True) -> str:
    """The rows as a Markdown table."""
    lines = [HEADINGS, tuple("---" for _ in HEADINGS), *(row.cells(judged=judged) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _wanted(bound: Bound) -> tuple[float, float]:
    return bound.must, bound.stretch


def _digits(value: float) -> int:
    """Enough digits to tell apart what differs by a few per cent."""
    return 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
