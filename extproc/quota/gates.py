"""The gates of rate and quota: they look, and take nothing.

Rule this module keeps: a call without payer is not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.capacity import Pool
from extproc.core.controller import Candidate, Refusal
from extproc.quota.charges import estimate
from extproc.quota.meter import LocalMeter


@dataclass(frozen=True, slots=True)
class RateGate:
    """Refuses what a payer's buckets have not got; an `extproc.core.controller.Gate`."""

    meter: LocalMeter

    def __call__(self, call: Candidate, pool: Pool, now: float) -> Refusal | None:
        """See `extproc.core.controller.Gate`."""
        payer = call.classification.payer
        if payer is None:
            return None
        return self.meter.look_at_rate(payer, estimate(call, pool).tokens, now)


@dataclass(frozen=True, slots=True)
class QuotaGate:
    """Refuses what a payer's quota has not got; an `extproc.core.controller.Gate`."""

    meter: LocalMeter

    def __call__(self, call: Candidate, pool: Pool, now: float) -> Refusal | None:
        """See `extproc.core.controller.Gate`."""
        payer = call.classification.payer
        if payer is None or payer.plan.quota is None:
            return None
        return self.meter.look_at_quota(payer, estimate(call, pool).tokens)
