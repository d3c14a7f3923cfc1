"""Token buckets: what passes, what is told, and what is remembered."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.core.limits import Bucket, Buckets, Level, Plan, Rate, Short

FREE = Plan("free", requests=Rate(60), tokens=Rate(6000))
T0 = 1_000.0


def near(value: float) -> Any:
    return pytest.approx(value, abs=1e-6)


def test_a_bucket_holds_what_drips_in_within_burst_minutes() -> None:
    rate = Rate(60, burst=1.5)

    assert (rate.capacity, rate.interval, rate.window) == (90, 1.0, 90.0)


def test_a_new_account_may_spend_a_whole_bucket_and_no_more() -> None:
    buckets = Buckets()

    taken = [buckets.take("a", FREE, 10, T0) for _ in range(61)]

    assert taken == [None] * 60 + [Short(Bucket.REQUESTS, limit=60, used=61, wait=1.0)]
    assert buckets.take("a", FREE, 10, T0 + 1.0) is None
    assert buckets.take("b", FREE, 10, T0) is None, "accounts have buckets of their own"


def test_of_two_empty_buckets_the_longer_wait_is_told() -> None:
    buckets = Buckets()
    for _ in range(60):
        buckets.take("a", FREE, 100, T0)

    assert buckets.look("a", FREE, 100, T0) == Short(Bucket.REQUESTS, 60, 61, 1.0)
    assert buckets.look("a", FREE, 300, T0) == Short(Bucket.TOKENS, 6000, 6300, 3.0)


def test_looking_and_being_refused_take_nothing() -> None:
    buckets = Buckets()
    buckets.take("a", FREE, 5_990, T0)

    for _ in range(100):
        assert buckets.look("a", FREE, 10, T0) is None
        assert buckets.take("a", FREE, 11, T0) is not None

    assert buckets.level("a", FREE, Bucket.REQUESTS, T0) == Level(60, 59, 1.0)
    assert buckets.level("a", FREE, Bucket.TOKENS, T0) == Level(6000, 10, near(59.9))


def test_a_call_larger_than_the_bucket_goes_when_it_is_full_and_leaves_a_debt() -> None:
    buckets = Buckets()
    buckets.take("a", FREE, 100, T0)

    short = buckets.take("a", FREE, 9_000, T0)
    assert short == Short(Bucket.TOKENS, 6000, 9100, near(1.0))
    assert buckets.take("a", FREE, 9_000, T0 + short.wait) is None
    assert buckets.level("a", FREE, Bucket.TOKENS, T0 + 1.0) == Level(6000, 0, near(90.0))
    assert buckets.look("a", FREE, 100, T0 + 1.0) == Short(Bucket.TOKENS, 6000, 9100, near(31.0))


def test_the_charge_is_corrected_by_the_outcome() -> None:
    buckets = Buckets()
    buckets.take("a", FREE, 2_000, T0)
    buckets.correct("a", FREE, 0, 150 - 2_000, T0 + 0.5)
    assert buckets.level("a", FREE, Bucket.TOKENS, T0 + 0.5) == Level(6000, 5900, near(1))

    buckets.correct("a", FREE, 0, 600, T0 + 0.5)
    assert buckets.level("a", FREE, Bucket.TOKENS, T0 + 0.5) == Level(6000, 5300, near(7))


def test_what_is_given_back_never_makes_a_bucket_more_than_full() -> None:
    buckets = Buckets()
    buckets.take("a", FREE, 2_000, T0)
    buckets.correct("a", FREE, -1, -2_000, T0 + 30)

    assert buckets.level("a", FREE, Bucket.TOKENS, T0 + 30) == Level(6000, 6000, 0.0)
    assert [buckets.take("a", FREE, 1, T0 + 30) for _ in range(61)][59:] == [
        None,
        Short(Bucket.REQUESTS, 60, 61, 1.0),
    ]


def test_a_plan_may_limit_requests_only_tokens_only_or_nothing() -> None:
    buckets = Buckets()
    requests, tokens = Plan("r", requests=Rate(1)), Plan("t", tokens=Rate(10))

    assert buckets.take("r", requests, 1 << 40, T0) is None
    assert buckets.take("r", requests, 1, T0) == Short(Bucket.REQUESTS, 1, 2, 60.0)
    assert buckets.level("r", requests, Bucket.TOKENS, T0) is None
    assert buckets.take("t", tokens, 10, T0) is None
    assert buckets.take("t", tokens, 1, T0) == Short(Bucket.TOKENS, 10, 11, 6.0)
    assert buckets.level("t", tokens, Bucket.REQUESTS, T0) is None
    assert {buckets.take("n", Plan("none"), 1 << 40, T0) for _ in range(1000)} == {None}


def test_with_a_price_of_four_a_quarter_passes() -> None:
    buckets = Buckets()
    buckets.price = 4

    taken = [buckets.take("a", FREE, 10, T0) for _ in range(16)]

    assert taken.count(None) == 15
    assert taken[-1] == Short(Bucket.REQUESTS, 60, 64, 4.0)


def test_how_full_buckets_are_can_be_handed_over() -> None:
    one, other = Buckets(), Buckets()
    one.take("a", FREE, 600, T0)
    other.learn("a", *one.full_at("a"), T0)

    assert other.level("a", FREE, Bucket.TOKENS, T0) == one.level("a", FREE, Bucket.TOKENS, T0)
    assert other.full_at("b") == (-math.inf, -math.inf)


def test_accounts_whose_buckets_are_full_are_forgotten() -> None:
    buckets = Buckets()
    for number in range(100_000):
        buckets.take(f"t{number}", FREE, 10, T0 + number * 0.001)
    assert len(buckets) <= 2_000, "about those that called within the last second"

    buckets.take("debtor", FREE, 6_000_000, T0 + 200)
    for number in range(2_000):
        buckets.take("a", FREE, 1, T0 + 201 + number)
    assert len(buckets) == 2, "a debt is never forgotten"
    assert repr(buckets) == "<Buckets: 2 accounts, a unit costs 1>"


RATES = st.builds(
    Rate,
    st.integers(1, 10_000_000),
    st.floats(1.0, 10.0, allow_nan=False),
)
STEPS = st.lists(
    st.tuples(st.floats(0.0, 30.0), st.integers(0, 20_000), st.integers(-20_000, 20_000)),
    max_size=60,
)


@given(RATES, RATES, STEPS, st.floats(0.0, 2e9))
def test_never_more_passes_than_a_bucket_and_what_drips_in(
    requests: Rate, tokens: Rate, steps: list[tuple[float, int, int]], start: float
) -> None:
    buckets, plan, now = Buckets(), Plan("p", requests, tokens), start
    passed = 0
    spent = 0
    largest = 0
    for pause, size, _ in steps:
        now += pause
        if buckets.take("a", plan, size, now) is None:
            passed += 1
            spent += size
            largest = max(largest, size)
        drip = now - start + 1e-3
        assert passed <= requests.capacity + drip / requests.interval + 1e-6
        # One call that is larger than the bucket may be in debt.
        over = max(0, largest - tokens.capacity)
        assert spent <= tokens.capacity + over + drip / tokens.interval + 1e-6


@given(RATES, RATES, STEPS, st.floats(0.0, 2e9))
@example(Rate(7), Rate(11), [(0.1, 11, 0), (0.1, 11, 5), (0.3, 3, -2)], 1.7e9)
def test_a_call_sent_after_the_wait_passes_and_one_much_before_does_not(
    requests: Rate, tokens: Rate, steps: list[tuple[float, int, int]], start: float
) -> None:
    buckets, plan, now = Buckets(), Plan("p", requests, tokens), start
    for pause, size, correction in steps:
        now += pause
        short = buckets.take("a", plan, size, now)
        if short is not None:
            assert short.wait > 0.0
            assert buckets.look("a", plan, size, now + short.wait * 0.99 - 1e-3) is not None
            assert buckets.look("a", plan, size, now + short.wait) is None
        else:
            buckets.correct("a", plan, 0, correction, now)


@given(RATES, STEPS)
def test_levels_tell_what_can_be_taken(rate: Rate, steps: list[tuple[float, int, int]]) -> None:
    buckets, plan, now = Buckets(), Plan("p", tokens=rate), 0.0
    for pause, size, correction in steps:
        now += pause
        buckets.correct("a", plan, 0, size + correction, now)
        level = buckets.level("a", plan, Bucket.TOKENS, now)
        assert level is not None
        assert 0 <= level.remaining <= level.limit == rate.capacity
        if level.remaining:
            assert buckets.look("a", plan, level.remaining, now) is None
        if level.remaining < level.limit:
            # One more than is there, and the unit that is just dripping in.
            assert buckets.look("a", plan, level.remaining + 2, now) is not None or (
                level.remaining + 2 > level.limit or rate.interval * 1 < 2e-6
            )
        full = buckets.level("a", plan, Bucket.TOKENS, now + level.reset)
        assert full == Level(rate.capacity, rate.capacity, near(0.0))
