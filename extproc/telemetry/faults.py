"""Faults of our own code on the metrics page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from extproc.core.faults import Place


class FaultCollector(Collector):
    """How many there were, by place; ``counts`` goes on being counted elsewhere."""

    def __init__(self, counts: Mapping[Place, int]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """Yield the counter, with all places from the start."""
        faults = CounterMetricFamily(
            "tidegate_faults",
            "Faults of Tidegate's own code, by where a call met them; the log has each of them.",
            labels=["place"],
        )
        for place, count in self._counts.items():
            faults.add_metric([place.value], count)
        yield faults
