"""The pages of workers as one page that Prometheus can read."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.workers.page import merged


def page(calls: int, free: float | None) -> str:
    registry = CollectorRegistry()
    counter = Counter("t_calls", "Calls {of} all.", ["tenant"], registry=registry)
    counter.labels('a "b" {c} d').inc(calls)
    Histogram("t_seconds", "Time.", buckets=(1.0,), registry=registry).observe(0.5)
    if free is not None:
        Gauge("t_free", "Free.", registry=registry).set(free)
    return generate_latest(registry).decode()


def test_every_sample_of_every_worker_is_there_under_its_number() -> None:
    families = list(text_string_to_metric_families(merged({1: page(3, None), 2: page(4, 0.5)})))
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    tenant = ("tenant", 'a "b" {c} d')
    assert samples == {
        ("t_calls_total", tenant, ("worker", "1")): 3.0,
        ("t_calls_total", tenant, ("worker", "2")): 4.0,
        ("t_free", ("worker", "2")): 0.5,
        **{
            key: value
            for worker in "12"
            for key, value in {
                ("t_seconds_bucket", ("le", "1.0"), ("worker", worker)): 1.0,
                ("t_seconds_bucket", ("le", "+Inf"), ("worker", worker)): 1.0,
                ("t_seconds_count", ("worker", worker)): 1.0,
                ("t_seconds_sum", ("worker", worker)): 0.5,
            }.items()
        },
    }
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "each family is told once"
    assert {family.name: family.documentation for family in families}["t_calls"] == (
        "Calls {of} all."
    )


def test_no_worker_no_samples() -> None:
    assert merged({}) == ""
