"""Which exchanges are cut, and when no more are."""

from collections.abc import Callable

from extproc.core.capacity import Demand, Pool, PoolLimits, Reading
from extproc.core.classes import ServiceClass
from extproc.core.eviction import PATIENCE, Evictor

P0 = ServiceClass("P0", 0, strict=True, close=0.03, open=0.05)
P1 = ServiceClass("P1", 1, close=0.08, open=0.12)
P2 = ServiceClass("P2", 2, close=0.15, open=0.20, evictable=True)
PAY = Demand(P0, "", 2000, 100)
PoolOf = Callable[..., Pool]
Scraped = Callable[..., Reading]


def read(made: Pool, scraped: Scraped, now: float, used: float = 0.5) -> None:
    made.sending("a", now)
    made.observe("a", scraped(used, running=9), read_at=now, now=now)


def busy(pool_of: PoolOf, scraped: Scraped, used: float = 0.5) -> Pool:
    """A pool with exchanges of each class; of P2 the first is the furthest."""
    made = pool_of("a", pick=True)
    read(made, scraped, 0.0, used)
    for number, each in enumerate((P0, P1, P2, P2, P2, P2)):
        made.reserve(f"x{number}", Demand(each, "", 500, 2000), "a", number / 100)
    return made


def test_the_newest_of_the_evictable_are_cut_two_at_a_time(
    pool_of: PoolOf, scraped: Scraped
) -> None:
    made = busy(pool_of, scraped)
    evictor = Evictor(made)
    assert evictor.decide(0.1) == ()  # there is room

    assert evictor.decide(0.1, wanted=PAY) == ("x5", "x4")
    assert repr(evictor) == "<Evictor of qwen: waits for ['x4', 'x5']>"


def test_one_is_enough_where_it_holds_as_much_as_is_wanted(
    pool_of: PoolOf, scraped: Scraped
) -> None:
    evictor = Evictor(busy(pool_of, scraped))

    assert evictor.decide(0.1, wanted=Demand(P0, "", 400, 10)) == ("x5",)


def test_nothing_more_is_cut_until_the_blocks_came_back(pool_of: PoolOf, scraped: Scraped) -> None:
    made = busy(pool_of, scraped)
    evictor = Evictor(made)
    evictor.decide(0.1, wanted=PAY)
    read(made, scraped, 0.2)
    assert evictor.decide(0.2, wanted=PAY) == ()

    made.release("x5")
    made.release("x4")
    assert evictor.decide(0.3, wanted=PAY) == ()
    read(made, scraped, 0.4)
    assert evictor.decide(0.4, wanted=PAY) == ()  # this scrape may have been sent before
    read(made, scraped, 0.6)
    assert evictor.decide(0.6, wanted=PAY) == ("x3", "x2")


def test_a_cut_that_does_not_end_is_not_waited_for_for_ever(
    pool_of: PoolOf, scraped: Scraped
) -> None:
    made = busy(pool_of, scraped)
    evictor = Evictor(made)
    evictor.decide(0.1, wanted=PAY)
    for step in range(PATIENCE):
        assert evictor.decide(0.2 + step / 5, wanted=PAY) == ()
        read(made, scraped, 0.2 + step / 5)

    assert evictor.decide(3.0, wanted=PAY) != ()


def test_while_nothing_is_read_nothing_more_is_cut(pool_of: PoolOf, scraped: Scraped) -> None:
    made = busy(pool_of, scraped)
    evictor = Evictor(made)
    evictor.decide(0.1, wanted=PAY)
    made.release("x4")
    made.release("x5")

    assert evictor.decide(9.0, wanted=PAY) == ()
    made.leave("a", 9.1)
    assert evictor.decide(9.1, wanted=PAY) == ()  # and nobody is left there
    assert repr(evictor) == "<Evictor of qwen: waits for []>"


def test_under_the_mark_of_p1_p2_is_cut_where_more_is_promised_than_fits(
    pool_of: PoolOf, scraped: Scraped
) -> None:
    assert Evictor(busy(pool_of, scraped, 0.93)).decide(0.1) == ("x5", "x4")
    assert Evictor(busy(pool_of, scraped, 0.91)).decide(0.1) == ()

    settled = pool_of("a", pick=True)
    settled.reserve("x", Demand(P2, "", 14_800, 100), "a", 0.0)
    read(settled, scraped, 0.0, 0.93)
    assert Evictor(settled).decide(0.1) == ()


def test_what_cannot_be_ended_well_is_not_cut(pool_of: PoolOf, scraped: Scraped) -> None:
    evictor = Evictor(busy(pool_of, scraped))

    assert evictor.decide(0.1, wanted=PAY, cuttable={"x0", "x2", "x4"}) == ("x4", "x2")
    evictor = Evictor(busy(pool_of, scraped))
    assert evictor.decide(0.1, wanted=PAY, cuttable=set()) == ()


def test_where_all_classes_are_strict_or_nothing_is_known_nothing_is_cut(pool_of: PoolOf) -> None:
    strict = Pool("qwen", PoolLimits(10, 1.0, 11.0, blocks=1, block_size=16), (P0,))
    strict.join("a")
    strict.reserve("x", Demand(P0, "", 500), "a", 0.0)
    assert Evictor(strict).decide(0.0) == ()
    assert Evictor(pool_of("a")).decide(0.0) == ()
