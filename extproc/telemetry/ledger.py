"""The way to the ledger on the metrics page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class LedgerState(Protocol):
    """What the outbox says of itself; see `extproc.quota.outbox.Outbox`."""

    up: bool
    dropped: int
    refused: int

    @property
    def backlog(self) -> int:
        """Records that are on their way."""
        ...

    @property
    def used(self) -> float:
        """Share of the bound of its file that they take, 0..1."""
        ...

    @property
    def lag(self) -> float:
        """Seconds that the oldest of them has been."""
        ...


class LedgerCollector(Collector):
    """The outbox at the moment of a scrape."""

    def __init__(self, state: LedgerState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges, and the counters that the outbox keeps itself."""
        state = self._state
        yield GaugeMetricFamily(
            "tidegate_ledger_up", "1 where the ledger could be reached when last needed.", state.up
        )
        yield GaugeMetricFamily(
            "tidegate_ledger_lag_seconds",
            "How long the oldest charge has been on its way to the ledger.",
            state.lag,
        )
        yield GaugeMetricFamily(
            "tidegate_outbox_records",
            "Holds and charges on their way to the ledger.",
            state.backlog,
        )
        yield GaugeMetricFamily(
            "tidegate_outbox_used_ratio",
            "Share of state.outbox_limit that they take; at 1, what comes is lost.",
            state.used,
        )
        lost = CounterMetricFamily(
            "tidegate_outbox_lost",
            "Records that will never be in the ledger: dropped because neither disk nor memory had "
            "room, or refused by the ledger for what they say.",
            labels=["why"],
        )
        lost.add_metric(["dropped"], state.dropped)
        lost.add_metric(["refused"], state.refused)
        yield lost
