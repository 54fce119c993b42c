"""What the table says of a figure, and how figures of several rounds become one."""

from __future__ import annotations

from benchmarks.probe import Rounds, in_turn, percentile
from benchmarks.table import Bound, Row, table

AT_LEAST = Bound(must=0.5, stretch=0.7)
AT_MOST = Bound(must=3, stretch=1, at_most=True, unit=" s")


def verdict(bound: Bound, value: float | None) -> str:
    return Row(what="x", figure="1/s", bound=bound, value=value).verdict


def test_a_ratio_is_judged_from_below() -> None:
    assert [verdict(AT_LEAST, value) for value in (0.49, 0.5, 0.69, 0.7)] == ["**missed**", "met", "met", "stretch met"]


def test_a_time_is_judged_from_above() -> None:
    assert [verdict(AT_MOST, value) for value in (3.01, 3, 1.01, 1)] == ["**missed**", "met", "met", "stretch met"]


def test_nothing_is_made_of_what_was_not_measured() -> None:
    assert verdict(AT_LEAST, None) == "not measured"
    assert Row(what="a floor", figure="1/s", value=1.0).verdict == ""


def test_the_table_shows_bounds_and_verdict() -> None:
    row = Row(what="start-up", figure="2 s", against="none", value=2.0, bound=AT_MOST, probe="0.1 / 0.2")
    assert table([row]).splitlines()[2] == "| start-up | 2 s | none | 2.00 s | <= 3 s | <= 1 s | met | 0.1 / 0.2 |"


def test_a_small_run_judges_nothing() -> None:
    missed = Row(what="x", figure="1/s", value=0.1, bound=AT_LEAST)
    assert "missed" in table([missed])
    assert "missed" not in table([missed], judged=False)
    assert "not judged" in table([missed], judged=False)


def test_a_ratio_is_taken_within_each_round() -> None:
    # The second round met a machine that was three times as slow: that hit both.
    rounds = Rounds({"ours": [50.0, 20.0, 60.0], "floor": [100.0, 30.0, 100.0]})
    assert rounds.ratio("ours", "floor") == 0.6
    assert rounds.median("floor") == 100.0


def test_what_is_compared_is_measured_in_turn() -> None:
    called: list[str] = []

    def measure(name: str) -> float:
        called.append(name)
        return float(len(called))

    done = in_turn({name: lambda name=name: measure(name) for name in "ab"}, 3)  # type: ignore[misc]
    assert called == ["a", "b", "b", "a", "a", "b"]
    assert done.figures == {"a": [1.0, 4.0, 5.0], "b": [2.0, 3.0, 6.0]}


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(200, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1)) == (100.0, 198.0, 200.0)
    assert percentile([7.0], 0.99) == 7.0
