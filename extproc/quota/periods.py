"""Calendar periods in a time zone: which one an instant lies in, to the second.

Rules this module keeps:

* A period begins at local midnight and ends where the next one begins: no instant lies in two, none
  between two.
* Where a change of the clock skips midnight, the day begins at the first instant that exists; where
  midnight comes twice, at the first of the two.
* Instants are seconds since 1970, UTC; nothing here reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo


class PeriodKind(StrEnum):
    """How long a period lasts, by the calendar."""

    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Period:
    """From ``starts`` up to, not including, ``ends``; both in whole seconds since 1970."""

    starts: int
    ends: int


def period_at(kind: PeriodKind, zone: ZoneInfo, at: float) -> Period:
    """Return the period that an instant lies in.

    Raises:
        ValueError, OverflowError: the instant is outside of the years 1 to 9999.
    """
    # Whole seconds, rounded down: a float near midnight must not be rounded into the next day.
    today = datetime.fromtimestamp(int(at // 1), zone).date()
    tomorrow = today + timedelta(days=1)
    if (
        _midnight(tomorrow, zone) <= at
    ):  # a clock that went back over midnight shows yesterday again
        today = tomorrow
    first = today if kind is PeriodKind.DAY else today.replace(day=1)
    following = first + timedelta(days=1 if kind is PeriodKind.DAY else 32)
    if kind is PeriodKind.MONTH:
        following = following.replace(day=1)
    return Period(_midnight(first, zone), _midnight(following, zone))


def _midnight(day: date, zone: ZoneInfo) -> int:
    """Return the first instant of a local day."""
    local = datetime(day.year, day.month, day.day, tzinfo=zone)
    instant = local.astimezone(UTC)
    back = instant.astimezone(zone)
    if back.replace(tzinfo=None) == local.replace(tzinfo=None):
        return int(instant.timestamp())
    # Midnight is skipped: read with the offset from before the change, it names an instant at or after
    # the change. The day begins with the change.
    early, late = int(instant.timestamp()) - 86_400, int(instant.timestamp())
    while late - early > 1:
        middle = (early + late) // 2
        if datetime.fromtimestamp(middle, zone).date() >= day:
            late = middle
        else:
            early = middle
    return late
