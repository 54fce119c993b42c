from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.domain.errors import InvalidInput
from interlock.sources.durations import (
    LONGEST_MS,
    exact_duration,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90s", 90_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("500ms", 500),
        ("1.5h", 5_400_000),
        ("2d", 172_800_000),
        ("1m500ms", 60_500),
        ("0s", 0),
    ],
)
def test_durations_are_read(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("90", "write 90s, 90m or 90ms"),
        ("", "90s"),
        ("5 minutes", "90s"),
        ("-5s", "90s"),
        ("30m1h", "largest unit first"),
        ("1s1s", "largest unit first"),
        ("0.1ms", "in ms"),
        ("99999d", "no limit"),
        ("٣s", "90s"),
        ("9" * 5000 + "s", "90s"),
    ],
)
def test_what_is_no_duration_is_refused_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_duration(text)
    assert hint in (caught.value.hint or "")


@settings(deadline=None)
@given(st.integers(0, LONGEST_MS))
def test_an_exact_duration_reads_back(ms: int) -> None:
    assert parse_duration(exact_duration(ms)) == ms


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (45, "45ms"),
        (1200, "1.2s"),
        (59_999, "59.9s"),
        (60_000, "1m"),
        (90_500, "1m30s"),
        (5_400_000, "1h30m"),
        (3_605_000, "1h"),
        (2 * 86_400_000 + 3 * 3_600_000 + 5000, "2d3h"),
        (-1200, "-1.2s"),
    ],
)
def test_durations_are_short_for_people(ms: int, text: str) -> None:
    assert format_duration(ms) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2**31), ("512M", 2**29), ("512MiB", 2**29), ("1.5GB", 1_500_000_000), ("0", 0), ("10 kB", 10_000)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "hint"), [("2048", "2048MiB"), ("2XB", "GiB"), ("-1GiB", "GiB"), ("9999999TiB", "at most")]
)
def test_what_is_no_size_is_refused_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_size(text)
    assert hint in (caught.value.hint or "")


def test_sizes_are_short_for_people() -> None:
    assert [format_size(each) for each in (0, 1023, 2**29, 3 * 2**29)] == ["0B", "1023B", "512MiB", "1.5GiB"]
