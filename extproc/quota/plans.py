"""What a plan gives, and which plan a tenant has.

Rule this module keeps: a tenant that is not configured has the default tenant's plan, so that a name
that nobody has heard of is held to a quota too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from extproc.config import Config
from extproc.quota.periods import Period, PeriodKind, period_at


@dataclass(frozen=True, slots=True)
class QuotaPlan:
    """A plan's quota.

    Attributes:
        name: of the plan.
        tokens: per period.
        kind: how long a period is.
        zone: whose calendar it follows.
    """

    name: str
    tokens: int
    kind: PeriodKind
    zone: ZoneInfo

    def period(self, at: float) -> Period:
        """Return the period that an instant, in seconds since 1970, lies in."""
        return period_at(self.kind, self.zone, at)

    def rest(self, period: Period, at: int) -> int:
        """Return the tokens that belong to what is left of a period, rounded up.

        Args:
            period: one of this plan's.
            at: an instant, in milliseconds since 1970.
        """
        whole = 1000 * (period.ends - period.starts)
        left = min(whole, max(0, 1000 * period.ends - at))
        return -(-self.tokens * left // whole)


@dataclass(frozen=True)
class Plans:
    """All plans that have a quota, and whose they are.

    Attributes:
        plans: by name.
        tenants: the configured tenants' plans; only those that have a quota.
        default: the plan of all other tenants, or None where they have no quota.
    """

    plans: Mapping[str, QuotaPlan]
    tenants: Mapping[str, QuotaPlan]
    default: QuotaPlan | None
    unlimited: frozenset[str]

    def of(self, tenant: str) -> QuotaPlan | None:
        """Return a tenant's plan, or None where it has no quota."""
        if tenant in self.unlimited:
            return None
        return self.tenants.get(tenant, self.default)


def quota_plans(config: Config) -> Plans:
    """Return the plans of a configuration that have a quota."""
    plans = {
        name: QuotaPlan(
            name, plan.quota.tokens, PeriodKind(plan.quota.period), ZoneInfo(plan.quota.time_zone)
        )
        for name, plan in config.plans.items()
        if plan.quota is not None
    }
    tenants = {
        name: plans[tenant.plan]
        for name, tenant in config.tenants.items()
        if tenant.plan is not None and tenant.plan in plans
    }
    default = tenants.get(config.identity.default_tenant)
    return Plans(plans, tenants, default, frozenset(config.tenants.keys() - tenants.keys()))
