"""Periods in the ledger: they begin and end at the right instant, and plans change in their middle."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from extproc.quota.periods import PeriodKind
from extproc.quota.plans import Plans, QuotaPlan


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


SPANS = "SELECT plan, starts_at / 1000, ends_at / 1000, issued, available, used FROM subscriptions ORDER BY starts_at"


def spans(books: Any) -> list[tuple[str, str, str, int, int, int]]:
    def text(seconds: int) -> str:
        return f"{datetime.fromtimestamp(seconds, UTC):%m-%dT%H:%M}"

    return [
        (plan, text(starts), text(ends), issued, available, used)
        for plan, starts, ends, issued, available, used in books.rows(SPANS)
    ]


def test_a_charge_belongs_to_the_period_that_its_end_lies_in(books: Any) -> None:
    ledger = books.ledger()
    ends = utc("2026-07-01T00:00")
    ledger.apply([books.end("last", 10, at=ends - 0.001), books.end("first", 20, at=ends)])
    assert spans(books) == [
        ("free", "06-01T00:00", "07-01T00:00", -1000, 990, 10),
        ("free", "07-01T00:00", "08-01T00:00", -1000, 980, 20),
    ]


def test_a_month_rolls_over_and_what_is_left_lapses(books: Any) -> None:
    ledger = books.ledger()
    ledger.apply([books.end("a", 10), books.end("b", 1300, tenant="overdrawn")])
    assert ledger.next_end() == utc("2026-07-01T00:00")
    _, last = ledger.remaining()

    books.now = utc("2026-06-30T23:59:59")
    ledger.roll()
    assert books.balances() == {"pay": (990, 10), "overdrawn": (-300, 1300)}
    books.now += 1
    ledger.roll()
    ledger.roll()
    assert books.balances() == {"pay": (1000, 0), "overdrawn": (1000, 0)}
    assert ledger.next_end() == utc("2026-08-01T00:00")
    books.check()
    # Who counts along has the new quota by what moved: 990 - 990 + 1000, and -300 + 300 + 1000.
    moved, _ = ledger.movements(last, 10)
    assert sorted((each.tenant, each.tokens) for each in moved) == [
        ("overdrawn", 300), ("overdrawn", 1000), ("pay", -990), ("pay", 1000),
    ]  # fmt: skip


def test_a_charge_that_is_heard_of_after_the_end_of_its_period_leaves_the_new_one_alone(
    books: Any,
) -> None:
    ledger = books.ledger()
    ledger.apply([books.end("a", 10)])
    ended = books.now
    books.now = utc("2026-07-01T00:00:05")
    ledger.roll()
    _, last = ledger.remaining()
    ledger.apply([books.end("late", 7, at=ended)])
    assert spans(books) == [
        ("free", "06-01T00:00", "07-01T00:00", -17, 0, 17),
        ("free", "07-01T00:00", "08-01T00:00", -1000, 1000, 0),
    ]
    books.check()
    # Its process has counted the 7 off the new period, and gets them back.
    moved, _ = ledger.movements(last, 10)
    assert [(each.tenant, each.tokens) for each in moved] == [("pay", 7)]


def test_after_a_long_silence_the_period_of_now_is_opened(books: Any) -> None:
    ledger = books.ledger()
    ledger.apply([books.end("a", 10)])
    books.now = utc("2026-10-15T12:00")
    ledger.roll()
    assert [span[:3] for span in spans(books)] == [
        ("free", "06-01T00:00", "07-01T00:00"),
        ("free", "10-01T00:00", "11-01T00:00"),
    ]
    # What ended in between, and was stored all the time, has its own period.
    ledger.apply([books.end("old", 5, at=utc("2026-08-10T00:00"))])
    ledger.roll()
    assert [span[1:] for span in spans(books)] == [
        ("06-01T00:00", "07-01T00:00", -10, 0, 10),
        ("08-01T00:00", "09-01T00:00", -5, 0, 5),
        ("10-01T00:00", "11-01T00:00", -1000, 1000, 0),
    ]


def test_many_are_renewed_in_several_commits(books: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.quota.ledger.ROLL_AT_ONCE", 3)
    ledger = books.ledger()
    ledger.apply([books.end(f"x{number}", 1, tenant=f"t{number}") for number in range(8)])
    books.now = utc("2026-07-01T00:00")
    ledger.roll()
    assert books.balances() == {f"t{number}": (1000, 0) for number in range(8)}


@pytest.mark.parametrize(
    ("kind", "midnight"),
    [(PeriodKind.DAY, "2026-10-24T22:00"), (PeriodKind.MONTH, "2026-09-30T22:00")],
)
def test_periods_follow_the_calendar_of_the_plans_zone(
    books: Any, kind: PeriodKind, midnight: str
) -> None:
    berlin = QuotaPlan("berlin", 100, kind, ZoneInfo("Europe/Berlin"))
    books.plans = Plans({"berlin": berlin}, {}, berlin, frozenset())
    ledger = books.ledger()
    ledger.apply(
        [
            books.end("before", 1, plan="berlin", at=utc(midnight) - 0.001),
            books.end("after", 2, plan="berlin", at=utc(midnight)),
        ]
    )
    assert [(span[1], span[5]) for span in spans(books)][1] == (
        f"{datetime.fromtimestamp(utc(midnight), UTC):%m-%dT%H:%M}",
        2,
    )


# Changes of plans. June has 30 days: on the 16th half of it is left.

MIDDLE = utc("2026-06-16T00:00")


def test_a_bigger_plan_adds_its_share_of_the_rest(
    books: Any, make_plans: Callable[..., Plans]
) -> None:
    books.ledger().apply([books.end("a", 400)])
    books.now = MIDDLE
    plans = make_plans()
    ledger = books.ledger(plans=make_plans(pay=plans.plans["business"]))
    # Of 1000 half is left, of 50000 half comes: 1000 + (25000 - 500) - 400.
    assert spans(books) == [("business", "06-01T00:00", "07-01T00:00", -25_500, 25_100, 400)]
    books.check()

    books.now = utc("2026-07-01T00:00")
    ledger.roll()
    assert books.balances() == {"pay": (50_000, 0)}


def test_a_smaller_plan_takes_away_only_its_share_of_the_rest(
    books: Any, make_plans: Callable[..., Plans]
) -> None:
    business = make_plans().plans["business"]
    books.ledger(plans=make_plans(pay=business)).apply([books.end("a", 30_000, plan="business")])
    books.now = MIDDLE
    books.ledger()
    # 50000 - 24500 - 30000: nothing is sent until July, but what was used is not made void.
    assert spans(books) == [("free", "06-01T00:00", "07-01T00:00", -25_500, -4_500, 30_000)]


def test_a_plan_whose_quota_is_raised_counts_from_now_on(
    books: Any, make_plans: Callable[..., Plans]
) -> None:
    books.ledger().apply([books.end("a", 400)])
    books.now = MIDDLE
    raised = QuotaPlan("free", 2_000, PeriodKind.MONTH, ZoneInfo("UTC"))
    ledger = books.ledger(plans=Plans({"free": raised}, {}, raised, frozenset()))
    assert spans(books) == [("free", "06-01T00:00", "07-01T00:00", -1_500, 1_100, 400)]
    ledger.open("one")  # a second start changes nothing
    assert books.balances() == {"pay": (1_100, 400)}


def test_a_plan_of_another_period_begins_at_once_with_its_share(
    books: Any, make_plans: Callable[..., Plans]
) -> None:
    books.ledger().apply([books.end("a", 400)])
    books.now = utc("2026-06-16T18:00")
    ledger = books.ledger(plans=make_plans(pay=make_plans().plans["daily"]))
    assert spans(books) == [
        ("free", "06-01T00:00", "06-16T18:00", -400, 0, 400),
        ("daily", "06-16T18:00", "06-17T00:00", -60, 60, 0),
    ]
    ledger.apply([books.end("before", 3, at=books.now - 1), books.end("after", 5)])
    assert [span[3:] for span in spans(books)] == [(-403, 0, 403), (-60, 55, 5)]
    books.now = utc("2026-06-17T00:00")
    ledger.roll()
    assert books.balances() == {"pay": (240, 0)}
    books.check()


def test_a_tenant_whose_plan_has_no_quota_any_more_has_no_subscription(
    books: Any, make_plans: Callable[..., Plans]
) -> None:
    books.ledger().apply([books.end("a", 400)])
    books.now = MIDDLE
    books.ledger(plans=make_plans(pay=None))
    assert books.balances() == {}


def test_tenants_that_nobody_configured_keep_what_they_have_where_there_is_no_default_plan(
    books: Any, make_plans: Callable[..., Plans]
) -> None:
    books.ledger().apply([books.end("a", 400)])
    plans = make_plans()
    books.ledger(plans=Plans(plans.plans, {}, None, frozenset()))
    assert books.balances() == {"pay": (600, 400)}


def test_a_charge_of_a_plan_that_is_gone_is_written_all_the_same(books: Any) -> None:
    nothing = Plans({}, {}, None, frozenset())
    books.ledger(plans=nothing).apply([books.end("a", 5, plan="gone")])
    assert spans(books) == [("", "06-01T00:00", "07-01T00:00", 0, -5, 5)]


def test_a_tenant_that_has_a_plan_again_has_its_share_again(
    books: Any, make_plans: Callable[..., Plans]
) -> None:
    books.ledger().apply([books.end("a", 400)])
    books.now = utc("2026-06-10T00:00")
    books.ledger(plans=make_plans(pay=None))
    books.now = MIDDLE
    ledger = books.ledger()
    assert spans(books) == [
        ("free", "06-01T00:00", "06-10T00:00", -400, 0, 400),
        ("free", "06-10T00:00", "07-01T00:00", -700, 700, 0),
    ]
    remaining, last = ledger.remaining()
    assert remaining == {"pay": 700}
    assert ledger.movements(last, 10) == ([], last)


def test_an_older_period_that_is_heard_of_late_gets_no_renewal_and_no_quota(
    books: Any, make_plans: Callable[..., Plans]
) -> None:
    ledger = books.ledger(plans=make_plans(pay=make_plans().plans["daily"]))
    ledger.apply([books.end("now", 10, plan="daily")])
    _, last = ledger.remaining()
    ledger.apply([books.end("late", 5, plan="daily", at=utc("2026-05-20T12:00"))])
    books.now += 3600
    ledger.roll()
    assert spans(books) == [
        ("daily", "05-20T00:00", "05-21T00:00", -5, 0, 5),
        ("daily", "06-01T00:00", "06-02T00:00", -240, 230, 10),
    ]
    # Whoever settled it has counted it off what is there now, and gets it back.
    moved, _ = ledger.movements(last, 10)
    assert [(each.tenant, each.tokens) for each in moved] == [("pay", 5)]
