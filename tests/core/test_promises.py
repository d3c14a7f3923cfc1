"""The highest KV usage that promises lead to, against a simulation of every token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.classes import ServiceClass
from extproc.core.promises import Demand, Promise, Promises, TokenClock

CLASS = ServiceClass("P2", 2)


def always(left: float) -> Promises:
    """Promises that are each predicted to generate the first field of their task."""
    return Promises(lambda demand, generated: float(demand.task or left) - generated, pace=10.0)


def promise(
    number: int, prompt: int, length: int, choices: int = 1, limit: int | None = None
) -> Promise:
    demand = Demand(CLASS, str(length), prompt, limit, choices)
    return Promise(f"x{number}", demand, "e", 0.0, number)


def simulated_peak(sequences: list[tuple[int, int, int]]) -> int:
    """Let all (size, left, choices) generate one token at a time and return the highest usage."""
    longest = max((left for _, left, _ in sequences), default=0)
    return max(
        sum(n * (size + step) for size, left, n in sequences if step <= left)
        for step in range(longest + 1)
    )


calls = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 60), st.integers(1, 3)), max_size=12)


@given(calls)
def test_the_peak_is_that_of_a_simulation_token_by_token(
    sequences: list[tuple[int, int, int]],
) -> None:
    made = always(1)
    for number, (prompt, length, choices) in enumerate(sequences):
        each = promise(number, prompt, length, choices)
        made.add(each, size=prompt, generated=0.0, now=0.0)

    assert made.peak == pytest.approx(simulated_peak(sequences) if sequences else 0.0)
    assert made.sequences == sum(choices for _, _, choices in sequences)


@given(calls, st.tuples(st.integers(1, 300), st.integers(1, 60), st.integers(1, 3)))
def test_the_peak_with_one_more_is_what_the_peak_becomes(
    sequences: list[tuple[int, int, int]], more: tuple[int, int, int]
) -> None:
    made = always(1)
    for number, (prompt, length, choices) in enumerate(sequences):
        made.add(
            promise(number, prompt, length, choices), size=prompt, generated=0.0, now=0.5 * number
        )
    prompt, length, choices = more
    extra = promise(99, prompt, length, choices)
    now = 0.5 * len(sequences)
    made.renew(now)
    before = made.peak

    foretold = made.peak_with(extra.demand, prompt, length, now)
    made.add(extra, size=prompt, generated=0.0, now=now)

    assert foretold == pytest.approx(made.peak)
    assert made.peak >= before - 1e-6


@given(calls, st.data())
def test_withdrawing_leaves_what_was_never_promised(
    sequences: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    made, other = always(1), always(1)
    promises = []
    for number, (prompt, length, choices) in enumerate(sequences):
        each = promise(number, prompt, length, choices)
        promises.append((prompt, each))
        made.add(each, size=prompt, generated=0.0, now=float(number))
    gone = data.draw(st.sets(st.sampled_from(range(len(promises)))) if promises else st.just(set()))
    for number, (prompt, each) in enumerate(promises):
        if number in gone:
            made.withdraw(each)
        else:
            other.clock.read(float(number))
            again = Promise(each.exchange, each.demand, "e", 0.0, each.number)
            other.add(again, size=prompt, generated=0.0, now=float(number))
    now = float(len(sequences))

    assert made.peak == pytest.approx(other.peak, abs=1e-6)
    assert made.current(now) == pytest.approx(other.current(now), abs=1e-6)
    assert len(made) == len(other) == len(list(made)) == len(promises) - len(gone)
    assert made.mean_prompt == pytest.approx(other.mean_prompt)


def test_the_peak_does_not_change_while_time_passes() -> None:
    made = always(1)
    made.add(promise(1, 100, 50), size=100, generated=0.0, now=0.0)
    made.add(promise(2, 30, 90), size=30, generated=0.0, now=1.0)

    assert made.peak == pytest.approx(220)  # when the first ends: 150, and 70 of the second
    assert made.current(1.0) == pytest.approx(140)
    assert made.current(3.0) == pytest.approx(180)
    assert made.peak == pytest.approx(220)


def test_a_sequence_that_outlives_its_prediction_is_predicted_anew() -> None:
    lengths = iter([20.0, 30.0])
    made = Promises(lambda demand, generated: next(lengths), pace=10.0)
    made.add(promise(1, 100, 0), size=100, generated=0.0, now=0.0)
    assert made.peak == pytest.approx(120)

    made.renew(1.9)
    assert made.peak == pytest.approx(120)

    made.renew(2.5)  # 25 tokens are generated, 30 are to come
    assert made.peak == pytest.approx(155)
    assert made.current(2.5) == pytest.approx(125)


def test_a_sequence_past_its_limit_keeps_the_room_it_may_take_and_no_more() -> None:
    made = always(100)
    each = promise(1, 50, 100, limit=100)
    made.add(each, size=50, generated=0.0, now=0.0)

    made.renew(1000.0)

    assert made.peak == pytest.approx(150)
    assert made.current(1000.0) == pytest.approx(134)
    assert made.overrun(each, 1000.0) == pytest.approx(100)
    assert made.generated(each, 1000.0) == pytest.approx(84)


def test_what_generates_nothing_holds_its_prompt() -> None:
    made = always(0)
    made.add(promise(1, 500, 0, limit=0), size=500, generated=0.0, now=0.0)
    assert made.peak == pytest.approx(501)

    made.renew(60.0)
    assert made.current(60.0) == pytest.approx(500)


def test_the_token_clock_never_runs_backwards() -> None:
    clock = TokenClock(pace=10.0)
    assert [clock.read(now) for now in (5.0, 6.0, 5.5, 6.0, 7.0)] == [0.0, 10.0, 10.0, 10.0, 20.0]


def test_an_empty_book_starts_its_clock_anew() -> None:
    made = always(10)
    first = promise(1, 5, 10)
    made.add(first, size=5, generated=0.0, now=0.0)
    made.withdraw(first)
    assert made.peak == 0.0
    assert made.mean_prompt == 0.0

    made.add(promise(2, 5, 10), size=5, generated=4.0, now=100.0)
    assert made.clock.read(100.0) == 0.0
    assert made.peak == pytest.approx(15)
    assert made.current(100.0) == pytest.approx(9)
