"""The flood valve on the metrics page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from extproc.core.reasons import Reason
from extproc.core.valve import Shut


class DiscoveryState(Protocol):
    """Who listens; see `extproc.edge.runtime_discovery.RuntimeDiscovery`."""

    @property
    def streams(self) -> int:
        """How many Envoys."""
        ...


class ValveState(Protocol):
    """How far the valve is shut; see `extproc.edge.valve_desk.ValveDesk`."""

    @property
    def discovery(self) -> DiscoveryState:
        """Who is told."""
        ...

    @property
    def refused(self) -> Mapping[tuple[str, str, Reason], int]:
        """What Envoys refused, by pool, class and reason."""
        ...

    def shut(self) -> Mapping[tuple[str, str], Shut]:
        """Return what they refuse now, by pool and class."""
        ...


class ValveCollector(Collector):
    """The valve at the moment of a scrape."""

    def __init__(self, valve: ValveState, pools: Iterable[str], classes: Iterable[str]) -> None:
        self._valve = valve
        self._keys = [(pool, name) for pool in pools for name in classes]

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        share = GaugeMetricFamily(
            "tidegate_valve_share",
            "Share of the calls that Envoys refuse themselves, 0..1.",
            labels=["pool", "class"],
        )
        refused = CounterMetricFamily(
            "tidegate_valve_refused",
            "Calls that Envoys refused themselves; they are among the decisions as well.",
            labels=["pool", "class", "reason"],
        )
        envoys = GaugeMetricFamily("tidegate_valve_envoys", "Envoys that ask what to refuse.")
        shut = self._valve.shut()
        for key in self._keys:
            share.add_metric(key, shut[key].share if key in shut else 0.0)
        for (pool, name, reason), count in self._valve.refused.items():
            refused.add_metric([pool, name, reason.value], count)
        envoys.add_metric([], self._valve.discovery.streams)
        yield from (share, refused, envoys)
