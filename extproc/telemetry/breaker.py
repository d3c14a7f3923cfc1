"""The output-length breaker on the metrics page.

Rules this module keeps:

* Each state has one count, whatever tenants there are. Of what is held back, the `NAMED` that have
  been so for longest are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from extproc.core.breaker import Breaker, State

NAMED = 20


class BreakerCollector(Collector):
    """What the breaker holds back at the moment of a scrape."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges, and the counter that the breaker keeps itself."""
        tasks = GaugeMetricFamily(
            "tidegate_breaker_tasks",
            "Tasks of tenants whose output lengths are watched, by the state of their breaker.",
            labels=["state"],
        )
        entered = CounterMetricFamily(
            "tidegate_breaker_transitions", "Changes of breakers, by the new state.", labels=["to"]
        )
        tripped = GaugeMetricFamily(
            "tidegate_breaker_tripped",
            f"1 for a task whose breaker is not closed; the {NAMED} longest tripped.",
            labels=["pool", "tenant", "task", "state"],
        )
        held = list(self._breaker.tripped())
        states = Counter(state for _, state in held)
        states[State.CLOSED] = len(self._breaker) - len(held)
        for state in State:
            tasks.add_metric([state.value], states[state])
            entered.add_metric([state.value], self._breaker.entered[state])
        for key, state in islice(held, NAMED):
            tripped.add_metric([key.pool, key.tenant, key.task, state.value], 1.0)
        yield from (tasks, entered, tripped)
