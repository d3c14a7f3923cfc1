"""Periods begin and end at the right instant, whatever the clocks of a zone do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.quota.periods import Period, PeriodKind, period_at
from extproc.quota.plans import QuotaPlan

DAY, MONTH = PeriodKind.DAY, PeriodKind.MONTH


def utc(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("kind", "zone", "at", "starts", "ends"),
    [
        # Shanghai is eight hours ahead: its June begins on 31 May, 16:00 UTC.
        (MONTH, "Asia/Shanghai", "2026-05-31T15:59:59", "2026-04-30T16:00", "2026-05-31T16:00"),
        (MONTH, "Asia/Shanghai", "2026-05-31T16:00:00", "2026-05-31T16:00", "2026-06-30T16:00"),
        (DAY, "Asia/Shanghai", "2026-06-18T16:00:00", "2026-06-18T16:00", "2026-06-19T16:00"),
        # Months of 28, 29 and 31 days, and the turn of the year.
        (MONTH, "UTC", "2026-02-28T23:59:59", "2026-02-01T00:00", "2026-03-01T00:00"),
        (MONTH, "UTC", "2028-02-29T12:00:00", "2028-02-01T00:00", "2028-03-01T00:00"),
        (MONTH, "UTC", "2026-12-31T23:59:59", "2026-12-01T00:00", "2027-01-01T00:00"),
        # Days of 23 and 25 hours; a month with a change of the clock in it.
        (DAY, "Europe/Berlin", "2026-03-29T12:00:00", "2026-03-28T23:00", "2026-03-29T22:00"),
        (DAY, "Europe/Berlin", "2026-10-25T12:00:00", "2026-10-24T22:00", "2026-10-25T23:00"),
        (MONTH, "Europe/Berlin", "2026-03-15T00:00:00", "2026-02-28T23:00", "2026-03-31T22:00"),
        # Midnight does not exist: the clock goes from 00:00 to 01:00.
        (DAY, "America/Sao_Paulo", "2018-11-04T03:00:00", "2018-11-04T03:00", "2018-11-05T02:00"),
        (DAY, "America/Sao_Paulo", "2018-11-04T02:59:59", "2018-11-03T03:00", "2018-11-04T03:00"),
        # Midnight comes twice: the clock goes from 00:01 back to 23:01, and the day has begun.
        (DAY, "America/St_Johns", "2006-10-29T02:45:00", "2006-10-29T02:30", "2006-10-30T03:30"),
        # A whole day does not exist: Samoa went from the 29th to the 31st.
        (DAY, "Pacific/Apia", "2011-12-30T09:59:59", "2011-12-29T10:00", "2011-12-30T10:00"),
        (DAY, "Pacific/Apia", "2011-12-30T10:00:00", "2011-12-30T10:00", "2011-12-31T10:00"),
    ],
)
def test_the_period_of_an_instant(
    kind: PeriodKind, zone: str, at: str, starts: str, ends: str
) -> None:
    assert period_at(kind, ZoneInfo(zone), utc(at)) == Period(utc(starts), utc(ends))


def test_a_moment_before_midnight_is_the_old_day() -> None:
    midnight = utc("2026-06-01T00:00")
    assert period_at(MONTH, ZoneInfo("UTC"), midnight - 1e-6).ends == midnight
    assert period_at(MONTH, ZoneInfo("UTC"), midnight).starts == midnight


ZONES = ("UTC", "Asia/Shanghai", "Europe/Berlin", "America/Sao_Paulo", "America/St_Johns",
         "Pacific/Apia", "Australia/Lord_Howe", "Africa/Cairo", "America/Havana", "Asia/Kathmandu")  # fmt: skip


@given(
    kind=st.sampled_from(PeriodKind),
    zone=st.sampled_from(ZONES),
    at=st.integers(utc("1985-01-01T00:00"), utc("2037-01-01T00:00")),
)
def test_periods_tile_time(kind: PeriodKind, zone: str, at: int) -> None:
    tz = ZoneInfo(zone)
    period = period_at(kind, tz, at)
    assert period.starts <= at < period.ends
    assert period_at(kind, tz, period.starts) == period
    assert period_at(kind, tz, period.ends - 1) == period
    assert period_at(kind, tz, period.ends).starts == period.ends
    longest = timedelta(days=31 if kind is MONTH else 1, hours=2)
    assert period.ends - period.starts <= longest.total_seconds()


def test_what_belongs_to_the_rest_of_a_period() -> None:
    plan = QuotaPlan("p", 1_001, MONTH, ZoneInfo("UTC"))
    period = Period(starts=1000, ends=3000)
    seconds = (0, 1000, 1500, 3000, 9000)
    assert [plan.rest(period, 1000 * at) for at in seconds] == [1001, 1001, 751, 0, 0]
