"""Waits grow, stay within their bounds, and do not come together."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from interlock.decide.backoff import equal_jitter_ms, exponential_ms, retry_delay_ms
from interlock.domain.settings import Retry

TRIES = st.integers(1, 10_000)
BASE = st.integers(0, 10**7)
MOST = st.integers(0, 10**9)


@given(TRIES, BASE, MOST)
def test_it_doubles_up_to_its_limit(tries: int, base: int, most: int) -> None:
    wait = exponential_ms(tries, base, most)
    assert 0 <= wait <= most
    before = exponential_ms(tries - 1, base, most) if tries > 1 else None
    assert wait == min(most, base if before is None else 2 * before)
    assert exponential_ms(tries + 1, base, most) >= wait


@given(st.integers(-5, 0), BASE, MOST)
def test_nothing_failed_nothing_waits(tries: int, base: int, most: int) -> None:
    assert exponential_ms(tries, base, most) == 0


@given(st.integers(0, 10**9), st.integers())
def test_half_for_certain_half_by_chance(delay: int, seed: int) -> None:
    assert delay // 2 <= equal_jitter_ms(delay, Random(seed)) <= delay


@given(TRIES, st.integers(), st.integers(1, 10**6), st.integers(1, 10**8))
def test_a_retry_waits_within_the_configured_bounds(failures: int, seed: int, base: int, most: int) -> None:
    retry = Retry(base_delay_ms=base, max_delay_ms=most)
    whole = exponential_ms(failures, base, most)
    assert whole // 2 <= retry_delay_ms(failures, retry, Random(seed)) <= whole <= most


def test_a_huge_count_builds_no_huge_number() -> None:
    assert exponential_ms(2**80, 1, 1000) == 1000


def test_failures_that_came_together_do_not_return_together() -> None:
    rng = Random(3)
    assert len({equal_jitter_ms(10_000, rng) for _ in range(50)}) > 40


def test_the_defaults_are_those_of_the_design() -> None:
    retry = Retry()
    assert [exponential_ms(n, retry.base_delay_ms, retry.max_delay_ms) // 1000 for n in range(1, 8)] == [
        10, 20, 40, 80, 160, 300, 300,
    ]  # fmt: skip
    assert retry.max_retries == 3
