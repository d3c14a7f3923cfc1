"""However many tenants there are and whatever they send: the metrics page stays small."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from extproc.app import Tidegate, build
from extproc.config import load
from extproc.core.breaker import Key
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
breaker: {sustain: 0s}
agents: {}
plans: {gold: {requests_per_minute: 600, quota: {tokens: 100000}}}
state: {redis: "redis://127.0.0.1:1"}
"""
WHAT_OPERATORS_ASK_FOR = {
    "tidegate_decisions_total": {"pool", "class", "verdict", "reason"},
    "tidegate_free_ratio_observed": {"pool"},
    "tidegate_free_ratio_predicted": {"pool"},
    "tidegate_queue_depth": {"pool", "class"},
    "tidegate_queue_wait_seconds_bucket": {"pool", "class", "end", "le"},
    "tidegate_decision_seconds_bucket": {"le"},
    "tidegate_prompt_tokens_bucket": {"pool", "class", "le"},
    "tidegate_output_tokens_bucket": {"pool", "class", "le"},
    "tidegate_agent_calls_total": {"kind"},
    "tidegate_breaker_tasks": {"state"},
    "tidegate_breaker_tripped": {"pool", "tenant", "task", "state"},
    "tidegate_holds": set(),
    "tidegate_held_tokens": set(),
    "tidegate_ledger_lag_seconds": set(),
    "tidegate_outbox_records": set(),
    "tidegate_scrape_age_seconds": {"pool", "endpoint"},
    "tidegate_tenant_decisions_total": {"tenant", "verdict"},
    "tidegate_tenant_tokens_total": {"tenant", "kind"},
}
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
    breaker = tidegate.admission._breaker
    assert breaker is not None
    for number, tokens in itertools.product(range(30), [100] * 60 + [2000] * 20):
        key = Key("large", f"tenant-{number}", "chat")
        breaker.ended(key, tokens, admitted_at=0.0, now=float(number))
    for each, name, end in itertools.product(config.pools, config.classes, WaitEnd):
        metrics.waited(each, name, end, 0.1)


def test_2000_series_are_enough_for_100_000_tenants(tidegate: Tidegate) -> None:
    flood(tidegate)
    page = tidegate.metrics.render().decode()
    sampled = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert {name: sampled.get(name) for name in WHAT_OPERATORS_ASK_FOR} == WHAT_OPERATORS_ASK_FOR
    series = [line for line in page.splitlines() if line and not line.startswith("#")]
    assert len(series) == len(set(series))
    assert len(series) < 2000
    assert all(f'reason="{reason}"' in page for reason in Reason), "the flood left something out"
