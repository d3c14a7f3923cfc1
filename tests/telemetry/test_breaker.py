"""The breaker on the metrics page."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from extproc.core.breaker import Breaker, Key, Rules
from extproc.telemetry.breaker import BreakerCollector


def tripped(tenants: int) -> Breaker:
    breaker = Breaker(Rules(sustain=0.0))
    for index in range(tenants):
        key = Key("qwen", f"t{index}", "chat")
        for tokens in [100] * 60 + [2000] * 20:
            breaker.ended(key, tokens, admitted_at=0.0, now=float(index))
    breaker.ended(Key("qwen", "calm", ""), 100, admitted_at=0.0, now=0.0)
    return breaker


def lines(breaker: Breaker) -> list[str]:
    registry = CollectorRegistry()
    registry.register(BreakerCollector(breaker))
    page = generate_latest(registry).decode()
    return [line for line in page.splitlines() if not line.startswith("#")]


def test_states_are_counted_and_what_is_tripped_is_named() -> None:
    page = lines(tripped(2))
    assert 'tidegate_breaker_tasks{state="closed"} 1.0' in page
    assert 'tidegate_breaker_tasks{state="clamped"} 2.0' in page
    assert 'tidegate_breaker_transitions_total{to="clamped"} 2.0' in page
    named = {'pool="qwen"', 'state="clamped"', 'task="chat"', 'tenant="t0"'}
    assert f"tidegate_breaker_tripped{{{','.join(sorted(named))}}} 1.0" in page


def test_series_are_few_however_much_is_tripped() -> None:
    assert len(lines(tripped(50))) == 4 + 4 + 20
