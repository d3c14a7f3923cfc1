"""What Prometheus sees: every event counted once, the state at the moment of the scrape."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from extproc.core.capacity import Demand, Load, Pool, PoolLimits, Reading
from extproc.core.classes import ServiceClass
from extproc.core.controller import Action, Verdict
from extproc.core.outcomes import Outcome
from extproc.core.reasons import Reason
from extproc.core.records import Decided, Ended
from extproc.telemetry.metrics import Metrics, PoolCollector
from extproc.telemetry.tenants import NAMED

P0 = ServiceClass("P0", 0, strict=True, close=0.03, open=0.05)
P2 = ServiceClass("P2", 1, close=0.15, open=0.20, concurrency=0.8)
SHED = Verdict(Action.SHED, Reason.KV_WATERMARK, Load(0.1, 1.0, 3, 1), 0.15, 0.1)


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def key(metric: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return metric, frozenset((name.rstrip("_"), value) for name, value in labels.items())


def decided(verdict: Verdict, tenant: str = "marketing") -> Decided:
    return Decided("x", "r", "qwen", "chat", tenant, "P2", "", 10, 2048, verdict, 80e-6)


def test_verdicts_are_counted_and_timed() -> None:
    metrics = Metrics(["qwen"], ["P0", "P2"])
    labels = {"pool": "qwen", "class_": "P2", "verdict": "shed", "reason": "kv_watermark"}
    assert samples(metrics)[key("tidegate_decisions_total", **labels)] == 0, (
        "there before the first"
    )

    metrics.decided(decided(SHED))
    metrics.decided(decided(SHED))

    seen = samples(metrics)
    assert seen[key("tidegate_decisions_total", **labels)] == 2
    assert seen[key("tidegate_decision_seconds_bucket", le="5e-05")] == 0
    assert seen[key("tidegate_decision_seconds_bucket", le="0.0001")] == 2


def test_ends_are_counted_with_what_they_used() -> None:
    metrics = Metrics(["qwen"], ["P0"])

    metrics.ended(Ended("x", "pay", "P0", "qwen", Outcome.COMPLETED, 12, 34, 1.5))
    metrics.ended(Ended("y", "pay", "P0", "qwen", Outcome.CLIENT_GONE, None, None, 0.5))

    seen, labels = samples(metrics), {"pool": "qwen", "class_": "P0"}
    assert seen[key("tidegate_exchanges_ended_total", outcome="completed", **labels)] == 1
    assert seen[key("tidegate_exchanges_ended_total", outcome="client_gone", **labels)] == 1
    assert seen[key("tidegate_exchange_seconds_sum", **labels)] == 2.0
    assert seen[key("tidegate_prompt_tokens_sum", **labels)] == 12
    assert seen[key("tidegate_output_tokens_sum", **labels)] == 34
    assert seen[key("tidegate_output_tokens_count", **labels)] == 1


def test_callers_cannot_make_series() -> None:
    metrics = Metrics(["qwen"], ["P0", "P2"])
    metrics.decided(decided(SHED))
    metrics.ended(Ended("x", "pay", "P2", "qwen", Outcome.COMPLETED, 1, 1, 1.0))
    for number in range(NAMED):
        metrics.decided(decided(SHED, tenant=f"early-{number}"))
    before = len(samples(metrics))

    for number in range(1000):
        metrics.decided(decided(SHED, tenant=f"tenant-{number}"))
        metrics.ended(Ended(f"x{number}", f"t{number}", "P2", "qwen", Outcome.COMPLETED, 1, 1, 1.0))

    assert len(samples(metrics)) == before


def test_the_state_of_the_pools_is_that_of_the_scrapes_moment() -> None:
    now = [0.0]
    pool = Pool("qwen", PoolLimits(10, stale_after=1.0, unknown_after=11.0), (P0, P2))
    metrics = Metrics(["qwen"], ["P0", "P2"])
    metrics.registry.register(PoolCollector({"qwen": pool}, lambda: now[0]))
    pool.join("a:1")

    seen, at = samples(metrics), {"pool": "qwen", "endpoint": "a:1"}
    assert key("tidegate_free_ratio_observed", pool="qwen") not in seen
    assert key("tidegate_free_ratio_predicted", pool="qwen") not in seen
    assert key("tidegate_scrape_age_seconds", **at) not in seen
    assert seen[key("tidegate_endpoint_state", state="unknown", **at)] == 1

    reading = Reading(0.9, 1000, 16, running=5, waiting=2, preemptions=0)
    pool.observe("a:1", reading, read_at=0.0, now=0.0)
    pool.reserve("x", Demand(P2, "", 84, 100), "a:1", 0.0)
    now[0] = 0.5
    seen = samples(metrics)
    assert seen[key("tidegate_in_flight", pool="qwen")] == 1
    assert seen[key("tidegate_free_ratio_observed", pool="qwen")] == 0.1
    assert seen[key("tidegate_free_ratio_predicted", pool="qwen")] == 0.088
    assert seen[key("tidegate_length_quantile", pool="qwen")] == 0.5
    assert seen[key("tidegate_promised_tokens", **at)] == 192  # 84, half a block, 100 to come
    assert seen[key("tidegate_kv_bias_tokens", **at)] == 14_400
    assert seen[key("tidegate_class_closed", pool="qwen", class_="P0")] == 0
    assert seen[key("tidegate_class_closed", pool="qwen", class_="P2")] == 1
    assert seen[key("tidegate_concurrency_limit", pool="qwen", class_="P2")] == 8
    assert seen[key("tidegate_endpoint_state", state="fresh", **at)] == 1
    assert seen[key("tidegate_endpoint_kv_usage", **at)] == 0.9
    assert seen[key("tidegate_endpoint_running", **at)] == 5
    assert seen[key("tidegate_endpoint_waiting", **at)] == 2
    assert seen[key("tidegate_scrape_age_seconds", **at)] == 0.5

    now[0] = 5.0
    assert samples(metrics)[key("tidegate_endpoint_state", state="stale", **at)] == 1
