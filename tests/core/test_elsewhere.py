"""What other Tidegates have promised counts as promised, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extproc.core.capacity import Pool, Reading
from extproc.core.classes import ServiceClass
from extproc.core.endpoint import Promised
from extproc.core.placement import Placement, Shortage
from extproc.core.promises import Demand
from extproc.core.reasons import Reason

Make = Callable[..., Pool]
Scraped = Callable[..., Reading]


def read(pool: Pool, reading: Reading, at: float) -> None:
    pool.sending("a", at)
    pool.observe("a", reading, read_at=at, now=at)


def predicted(pool: Pool, now: float) -> float:
    free = pool.load(now).predicted
    assert free is not None
    return free


def test_their_peak_counts_before_an_engine_shows_it(pool_of: Make, scraped: Scraped) -> None:
    pool = pool_of("a")
    read(pool, scraped(), 0.0)
    assert predicted(pool, 0.0) == 1.0

    pool.shared(3, {"a": Promised(peak=4000.0, current=1000.0), "b": Promised(9e9, 9e9)})
    assert predicted(pool, 0.0) == pytest.approx(0.75)
    pool.shared(0, {})
    assert predicted(pool, 0.0) == 1.0


def test_what_they_have_in_use_is_no_load_of_unknown_origin(
    pool_of: Make, scraped: Scraped
) -> None:
    alone, together = pool_of("a"), pool_of("a")
    for pool in (alone, together):
        read(pool, scraped(), 0.0)
    together.shared(3, {"a": Promised(peak=4800.0, current=4800.0)})
    for pool in (alone, together):
        read(pool, scraped(0.3), 0.2)

    assert alone.endpoints["a"].bias == pytest.approx(4800.0, rel=0.1)
    assert together.endpoints["a"].bias == pytest.approx(0.0, abs=1.0)
    assert predicted(together, 0.2) == pytest.approx(0.7)
    assert predicted(alone, 0.2) == pytest.approx(0.7, abs=0.03)


def test_who_is_heard_of_no_more_is_load_of_unknown_origin_again(
    pool_of: Make, scraped: Scraped
) -> None:
    pool = pool_of("a")
    pool.shared(3, {"a": Promised(4800.0, 4800.0)})
    read(pool, scraped(0.3), 0.0)
    pool.shared(0, {})
    read(pool, scraped(0.3), 0.2)

    assert predicted(pool, 0.2) == pytest.approx(0.7, abs=0.03)


def test_a_stale_reading_is_moved_on_by_what_they_took(pool_of: Make, scraped: Scraped) -> None:
    pool = pool_of("a")
    read(pool, scraped(0.3), 0.0)
    pool.shared(3, {"a": Promised(1600.0, 1600.0)})

    account = pool.endpoints["a"].account(5.0)
    assert account is not None
    assert account.observed == pytest.approx(0.4 * 16_000)


def test_their_exchanges_count_where_concurrency_is_limited(
    pool_of: Make, classes: tuple[ServiceClass, ...]
) -> None:
    pool = pool_of("a", concurrency=10)
    pool.shared(7, {})
    assert isinstance(pool.place(Demand(classes[2]), 0.0), Placement)
    pool.shared(8, {})
    assert pool.place(Demand(classes[2]), 0.0) == Shortage(Reason.CONCURRENCY, 8, 8)
