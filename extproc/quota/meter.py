"""Counts what tenants spend, in this process: rates, quotas, holds, and what is charged in the end.

Rules this module keeps:

* A call takes one request and its tokens from the buckets and holds them of the quota, all or
  nothing. What it takes is what it may cost at most (`charges`).
* When it is over, buckets and quota get back what it has not cost, or pay what it has cost besides.
  An outcome that charges nothing gives everything back, the request as well.
* Everything that was taken is ended once, whoever says so and however often.
* The ledger hears of holds and of their ends through the outbox, which waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from extproc.core.capacity import Pool
from extproc.core.classes import Payer
from extproc.core.controller import Candidate, Refusal
from extproc.core.limits import Bucket, Buckets, Level
from extproc.core.metering import Answered, Taking
from extproc.core.outcomes import End, Outcome
from extproc.core.reasons import Reason
from extproc.quota.charges import Charge, Estimate, charge, estimate
from extproc.quota.holds import Holds
from extproc.quota.ports import Hold, Outbox, Settlement


@dataclass(frozen=True, slots=True)
class Held:
    """What was taken for a call under way."""

    payer: Payer
    before: Estimate


class LocalMeter:
    """An `extproc.core.metering.Meter` that asks nobody.

    One that also hears of others overrides `take`, `free` and `adjust`.

    Attributes:
        buckets, holds: what it counts with.
        pending: what calls under way have taken, by their id.

    Args:
        outbox: where holds and settlements of plans with a quota go, or None where nobody reads.
        wall_clock: returns Unix time in seconds.
    """

    def __init__(self, outbox: Outbox | None, wall_clock: Callable[[], float]) -> None:
        self.buckets = Buckets()
        self.holds = Holds()
        self.pending: dict[str, Held] = {}
        self._outbox = outbox
        self._wall_clock = wall_clock

    def __repr__(self) -> str:
        return f"<LocalMeter: {len(self.pending)} calls, {self.buckets!r}, {self.holds!r}>"

    def look_at_rate(self, payer: Payer, tokens: int, now: float) -> Refusal | None:
        """Say whether the buckets have what a call may cost."""
        short = self.buckets.look(payer.account, payer.plan, tokens, now)
        if short is None:
            return None
        return Refusal(Reason.RATE_LIMITED, short.limit, short.used, short.wait)

    def look_at_quota(self, payer: Payer, tokens: int) -> Refusal | None:
        """Say whether the quota has what a call may cost."""
        quota = payer.plan.quota
        if quota is None:
            return None
        free = self.free(payer.account, quota)
        if tokens * self.buckets.price <= free:
            return None
        return Refusal(Reason.QUOTA_EXHAUSTED, max(0, free), tokens)

    def free(self, account: str, quota: int) -> int:
        """Return what can still be held of an account's quota."""
        return self.holds.free(account, quota)

    def take(self, call: Candidate, pool: Pool, now: float, answered: Answered) -> Taking | Refusal:
        """See `extproc.core.metering.Meter`; never asks."""
        payer = call.classification.payer
        if payer is None:
            return Taking.DONE
        before = estimate(call, pool)
        tokens = before.tokens
        refusal = self.look_at_rate(payer, tokens, now) or self.look_at_quota(payer, tokens)
        if refusal is not None:
            return refusal
        self.buckets.correct(payer.account, payer.plan, 1, tokens, now)
        self.hold(call.id, Held(payer, before))
        return Taking.DONE

    def hold(self, exchange: str, held: Held) -> None:
        """Hold of the quota what a call was let take."""
        account, plan, tokens = held.payer.account, held.payer.plan, held.before.tokens
        self.pending[exchange] = held
        if plan.quota is not None:
            self.holds.hold(account, tokens)
            if self._outbox is not None:
                self._outbox.put(Hold(exchange, account, plan.name, tokens, self._wall_clock()))

    def adjust(self, payer: Payer, requests: int, tokens: int, cost: int, now: float) -> None:
        """Set the buckets right by what a call has needed besides, now that its hold has ended.

        Args:
            payer: whose.
            requests: needed besides; under 0, given back.
            tokens: the same.
            cost: tokens that the call has cost of the quota, if there is one.
            now: the moment.
        """
        self.buckets.correct(payer.account, payer.plan, requests, tokens, now)

    def give_back(self, exchange: str, now: float) -> None:
        """See `extproc.core.metering.Meter`."""
        held = self.pending.pop(exchange, None)
        if held is not None:
            self._end(exchange, held, Outcome.CLIENT_GONE, None, now)

    def settle(self, exchange: str, end: End, generated: float, now: float) -> None:
        """See `extproc.core.metering.Meter`."""
        held = self.pending.pop(exchange, None)
        if held is not None:
            self._end(exchange, held, end.outcome, charge(held.before, end, generated), now)

    def _end(
        self, exchange: str, held: Held, outcome: Outcome, cost: Charge | None, now: float
    ) -> None:
        """Pay ``cost``, or nothing, in place of what was taken."""
        account, plan, before = held.payer.account, held.payer.plan, held.before.tokens
        requests = -1 if cost is None else 0
        cost = cost or Charge(0)
        if plan.quota is not None:
            self.holds.end(account, before, cost.tokens)
        self.adjust(held.payer, requests, cost.tokens - before, cost.tokens, now)
        if plan.quota is not None and self._outbox is not None:
            at = self._wall_clock()
            self._outbox.put(
                Settlement(exchange, account, plan.name, outcome, cost.tokens, cost.estimated, at)
            )

    def levels(self, payer: Payer, now: float) -> tuple[Level | None, Level | None]:
        """See `extproc.core.metering.Meter`."""
        level, account, plan = self.buckets.level, payer.account, payer.plan
        return (
            level(account, plan, Bucket.REQUESTS, now),
            level(account, plan, Bucket.TOKENS, now),
        )
