"""However many tenants there are and whatever they send: the metrics page stays small."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from extproc.app import Tidegate, build
from extproc.config import load
from extproc.core.capacity import Load, Reading
from extproc.core.controller import Action, Verdict
from extproc.core.outcomes import Outcome
from extproc.core.reasons import REASONS, Reason
from extproc.core.records import Decided, Ended, WaitEnd

CONFIG = """\
pools:
  large:  {endpoints: {static: ["10.0.0.1:8000"]}}
  middle: {endpoints: {static: ["10.0.1.1:8000"]}}
  small:  {endpoints: {static: ["10.0.2.1:8000"]}}
breaker: {}
agents: {}
"""
ENDPOINTS = 16
"""In all pools together."""
TENANTS = 100_000


@pytest.fixture
def tidegate(tmp_path: Path) -> Tidegate:
    file = tmp_path / "tidegate.yaml"
    file.write_text(CONFIG)
    return build(load(file))


def flood(tidegate: Tidegate) -> None:
    """Let every tenant call, in every pool and class, and every verdict and end happen."""
    config, metrics = tidegate.config, tidegate.metrics
    pools, now = list(tidegate.pools.values()), time.monotonic()
    for number in range(ENDPOINTS):
        pool, engine = pools[number % len(pools)], f"10.0.0.{number}:8000"
        pool.join(engine)
        pool.observe(engine, Reading(0.5, 100, 16, 1, 0, 0), read_at=now, now=now)
    actions = {
        reason: Action.ADMIT if entry.reply is None else Action.SHED
        for reason, entry in REASONS.items()
    }
    numbers = Load(0.5, 1.0, 0, 1)
    kinds = itertools.cycle(itertools.product(config.pools, config.classes, actions))
    ends = itertools.cycle(Outcome)
    for number in range(TENANTS):
        (model, name, reason), tenant = next(kinds), f"tenant-{number}"
        verdict = Verdict(actions[reason], reason, numbers)
        metrics.decided(
            Decided(
                f"x{number}", "", model, "chat", tenant, name, f"t{number}", 9, 9, verdict, 1e-4
            )
        )
        metrics.ended(Ended(f"x{number}", tenant, name, model, next(ends), 10, 20, 1.0))
    for each, name, end in itertools.product(config.pools, config.classes, WaitEnd):
        metrics.waited(each, name, end, 0.1)


def test_2000_series_are_enough_for_100_000_tenants(tidegate: Tidegate) -> None:
    flood(tidegate)
    page = tidegate.metrics.render().decode()
    series = [line for line in page.splitlines() if line and not line.startswith("#")]
    assert len(series) == len(set(series))
    assert len(series) < 2000
    assert all(f'reason="{reason}"' in page for reason in Reason), "the flood left something out"
