"""What is said of a process that grows, and of one that does not."""

from __future__ import annotations

import random

import pytest

from tests.cluster.steady import trend


def test_what_grows_is_told_by_how_much() -> None:
    seen = trend([(float(second), 100 + second / 60) for second in range(0, 1200, 2)])
    assert seen.per_hour == pytest.approx(60.0)
    assert seen.growth == pytest.approx(10.0, abs=0.1)


def test_what_only_grows_in_the_beginning_does_not_grow() -> None:
    seen = trend([(float(second), min(100.0, 40 + second)) for second in range(0, 1200, 2)])
    assert (seen.first, seen.last, seen.per_hour) == (100.0, 100.0, 0.0)


def test_noise_is_no_growth() -> None:
    rng = random.Random(1)
    seen = trend([(float(second), 100 + rng.gauss(0, 1)) for second in range(0, 1200, 2)])
    assert abs(seen.growth) < 0.5


def test_a_few_samples_tell_nothing() -> None:
    with pytest.raises(ValueError, match="11 samples tell nothing"):
        trend([(float(second), 1.0) for second in range(11)])
