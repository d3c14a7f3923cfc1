"""One endpoint: what it says against what it was promised."""

from collections.abc import Callable
from typing import Any

import pytest

from extproc.core.classes import ServiceClass
from extproc.core.endpoint import Account, Endpoint, Timing
from extproc.core.promises import Demand, Promise
from extproc.core.readings import Freshness, Reading

CLASS = ServiceClass("P2", 2)
Scraped = Callable[..., Reading]


def endpoint(left: float = 100.0, **more: Any) -> Endpoint:
    return Endpoint("a", Timing(1.0, 11.0), lambda demand, generated: left, **more)


def promise(made: Endpoint, prompt: int, now: float = 0.0, number: int = 1) -> Promise:
    demand = Demand(CLASS, "", prompt)
    each = Promise(f"x{number}", demand, "a", now, number)
    made.dispatch(demand, now)
    made.promises.add(each, size=made.size(demand), generated=0.0, now=now)
    return each


def account(made: Endpoint, now: float) -> Account:
    found = made.account(now)
    assert found is not None
    return found


def read(made: Endpoint, reading: Reading, at: float) -> None:
    made.sending(at)
    made.observe(reading, at, at)


def test_without_blocks_there_is_no_account_and_with_configured_ones_there_is(
    scraped: Scraped,
) -> None:
    assert endpoint().account(0.0) is None
    assert endpoint(blocks=10, block_size=16).account(0.0) == Account(160, 0, 0, 0, 0, 0)

    made = endpoint(blocks=10, block_size=16)
    read(made, scraped(blocks=20), 0.0)
    assert made.capacity == 320
    read(made, scraped(blocks=None, block_size=None), 0.1)
    assert made.capacity == 320
    assert repr(made) == "<Endpoint a: 0 promises, peak 0 of 320, bias 0>"


def test_the_peak_counts_in_whole_blocks_with_half_a_block_for_each_last_one(
    scraped: Scraped,
) -> None:
    made = endpoint(left=100.0)
    read(made, scraped(), 0.0)
    promise(made, prompt=401)

    assert account(made, 0.0).peak == 512  # 401 + 8 + 100 = 509
    assert account(made, 0.0).predicted == 0.968


def test_what_others_use_counts_at_once_and_its_noise_is_smoothed(scraped: Scraped) -> None:
    made = endpoint()
    read(made, scraped(0.25), 0.0)
    assert made.bias == 4000
    read(made, scraped(0.26), 0.1)
    assert made.bias == pytest.approx(4015, abs=1)
    read(made, scraped(0.50), 0.2)
    assert made.bias == pytest.approx(8000 - 320)
    read(made, scraped(0.10), 0.3)
    assert made.bias == pytest.approx(1600 + 320)


def test_what_was_sent_after_the_scrape_is_not_held_against_it(scraped: Scraped) -> None:
    made = endpoint()
    made.sending(1.0)
    promise(made, prompt=4000, now=1.01)
    made.observe(scraped(0.25), 1.0, 1.02)

    assert made.bias == 4000
    assert account(made, 1.02).predicted == 0.493  # the promise and what others use


def test_prompts_that_wait_in_the_engine_hold_no_blocks_yet(scraped: Scraped) -> None:
    made = endpoint()
    for number in range(4):
        promise(made, prompt=992, number=number)
    made.sending(0.0)
    made.observe(scraped(0.25, running=2, waiting=2), 0.0, 0.0)

    assert made.bias == pytest.approx(4000 - 2 * 1000 + -2 * 8 + 16, abs=20)
    assert made.surplus == 0
    assert made.unprefilled(0.0) == pytest.approx(2 * 992)


def test_where_less_is_there_than_we_count_our_numbers_count_less_but_slowly(
    scraped: Scraped,
) -> None:
    made = endpoint()
    read(made, scraped(0.0), 0.0)
    promise(made, prompt=7992)  # 8000 tokens, of which the engine shares half with others
    made.promises.clock.pace = 0.0
    shares = []
    for second in range(1, 61):
        read(made, scraped(0.25, running=1), float(second))
        shares.append(account(made, float(second)).share)

    assert shares[0] > 0.9
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(0.5, abs=0.02)
    assert made.bias < 0
    assert Account(100, 0, 0, held=100, seen=1, observed=0).share == 0.3


def test_a_small_usage_says_nothing_about_the_share(scraped: Scraped) -> None:
    made = endpoint()
    promise(made, prompt=1000)
    for second in range(100):
        read(made, scraped(0.05), float(second))
    assert account(made, 99.0).share == 1.0


def test_free_is_never_above_what_a_fresh_scrape_shows(scraped: Scraped) -> None:
    made = endpoint()
    read(made, scraped(0.50), 0.0)
    read(made, scraped(0.90), 0.2)

    assert account(made, 0.2).predicted > 0.10
    assert account(made, 0.2).free == 0.10


def test_a_stale_reading_moves_on_with_what_we_know(scraped: Scraped) -> None:
    made = endpoint()
    held = promise(made, prompt=3192)
    made.promises.clock.pace = 0.0
    read(made, scraped(0.50), 0.0)
    assert made.freshness(2.0) is Freshness.STALE
    assert account(made, 2.0).free == pytest.approx(0.5, abs=0.02)

    made.promises.withdraw(held)
    assert account(made, 2.0).free == pytest.approx(0.7, abs=0.001)
    assert made.staleness(6.0) == 0.5

    assert made.freshness(12.0) is Freshness.UNKNOWN
    assert account(made, 12.0).free == 1.0  # nothing of ours; what others had is not known any more
    assert made.staleness(12.0) == 1.0


def test_counters_that_fall_mean_another_engine(scraped: Scraped) -> None:
    made = endpoint()
    assert made.observe(scraped(0.9, preemptions=5, generated=1000), 0.0, 0.0) == 0
    assert made.observe(scraped(0.9, preemptions=7, generated=1200), 0.2, 0.2) == 2
    assert made.observe(scraped(0.1, preemptions=7, generated=50), 0.4, 0.4) == 0
    assert made.bias == 1600  # not smoothed, nothing is left of the old one
    assert made.observe(scraped(0.1, preemptions=8, generated=60), 0.6, 0.6) == 1


def test_the_pace_is_learned_over_all_sequences_that_wait_ones_included(scraped: Scraped) -> None:
    made = endpoint()
    for step in range(100):
        at = step / 5
        read(made, scraped(0.5, running=8, waiting=2, generated=step * 60, prompted=0), at)

    assert made.promises.clock.pace == pytest.approx(30.0, rel=0.01)


def test_the_prefill_rate_is_what_it_reads_while_prompts_wait(scraped: Scraped) -> None:
    made = endpoint()
    for step in range(100):
        read(made, scraped(waiting=3, running=1, prompted=step * 400), step / 5)
    assert made.prefill_rate == pytest.approx(2000, rel=0.01)

    for step in range(100):  # nothing waits: it reads what comes
        read(made, scraped(prompted=40_000 + step), 20 + step / 5)
    assert made.prefill_rate == pytest.approx(2000, rel=0.01)
    for step in range(100):  # but more than it was thought to is a measure
        read(made, scraped(prompted=40_099 + step * 2000), 40 + step / 5)
    assert made.prefill_rate == pytest.approx(10_000, rel=0.01)


def test_counters_that_leap_do_not_make_it_faster_than_engines_are(scraped: Scraped) -> None:
    made = endpoint()
    made.completed(10**12, 1.0)
    for step, leap in enumerate((0, 10**15, 10**15 + 1)):
        read(made, scraped(running=1, generated=leap, prompted=leap), step / 5)

    assert made.promises.clock.pace < 2000
    assert made.prefill_rate < 1e6


def test_unread_prompts_are_read_at_that_rate(scraped: Scraped) -> None:
    made = endpoint()
    assert made.unprefilled(0.0) == 0.0
    promise(made, prompt=12_000)
    assert made.unprefilled(0.0) == 12_000
    assert made.unprefilled(1.0) == 4_000
    assert made.unprefilled(9.0) == 0.0

    read(made, scraped(running=1), 9.0)
    assert made.unprefilled(9.0) == 0.0


def test_without_counters_completions_tell_the_pace(scraped: Scraped) -> None:
    made = endpoint()
    for _ in range(200):
        made.completed(100, 2.0)
        made.completed(100, 0.0)
    assert made.promises.clock.pace == pytest.approx(50.0, rel=0.01)

    read(made, scraped(generated=0), 0.0)
    made.completed(1000, 1.0)
    assert made.promises.clock.pace == pytest.approx(50.0, rel=0.01)


def test_a_report_corrects_the_last_reading_and_leaves_its_age_and_counters(
    scraped: Scraped,
) -> None:
    made = endpoint()
    assert not made.report(0.5, 3, 0.0), "nothing was ever read"
    sized = endpoint()
    read(sized, scraped(0.1, blocks=None, block_size=None), 0.0)
    assert sized.report(0.2, 0, 1.0), "also where nobody says how large it is"
    read(made, scraped(0.1, generated=100), 1.0)

    assert made.report(0.5, 3, 2.0)
    assert made.reading == scraped(0.5, waiting=3, generated=100)
    assert made.age(2.0) == 1.0
    assert account(made, 2.0).observed == 8000
    assert made.bias == pytest.approx(8000, abs=0.02 * 16000)
    assert not made.report(0.9, 0, 2.01), "too soon after the other"
    assert not made.report(0.4, 0, 2.5), "less: a scrape will know why"
    assert made.report(0.9, 0, 2.6)
