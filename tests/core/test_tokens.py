"""Tokens of prompts, learned by script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.tokens import PromptParts, TokenEstimator

ENGLISH = PromptParts(100, 0, 10)
CHINESE = PromptParts(5, 300, 15)


def test_the_first_guess_is_the_estimate_until_usage_comes() -> None:
    fresh = TokenEstimator()

    assert fresh.estimate(ENGLISH) == 110
    assert fresh.estimate(PromptParts(0, 0, 0)) == 1
    assert fresh.estimate(PromptParts(1, 0, 0, media=1024)) == 1025
    assert repr(fresh) == "<TokenEstimator: latin × 1.00, wide × 1.00, other × 1.00>"


def test_each_script_is_learned_on_its_own() -> None:
    learned = TokenEstimator()
    for _ in range(300):
        learned.observe(ENGLISH, 100)
        learned.observe(CHINESE, 640)

    assert learned.estimate(ENGLISH) == pytest.approx(100, rel=0.02)
    assert learned.estimate(CHINESE) == pytest.approx(640, rel=0.02)
    assert learned.factors[1] == pytest.approx(2.08, rel=0.05)


def test_media_and_empty_reports_teach_nothing() -> None:
    learned = TokenEstimator()
    learned.observe(PromptParts(1, 0, 0, media=1024), 5)
    learned.observe(ENGLISH, 0)
    learned.observe(PromptParts(0, 0, 0), 10)

    assert learned.factors == [1.0, 1.0, 1.0]


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(-1, 10**9)),
        max_size=60,
    )
)
def test_whatever_is_reported_factors_stay_within_their_bounds(
    reports: list[tuple[float, float, float, int]],
) -> None:
    learned = TokenEstimator()
    for latin, wide, other, tokens in reports:
        learned.observe(PromptParts(latin, wide, other), tokens)

    assert all(0.25 <= factor <= 4.0 for factor in learned.factors)
