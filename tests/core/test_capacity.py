"""The books of a pool: readings, watermarks with hysteresis, what is in flight."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.capacity import Demand, Freshness, Pool, PoolLimits, Reading
from extproc.core.classes import ServiceClass
from extproc.core.outcomes import End, Outcome

P0 = ServiceClass("P0", 0, strict=True, close=0.03, open=0.05)
P1 = ServiceClass("P1", 1, close=0.08, open=0.12)
P2 = ServiceClass("P2", 2, close=0.15, open=0.20, concurrency=0.80)
LIMITS = PoolLimits(max_concurrency=10, stale_after=1.0, unknown_after=11.0)


def reading(used: float, blocks: int | None = 1000) -> Reading:
    return Reading(used, blocks, 16, running=0, waiting=0, preemptions=0)


def pool(*endpoints: str) -> Pool:
    made = Pool("qwen", LIMITS, (P0, P1, P2))
    for endpoint in endpoints:
        made.join(endpoint)
    return made


def closed(made: Pool, now: float) -> list[str]:
    return [each.name for each in made.classes if made.is_closed(each, now)]


def test_nothing_is_known_at_first_and_nothing_is_closed() -> None:
    made = pool("a")

    load = made.load(0.0)

    assert (load.free, load.tightening, load.in_flight, load.endpoints) == (None, 1.0, 0, 1)
    assert closed(made, 0.0) == []
    assert made.freshness("a", 0.0) is Freshness.UNKNOWN
    assert repr(made) == "<Pool qwen: 1 endpoints, 0/10 in flight, closed []>"


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (0.00, []),
        (0.85, []),  # exactly 15 % free is not under 15 %
        (0.86, ["P2"]),
        (0.92, ["P2"]),
        (0.93, ["P1", "P2"]),
        (1.00, ["P1", "P2"]),  # never P0: it is strict
    ],
)
def test_classes_close_under_their_watermark(used: float, expected: list[str]) -> None:
    made = pool("a")

    made.observe("a", reading(used), read_at=0.0, now=0.0)

    assert closed(made, 0.0) == expected


def test_what_an_engine_tells_beside_an_answer_closes_at_once() -> None:
    made = pool("a")
    made.observe("a", reading(0.5), read_at=0.0, now=0.0)

    made.report("a", 0.93, 0, 0.1)
    made.report("b", 1.0, 0, 0.1)

    assert closed(made, 0.1) == ["P1", "P2"]


def test_a_closed_class_opens_only_above_its_upper_mark() -> None:
    made = pool("a")
    seen = []
    second = 0.0
    for used in (0.86, 0.84, 0.80, 0.79, 0.84, 0.93, 0.89, 0.87, 0.79):
        for _ in range(20):  # until the bias has settled
            second += 0.9
            made.observe("a", reading(used), read_at=second, now=second)
        seen.append(closed(made, second))

    assert seen == [
        ["P2"],  # 14 % free
        ["P2"],  # 16 %: over the lower mark, not over the upper one
        ["P2"],  # 20 %: not above 20 %
        [],  # 21 %
        [],  # 16 %: not under 15 %
        ["P1", "P2"],  # 7 %
        ["P1", "P2"],  # 11 %
        ["P2"],  # 13 %
        [],  # 21 %
    ]


def test_a_class_closes_although_no_call_of_it_came_while_the_pool_was_full() -> None:
    made = pool("a")
    made.observe("a", reading(0.90), read_at=0.0, now=0.0)
    made.observe("a", reading(0.83), read_at=0.2, now=0.2)

    assert closed(made, 0.2) == ["P2"]


def test_blocks_weigh_endpoints_and_equal_weights_do_where_blocks_are_unknown() -> None:
    made = pool("large", "small")
    made.observe("large", reading(0.50, blocks=3000), read_at=0.0, now=0.0)
    made.observe("small", reading(0.90, blocks=1000), read_at=0.0, now=0.0)
    assert made.load(0.0).free == pytest.approx(0.40)

    # How many blocks there were is not forgotten; of an endpoint that never said it is unknown.
    made.observe("small", reading(0.90, blocks=None), read_at=0.1, now=0.1)
    assert made.load(0.1).free == pytest.approx(0.40)
    made.join("new")
    made.observe("new", reading(0.40, blocks=None), read_at=0.1, now=0.1)
    assert made.load(0.1).free == pytest.approx(0.40)
    made.leave("large", 0.1)
    assert made.load(0.1).free == pytest.approx(0.35)


def test_an_endpoint_of_which_nothing_is_known_makes_nothing_look_idle() -> None:
    made = pool("full", "silent")
    made.observe("full", reading(0.95), read_at=0.0, now=0.0)
    made.fail("silent", "timeout")

    assert made.load(0.0).free == pytest.approx(0.05)
    assert closed(made, 0.0) == ["P1", "P2"]
    assert made.endpoints["silent"].problem == "timeout"


def test_a_stale_reading_tightens_the_watermarks_up_to_twice() -> None:
    made = pool("a")
    made.observe("a", reading(0.72), read_at=0.0, now=0.0)  # 28 % free: nothing closed

    assert made.load(1.0).tightening == 1.0
    assert made.load(6.0).tightening == pytest.approx(1.5)  # P2 closes under 22.5 %
    assert closed(made, 6.0) == []
    assert made.load(10.9).tightening == pytest.approx(1.99)  # P2 closes under 29.85 %
    assert closed(made, 10.9) == ["P2"]
    assert made.freshness("a", 10.9) is Freshness.STALE


def test_a_reading_stops_counting_at_the_moment_it_is_unknown() -> None:
    made = pool("a")
    made.observe("a", reading(0.9), read_at=0.0, now=0.0)

    assert made.load(10.99).free == 0.1  # the next look would be due at 11.09
    assert made.load(11.01).free is None
    assert made.freshness("a", 11.01) is Freshness.UNKNOWN


def test_an_unknown_reading_leaves_own_accounting_under_marks_that_stay_doubled() -> None:
    made = pool("a")
    made.observe("a", reading(0.99), read_at=0.0, now=0.0)
    assert closed(made, 0.0) == ["P1", "P2"]

    assert closed(made, 11.5) == []
    assert made.load(11.5).free is None
    assert made.load(11.5).predicted == 1.0
    assert made.load(11.5).tightening == 2.0
    assert made.freshness("a", 11.5) is Freshness.UNKNOWN


def test_where_no_capacity_is_known_an_unknown_reading_leaves_only_concurrency() -> None:
    made = pool("a")
    made.observe("a", reading(0.99, blocks=None), read_at=0.0, now=0.0)
    assert closed(made, 0.0) == ["P1", "P2"]

    assert closed(made, 11.5) == []
    assert made.load(11.5).predicted is None


def test_a_late_answer_never_replaces_a_newer_one() -> None:
    made = pool("a")
    made.observe("a", reading(0.95), read_at=1.0, now=1.0)
    made.observe("a", reading(0.00), read_at=0.5, now=1.1)

    assert made.load(1.1).free == pytest.approx(0.05)


def test_a_good_reading_clears_the_problem_and_an_absent_endpoint_is_ignored() -> None:
    made = pool("a")
    made.fail("a", "500")
    made.observe("a", reading(0.1), read_at=0.0, now=0.0)
    made.observe("gone", reading(0.1), read_at=0.0, now=0.0)
    made.fail("gone", "500")
    made.sending("gone", 0.0)

    assert made.endpoints["a"].problem is None
    assert list(made.endpoints) == ["a"]


def test_an_endpoint_that_leaves_takes_its_reading_along() -> None:
    made = pool("a", "b")
    made.observe("a", reading(0.99), read_at=0.0, now=0.0)
    made.observe("b", reading(0.50), read_at=0.0, now=0.0)
    made.leave("a", 0.1)
    made.leave("a", 0.2)

    assert made.load(0.2).free == pytest.approx(0.50)


def test_reserving_and_releasing_count_once() -> None:
    made = pool("a")
    for exchange in ("x", "x", "y"):
        made.reserve(exchange, Demand(P2), "a", 0.0)
    assert made.in_flight == 2
    made.release("x")
    made.release("x")
    made.release("never")
    assert made.in_flight == 1


def test_the_concurrency_limit_is_a_share_and_at_least_one() -> None:
    made = pool("a")
    tiny = ServiceClass("P3", 3, concurrency=0.0)

    assert [made.concurrency_limit(each) for each in (P0, P1, P2, tiny)] == [10, 10, 8, 1]


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]),
            st.floats(0, 1),
            st.floats(0, 5),
            st.sampled_from([None, 100, 300]),
        ),
        max_size=30,
    )
)
def test_a_closed_class_closes_all_under_it_and_free_stays_a_ratio(
    steps: list[tuple[str, float, float, int | None]],
) -> None:
    made = pool("a", "b")
    now = 0.0
    for endpoint, used, wait, blocks in steps:
        now += wait
        made.observe(endpoint, reading(used, blocks), read_at=now, now=now)
        later = now + wait / 2
        states = [made.is_closed(each, later) for each in made.classes]
        load = made.load(later)

        assert states == sorted(states), "a lower class was open while a higher one was closed"
        assert load.free is None or -1e-9 <= load.free <= 1 + 1e-9
        assert 1.0 <= load.tightening <= 2.0
        assert math.isfinite(load.tightening)


def test_an_exchange_outlives_its_endpoint_and_is_still_learned_from() -> None:
    made = pool("a")
    made.reserve("x", Demand(P1, prompt=10, max_output=100), "a", 0.0)
    made.leave("a", 1.0)
    assert made.in_flight == 1

    held = made.release("x")

    assert held is not None
    made.learn(held, End(Outcome.COMPLETED, 10, 40, 2.0))
    assert made.in_flight == 0
    assert repr(made.lengths) == "<Lengths: 11 ends, 2 histories>"
