"""The plans of a configuration as the core knows them."""

from __future__ import annotations

from extproc.config.model import Config
from extproc.core.limits import Plan, Rate


def plans(config: Config) -> dict[str, Plan]:
    """Return the plans by name."""
    return {
        name: Plan(
            name=name,
            requests=_rate(each.requests_per_minute, each.burst),
            tokens=_rate(each.tokens_per_minute, each.burst),
            quota=None if each.quota is None else each.quota.tokens,
        )
        for name, each in config.plans.items()
    }


def _rate(per_minute: int | None, burst: float) -> Rate | None:
    return None if per_minute is None else Rate(per_minute, burst)
