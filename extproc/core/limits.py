"""Requests and tokens per minute: the generic cell rate algorithm (GCRA), per account.

Rules this module keeps:

* Looking takes nothing. What is taken is taken from both buckets or from neither.
* A bucket is one number: ``full_at``, the moment at which it will be full again if nobody takes from
  it (the theoretical arrival time of ITU-T I.371, annex A). What is missing drips back evenly.
* A call that wants more than a bucket holds goes when the bucket is full, and leaves a debt. It
  would else be told to wait for ever.
* The charge is an estimate; `Buckets.correct` sets it right when the outcome is known. A bucket that
  owes stays closed until the debt is paid.
* An account whose buckets are full is forgotten, so memory follows those that call, not those that
  ever did.
* ``price`` is what one unit costs: N where this process has one Nth of every bucket. It changes
  nothing about how full a bucket is.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum

MINUTE = 60.0
SLACK = 1e-6
"""Seconds by which a bucket may be short: sums of Unix times are no more exact than that."""
_SWEPT = 2
"""Accounts, the longest untouched first, that are looked at with each that is touched."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A bucket's size and how fast it fills.

    Attributes:
        per_minute: units that drip in per minute, at least 1.
        burst: the bucket holds what drips in within so many minutes, at least 1.
        capacity: units that a full bucket holds.
        interval: seconds in which one unit drips in.
        window: seconds in which an empty bucket fills.
    """

    per_minute: int
    burst: float = 1.0
    capacity: int = field(init=False)
    interval: float = field(init=False)
    window: float = field(init=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "capacity", math.floor(self.per_minute * self.burst))
        set_field(self, "interval", MINUTE / self.per_minute)
        set_field(self, "window", self.capacity * self.interval)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a tenant has bought; None is unlimited.

    Attributes:
        name: as configured.
        requests, tokens: how many per minute.
        quota: tokens per period.
    """

    name: str
    requests: Rate | None = None
    tokens: Rate | None = None
    quota: int | None = None


class Bucket(StrEnum):
    """What a rate counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Short:
    """A bucket holds too little.

    Attributes:
        bucket: which one; of two, the one that takes longer.
        limit: its capacity.
        used: what would be missing in it, if the call went.
        wait: seconds after which the call would pass, if nobody else takes.
    """

    bucket: Bucket
    limit: int
    used: int
    wait: float


@dataclass(frozen=True, slots=True)
class Level:
    """How full a bucket is.

    Attributes:
        limit: its capacity.
        remaining: whole units in it; 0 where it owes.
        reset: seconds until it is full.
    """

    limit: int
    remaining: int
    reset: float


def wait(rate: Rate, full_at: float, units: float, now: float) -> float:
    """Return for how many seconds a bucket is short of ``units``; at most 0 where it is not."""
    missing = max(full_at, now) - now
    return missing + min(units * rate.interval, rate.window) - rate.window


def drawn(rate: Rate, full_at: float, units: float, now: float) -> float:
    """Return when a bucket will be full after ``units`` were taken; under 0 they are given back."""
    return max(full_at, now) + units * rate.interval


class _Account:
    """When the two buckets of one account are full."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.requests = self.tokens = -math.inf


class Buckets:
    """The buckets of all accounts. ``now`` is seconds on one clock, given to every method."""

    def __init__(self) -> None:
        self.price = 1
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Buckets: {len(self)} accounts, a unit costs {self.price}>"

    def __len__(self) -> int:
        return len(self._accounts)

    def look(self, account: str, plan: Plan, tokens: int, now: float) -> Short | None:
        """Return what a call of so many tokens lacks, or None; takes nothing."""
        known = self._accounts.get(account, _FULL)
        price = self.price
        worst: Short | None = None
        if plan.requests is not None:
            seconds = wait(plan.requests, known.requests, price, now)
            if seconds > SLACK:
                worst = _short(Bucket.REQUESTS, plan.requests, known.requests, price, seconds, now)
        if plan.tokens is not None:
            units = tokens * price
            seconds = wait(plan.tokens, known.tokens, units, now)
            if seconds > SLACK and (worst is None or seconds > worst.wait):
                worst = _short(Bucket.TOKENS, plan.tokens, known.tokens, units, seconds, now)
        return worst

    def take(self, account: str, plan: Plan, tokens: int, now: float) -> Short | None:
        """Take one request and so many tokens, or nothing and return what is lacking."""
        short = self.look(account, plan, tokens, now)
        if short is None:
            self.correct(account, plan, 1, tokens, now)
        return short

    def correct(self, account: str, plan: Plan, requests: int, tokens: int, now: float) -> None:
        """Take what a call turned out to need besides, unasked; under 0, give it back."""
        known = self._touch(account, now)
        price = self.price
        if plan.requests is not None:
            known.requests = drawn(plan.requests, known.requests, requests * price, now)
        if plan.tokens is not None:
            known.tokens = drawn(plan.tokens, known.tokens, tokens * price, now)

    def level(self, account: str, plan: Plan, bucket: Bucket, now: float) -> Level | None:
        """Return how full a bucket is, or None where the plan has no such limit."""
        known = self._accounts.get(account, _FULL)
        if bucket is Bucket.REQUESTS:
            rate, full_at = plan.requests, known.requests
        else:
            rate, full_at = plan.tokens, known.tokens
        if rate is None:
            return None
        reset = max(0.0, full_at - now)
        remaining = math.floor((rate.window - reset + SLACK) / rate.interval)
        return Level(rate.capacity, max(0, min(rate.capacity, remaining)), reset)

    def full_at(self, account: str) -> tuple[float, float]:
        """Return when the buckets of requests and tokens are full; a time gone by: they are."""
        known = self._accounts.get(account, _FULL)
        return known.requests, known.tokens

    def learn(self, account: str, requests: float, tokens: float, now: float) -> None:
        """Take somebody else's word for when the buckets are full."""
        known = self._touch(account, now)
        known.requests, known.tokens = requests, tokens

    def _touch(self, account: str, now: float) -> _Account:
        accounts = self._accounts
        known = accounts.get(account)
        if known is None:
            known = accounts[account] = _Account()
        else:
            accounts.move_to_end(account)
        for _ in range(min(_SWEPT, len(accounts) - 1)):
            oldest = next(iter(accounts))
            if max(accounts[oldest].requests, accounts[oldest].tokens) <= now:
                del accounts[oldest]
            else:
                accounts.move_to_end(oldest)
        return known


_FULL = _Account()


def _short(
    bucket: Bucket, rate: Rate, full_at: float, units: float, seconds: float, now: float
) -> Short:
    used = math.ceil(units + max(0.0, full_at - now) / rate.interval - SLACK)
    return Short(bucket, rate.capacity, used, seconds)
