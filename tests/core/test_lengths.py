"""What outputs are expected to come to."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.core.lengths import LONGEST, AdaptiveQuantile, LengthHistogram, Lengths


def left(
    lengths: Lengths,
    task: str = "",
    q: float = 0.5,
    generated: float = 0.0,
    limit: int | None = None,
) -> float:
    return lengths.left("P2", task, q=q, generated=generated, limit=limit)


def test_before_anything_ended_the_prior_answers() -> None:
    fresh = Lengths()

    assert left(fresh) == pytest.approx(150, rel=0.06)
    assert left(fresh, q=0.9) == pytest.approx(540, rel=0.06)
    assert left(fresh, limit=100) == 100
    assert left(fresh, limit=0) == 0
    assert left(fresh, generated=400) > left(fresh, generated=0)  # long ones grow longer
    assert repr(fresh) == "<Lengths: 10 ends, 0 histories>"


def test_quantiles_are_learned_within_the_width_of_a_bin() -> None:
    rng, learned = random.Random(1), Lengths()
    for _ in range(2000):
        learned.add("P2", "chat", rng.randint(1, 1000))

    for q in (0.1, 0.5, 0.9):
        assert left(learned, "chat", q=q) == pytest.approx(1000 * q, rel=0.15)
    # Of those that have reached 500, half are over 750.
    assert left(learned, "chat", generated=500) == pytest.approx(250, rel=0.2)


def test_the_narrowest_history_with_enough_ends_answers() -> None:
    learned = Lengths()
    for _ in range(200):
        learned.add("P1", "", 1000)
    assert left(learned) == pytest.approx(1000, rel=0.15)  # the pool's, for want of better
    for _ in range(40):
        learned.add("P2", "chat", 100)
    assert left(learned, "order") == pytest.approx(100, rel=0.15)  # the class's
    for _ in range(19):
        learned.add("P2", "order", 10)
    assert left(learned, "order") > 11
    for _ in range(10):
        learned.add("P2", "order", 10)
    assert left(learned, "order") == pytest.approx(10, rel=0.15)


def test_what_was_long_ago_fades() -> None:
    learned = Lengths()
    for _ in range(3000):
        learned.add("P2", "", 20)
    for _ in range(1500):
        learned.add("P2", "", 800)

    assert left(learned, q=0.1) == pytest.approx(800, rel=0.15)


def test_longer_than_all_that_is_remembered_goes_on_for_a_quarter() -> None:
    learned = Lengths()

    assert left(learned, generated=2.0 * LONGEST) == pytest.approx(LONGEST / 2)
    assert left(learned, generated=2.0 * LONGEST, limit=LONGEST) == 0


def test_what_its_own_history_never_saw_the_pool_answers() -> None:
    learned = Lengths()
    for _ in range(50):
        learned.add("P2", "", 20)
        learned.add("P1", "", 900)

    assert left(learned, generated=100) == pytest.approx(800, rel=0.15)


def test_weights_are_renewed_before_they_overflow() -> None:
    histogram = LengthHistogram()
    for _ in range(25_000):
        histogram.add(100)

    assert histogram.weight == pytest.approx(500, rel=0.01)
    assert histogram.quantile(0.5, 0.0) == pytest.approx(100, rel=0.12)


def test_memory_is_bounded_whatever_tasks_there_are() -> None:
    learned = Lengths()
    for number in range(3000):
        learned.add("P2", f"task {number}", 100)

    assert repr(learned) == "<Lengths: 500 ends, 512 histories>"


@example(lengths=[], q=1.0, over=0.0, more=27446.0, limit=None)
@given(
    lengths=st.lists(st.integers(-5, 10**7), max_size=30),
    q=st.floats(0.0, 1.0),
    over=st.floats(0, 3e6),
    more=st.floats(0, 1e5),
    limit=st.none() | st.integers(0, 10**6),
)
def test_a_prediction_is_a_number_of_tokens_and_grows_with_what_it_must_exceed(
    lengths: list[int], q: float, over: float, more: float, limit: int | None
) -> None:
    learned = Lengths()
    for length in lengths:
        learned.add("P2", "", length)

    soon, later = left(learned, q=q, generated=over), left(learned, q=q, generated=over + more)
    bounded = left(learned, q=q, generated=over, limit=limit)

    assert 0 <= bounded <= soon < float("inf")
    assert over + soon <= over + more + later + 1e-6 * (1 + over + more)
    assert limit is None or bounded <= max(0.0, limit - over)


def test_preemptions_make_predictions_cautious_and_refusals_bold() -> None:
    adaptive = AdaptiveQuantile()
    assert adaptive.value == 0.5
    adaptive.observe(3, 0.0)
    assert adaptive.value == pytest.approx(0.6)
    for second in range(1, 100):
        adaptive.observe(0, float(second))
    assert adaptive.value == pytest.approx(0.6)  # nobody asked for more

    for second in range(100, 140):
        adaptive.refused()
        adaptive.observe(0, float(second))
    assert adaptive.value == pytest.approx(0.4)

    for second in range(140, 500):
        adaptive.refused()
        adaptive.observe(0, float(second))
    assert adaptive.value == pytest.approx(0.1)
    for second in range(500, 600):
        adaptive.observe(1, float(second))
    assert 0.89 < adaptive.value <= 0.9
