"""Classes, readings and pools that the tests of the core share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extproc.core.capacity import Pool, PoolLimits, Reading
from extproc.core.classes import ServiceClass

P0 = ServiceClass("P0", 0, strict=True, close=0.03, open=0.05)
P1 = ServiceClass("P1", 1, close=0.08, open=0.12)
P2 = ServiceClass("P2", 2, close=0.15, open=0.20, concurrency=0.80, evictable=True)


@pytest.fixture
def classes() -> tuple[ServiceClass, ServiceClass, ServiceClass]:
    """Three classes as users have them, the highest first."""
    return P0, P1, P2


@pytest.fixture
def scraped() -> Callable[..., Reading]:
    """Make a reading of an engine of 1000 blocks of 16 tokens."""

    def make(used: float = 0.0, **more: int | None) -> Reading:
        known: dict[str, int | None] = {"blocks": 1000, "block_size": 16}
        known |= {"running": 0, "waiting": 0, "preemptions": 0} | more
        return Reading(used, **known)  # type: ignore[arg-type]

    return make


@pytest.fixture
def pool_of() -> Callable[..., Pool]:
    """Make a pool with these endpoints; ``pick=True`` chooses among them."""

    def make(*endpoints: str, concurrency: int = 1000, **more: bool | int) -> Pool:
        limits = PoolLimits(concurrency, stale_after=1.0, unknown_after=11.0, **more)  # type: ignore[arg-type]
        made = Pool("qwen", limits, (P0, P1, P2))
        for endpoint in endpoints:
            made.join(endpoint)
        return made

    return make
