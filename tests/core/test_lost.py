"""Ends that were never heard of."""

from collections.abc import Callable

from extproc.core.capacity import Demand, Pool, Reading
from extproc.core.classes import ServiceClass

P2 = ServiceClass("P2", 2, close=0.15, open=0.20)
PoolOf = Callable[..., Pool]
Scraped = Callable[..., Reading]


def made_with(pool_of: PoolOf, scraped: Scraped, *choices: int) -> Pool:
    made = pool_of("a", "b", pick=True)
    read(made, scraped, 0.0, 0, 0)
    for number, each in enumerate(choices):
        # 20 tokens at 25/s: after 1.6 s it has lasted twice as long as predicted.
        made.reserve(f"x{number}", Demand(P2, "", 100, 20, each), "ab"[number % 2], number / 10)
    return made


def read(made: Pool, scraped: Scraped, now: float, *running: int) -> None:
    for endpoint, each in zip("ab", running, strict=True):
        made.sending(endpoint, now)
        made.observe(endpoint, scraped(running=each), read_at=now, now=now)


def in_flight(made: Pool) -> list[str]:
    return [each.exchange for each in made.promises()]


def test_what_no_engine_has_is_let_go_the_most_overdue_first(
    pool_of: PoolOf, scraped: Scraped
) -> None:
    made = made_with(pool_of, scraped, 1, 1, 1)
    for second in range(5, 9):
        read(made, scraped, float(second), 1, 1)

    assert in_flight(made) == ["x1", "x2"]
    assert made.release("x0") is None


def test_one_scrape_that_shows_them_all_is_enough_to_keep_them(
    pool_of: PoolOf, scraped: Scraped
) -> None:
    made = made_with(pool_of, scraped, 1, 1)
    for second in range(5, 20):
        read(made, scraped, float(second), 1, second % 2)

    assert in_flight(made) == ["x0", "x1"]


def test_what_has_not_outlived_its_prediction_is_kept(pool_of: PoolOf, scraped: Scraped) -> None:
    made = made_with(pool_of, scraped, 1, 1)
    for step in range(4):
        read(made, scraped, 0.3 + step / 10, 0, 0)

    assert in_flight(made) == ["x0", "x1"]


def test_a_call_of_more_sequences_than_are_missing_is_kept(
    pool_of: PoolOf, scraped: Scraped
) -> None:
    made = made_with(pool_of, scraped, 3, 1)
    for second in range(5, 9):
        read(made, scraped, float(second), 1, 1)

    assert in_flight(made) == ["x0"]


def test_while_an_endpoint_is_not_read_nothing_is_let_go(pool_of: PoolOf, scraped: Scraped) -> None:
    made = made_with(pool_of, scraped, 1, 1)
    for second in range(5, 20):
        made.sending("a", float(second))
        made.observe("a", scraped(), read_at=float(second), now=float(second))

    assert in_flight(made) == ["x0", "x1"]
