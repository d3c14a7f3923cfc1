"""What tenants spend, on the metrics page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from extproc.telemetry.spending import MeterCollector, SharingCollector


def page(collector: Any) -> list[str]:
    registry = CollectorRegistry()
    registry.register(collector)
    text = generate_latest(registry).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_what_is_held() -> None:
    state = SimpleNamespace(
        pending={"x": 1, "y": 2}, buckets=[1], holds=SimpleNamespace(held_in_all=500)
    )

    assert page(MeterCollector(state)) == [
        "tidegate_holds 2.0",
        "tidegate_held_tokens 500.0",
        "tidegate_rate_accounts 1.0",
    ]


def test_what_is_shared() -> None:
    state = SimpleNamespace(
        link=SimpleNamespace(up=True, round_trips=7), members=SimpleNamespace(count=3)
    )

    assert page(SharingCollector(state, SimpleNamespace(forwarded=5))) == [
        "tidegate_redis_up 1.0",
        "tidegate_redis_round_trips_total 7.0",
        "tidegate_ends_forwarded_total 5.0",
        "tidegate_replicas 3.0",
    ]
