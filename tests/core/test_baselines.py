"""What is usual, and what speaks for a rise."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.baselines import Baseline, log_length


def baseline_of(*lengths: int) -> Baseline:
    made = Baseline()
    for each in lengths:
        made.add(log_length(each))
    return made


def test_short_outputs_are_all_alike() -> None:
    assert log_length(1) == log_length(32) == math.log(32)
    assert log_length(64) == math.log(64)


def test_the_average_is_that_of_a_log_normal_distribution() -> None:
    rng = random.Random(7)
    made = baseline_of(*(round(rng.lognormvariate(6.0, 0.5)) for _ in range(5000)))
    assert made.average == pytest.approx(math.exp(6.0 + 0.125), rel=0.06)


def test_a_baseline_is_believed_after_fifty_outputs() -> None:
    assert not baseline_of(*[100] * 49).learned
    assert baseline_of(*[100] * 50).learned


def test_a_task_that_always_answers_alike_may_vary_by_a_quarter() -> None:
    made = baseline_of(*[100] * 60)
    # Twice as long: d²/2σ² with d = ln 2 and σ = 0.25.
    assert made.evidence(log_length(200), 2.0, 99.0) == pytest.approx(3.844, abs=0.01)
    assert made.evidence(log_length(100), 2.0, 99.0) == pytest.approx(-3.844, abs=0.01)
    assert made.factor(log_length(200)) == pytest.approx(2.0)


def test_an_outlier_moves_the_baseline_as_if_it_lay_at_three_sigma() -> None:
    made = baseline_of(*[100] * 60)
    made.add(log_length(1 << 20))
    assert made.average < 106


def test_a_baseline_follows_a_drift() -> None:
    made = baseline_of(*[100] * 500, *[150] * 2000)
    assert made.average == pytest.approx(150, rel=0.06)


def test_its_repr_tells_what_is_usual() -> None:
    assert repr(baseline_of(*[100] * 3)) == "<Baseline: 3 outputs, 103 tokens on average>"


@given(
    st.lists(st.integers(0, 1 << 20), min_size=50, max_size=200),
    st.integers(0, 1 << 30),
    st.floats(0.1, 10.0),
)
def test_one_call_never_says_more_than_it_may(lengths: list[int], length: int, most: float) -> None:
    evidence = baseline_of(*lengths).evidence(log_length(length), 2.0, most)
    assert -most <= evidence <= most
