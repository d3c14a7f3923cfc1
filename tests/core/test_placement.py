"""Where a call goes."""

from collections.abc import Callable

import pytest

from extproc.core.capacity import Demand, Placement, Pool, Reading, Shortage
from extproc.core.classes import ServiceClass
from extproc.core.endpoint import MOST_FAILURES
from extproc.core.outcomes import End, Outcome
from extproc.core.reasons import Reason

PoolOf = Callable[..., Pool]
Scraped = Callable[..., Reading]
P0 = ServiceClass("P0", 0, strict=True, close=0.03, open=0.05)
P1 = ServiceClass("P1", 1, close=0.08, open=0.12)
P2 = ServiceClass("P2", 2, close=0.15, open=0.20, concurrency=0.80)
CALL = Demand(P2, "", 500, 100)


def read(
    made: Pool, scraped: Scraped, used: dict[str, float], now: float = 0.0, **more: int
) -> None:
    for endpoint, usage in used.items():
        made.sending(endpoint, now)
        made.observe(endpoint, scraped(usage, **more), read_at=now, now=now)


def where(found: Placement | Shortage) -> str | None:
    assert isinstance(found, Placement)
    return found.endpoint


def roughly(found: Placement | Shortage) -> tuple[str | None, bool, float | None]:
    assert isinstance(found, Placement)
    return found.endpoint, found.chosen, None if found.free is None else round(found.free, 2)


def why(found: Placement | Shortage) -> tuple[str, float | None]:
    assert isinstance(found, Shortage)
    return found.reason.value, found.threshold


def test_a_call_goes_where_most_is_free_after_it(pool_of: PoolOf, scraped: Scraped) -> None:
    made = pool_of("a", "b", "c", pick=True)
    read(made, scraped, {"a": 0.5, "b": 0.2, "c": 0.4})

    found = made.place(CALL, 0.0)

    assert roughly(found) == ("b", True, 0.76)


def test_of_equally_free_endpoints_the_one_with_fewer_unread_prompts(
    pool_of: PoolOf, scraped: Scraped
) -> None:
    made = pool_of("a", "b", pick=True)
    read(made, scraped, {"a": 0.2, "b": 0.2})
    made.reserve("x", Demand(P2, "", 100, 1), "a", 0.0)
    assert where(made.place(CALL, 0.0)) == "b"

    made = pool_of("a", "b", pick=True)
    read(made, scraped, {"a": 0.0, "b": 0.001})
    made.endpoints["a"].dispatch(CALL, 0.0)
    assert where(made.place(CALL, 0.0)) == "b"


def test_an_endpoint_that_cannot_be_read_is_used_where_no_other_will_do(
    pool_of: PoolOf, scraped: Scraped
) -> None:
    made = pool_of("dead", "busy", pick=True)
    read(made, scraped, {"dead": 0.0, "busy": 0.5})
    made.fail("dead", "connection refused")
    assert where(made.place(CALL, 0.0)) == "busy"

    read(made, scraped, {"busy": 0.84}, 0.1)
    assert where(made.place(CALL, 0.1)) == "dead"

    made.reserve("x", CALL, "dead", 0.1)
    held = made.release("x")
    assert held is not None
    made.learn(held, End(Outcome.ENGINE_ERROR))
    assert why(made.place(CALL, 0.1)) == ("kv_demand", 0.15)  # it is down

    read(made, scraped, {"dead": 0.0}, 0.2)
    assert where(made.place(CALL, 0.2)) == "dead"  # it is back


def test_an_error_of_a_readable_endpoint_does_not_make_it_down(
    pool_of: PoolOf, scraped: Scraped
) -> None:
    made = pool_of("a", pick=True)
    read(made, scraped, {"a": 0.0})
    made.reserve("x", CALL, "a", 0.0)
    held = made.release("x")
    assert held is not None
    made.learn(held, End(Outcome.ENGINE_ERROR))
    made.learn(held, End(Outcome.CLIENT_GONE))

    assert not made.endpoints["a"].down


def test_many_failures_at_once_show_that_an_endpoint_is_gone_before_a_scrape_does(
    pool_of: PoolOf, scraped: Scraped
) -> None:
    made = pool_of("dead", "busy", pick=True)
    read(made, scraped, {"dead": 0.5, "busy": 0.8})
    for number in range(MOST_FAILURES):
        made.reserve(f"x{number}", CALL, "dead", 0.0)
    for number in range(MOST_FAILURES):
        assert where(made.place(CALL, 0.1)) == "dead"
        held = made.release(f"x{number}")
        assert held is not None
        made.learn(held, End(Outcome.ENGINE_ERROR))
    assert where(made.place(CALL, 0.1)) == "busy"

    read(made, scraped, {"dead": 0.5}, 0.2)
    assert where(made.place(CALL, 0.2)) == "dead"  # it was not


def test_an_endpoint_is_down_whichever_failed_first(pool_of: PoolOf, scraped: Scraped) -> None:
    made = pool_of("dead", "busy", pick=True)
    read(made, scraped, {"dead": 0.0, "busy": 0.84})
    made.reserve("x", CALL, "dead", 0.0)
    held = made.release("x")
    assert held is not None
    made.learn(held, End(Outcome.ENGINE_ERROR))
    assert where(made.place(CALL, 0.1)) == "dead"  # it can still be read

    made.fail("dead", "connection refused")
    assert why(made.place(CALL, 0.1)) == ("kv_demand", 0.15)


def test_where_nothing_is_known_envoy_chooses(pool_of: PoolOf) -> None:
    made = pool_of("a", "b", pick=True)
    made.reserve("x", CALL, "a", 0.0)

    assert made.place(CALL, 0.0) == Placement("b", False, None, 100.0)


def test_an_endpoint_of_which_only_the_usage_is_known_is_judged_by_it(
    pool_of: PoolOf, scraped: Scraped
) -> None:
    made = pool_of("a", pick=True)
    read(made, scraped, {"a": 0.8}, blocks=None)  # type: ignore[arg-type]
    assert roughly(made.place(CALL, 0.0)) == ("a", True, 0.2)
    read(made, scraped, {"a": 0.9}, 0.1, blocks=None)  # type: ignore[arg-type]
    assert why(made.place(CALL, 0.1)) == ("kv_watermark", 0.15)


def test_left_to_envoy_the_pool_is_judged_as_one(pool_of: PoolOf, scraped: Scraped) -> None:
    made = pool_of("a", "b")
    read(made, scraped, {"a": 0.99, "b": 0.41})  # 30 % free together
    made.reserve("x", Demand(P2, "", 10, 10), "a", 0.0)

    assert roughly(made.place(CALL, 0.0)) == ("b", False, 0.28)
    assert why(made.place(Demand(P2, "", 5000, 10), 0.0)) == ("kv_demand", 0.15)


def test_a_strict_call_fits_as_long_as_there_is_room_and_not_longer(
    pool_of: PoolOf, scraped: Scraped
) -> None:
    made = pool_of("a", "b", pick=True)
    read(made, scraped, {"a": 0.95, "b": 0.98})

    assert where(made.place(Demand(P0, "", 500, 100), 0.0)) == "a"
    assert why(made.place(Demand(P0, "", 900, 100), 0.0)) == ("kv_demand", 0.0)
    assert made.squeeze(Demand(P0, "", 900, 100), 0.0).endpoint == "a"
    assert pool_of().squeeze(CALL, 0.0) == Placement(None, False, None, 0.0)
    assert why(pool_of().place(CALL, 0.0)) == ("no_endpoint", None)


@pytest.mark.parametrize("pick", [True, False])
def test_too_many_unread_prompts_refuse_a_call(
    pick: bool, pool_of: PoolOf, scraped: Scraped
) -> None:
    made = pool_of("a", pick=pick)
    read(made, scraped, {"a": 0.0})
    capped = ServiceClass("P2", 2, close=0.15, open=0.20, prefill_cap=600)
    timed = ServiceClass("P2", 2, close=0.15, open=0.20, prefill_wait=0.1)
    assert where(made.place(Demand(capped, "", 700), 0.0)) == "a"  # nothing is before it
    made.reserve("x", Demand(P1, "", 200), "a", 0.0)

    assert where(made.place(Demand(capped, "", 400), 0.0)) == "a"
    assert why(made.place(Demand(capped, "", 401), 0.0)) == ("prefill_backlog", 600)
    assert made.squeeze(Demand(capped, "", 401), 0.0).endpoint == "a"
    made.release("x")
    made.reserve("y", Demand(P1, "", 700), "a", 10.0)
    assert why(made.place(Demand(timed, "", 101), 10.0)) == ("prefill_backlog", 800)


@pytest.mark.parametrize("pick", [True, False])
def test_a_call_too_long_for_an_engine_is_the_engines_to_refuse(
    pick: bool, pool_of: PoolOf, scraped: Scraped
) -> None:
    made, huge = pool_of("a", pick=pick), Demand(P2, "", 100_000)
    read(made, scraped, {"a": 0.5})
    found = made.place(huge, 0.0)
    assert where(found) == "a"
    made.reserve("huge", huge, "a", 0.0)
    assert made.endpoints["a"].unprefilled(0.0) == 16_000  # it takes no more than there is
    made.release("huge")
    assert made.endpoints["a"].unprefilled(0.0) == 0.0

    made.reserve("x", CALL, "a", 0.0)  # not while others are there
    assert why(made.place(huge, 0.9)) == ("kv_demand", 0.15)
    made.release("x")
    read(made, scraped, {"a": 0.9}, 1.0)  # nor while its class is closed
    assert why(made.place(huge, 1.0)) == ("kv_watermark", 0.15)


def test_a_call_too_long_for_an_engine_bars_no_class(pool_of: PoolOf, scraped: Scraped) -> None:
    made = pool_of("a", pick=True)
    read(made, scraped, {"a": 0.0})
    made.reserve("x", Demand(P1, "", 1892, 100), "a", 0.0)  # 12.5 %

    assert why(made.place(Demand(P1, "", 100_000), 0.0)) == ("kv_demand", 0.08)
    assert where(made.place(CALL, 0.0)) == "a"
    assert why(made.place(Demand(P1, "", 13_000), 0.0)) == ("kv_demand", 0.08)
    found = made.place(CALL, 0.0)
    assert isinstance(found, Shortage)
    assert (found.reason, found.threshold, found.value) == (Reason.KV_DEMAND, 0.875, 0.875)
