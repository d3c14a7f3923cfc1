"""What tenants spend, and what several Tidegates share of it, on the metrics page."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class HoldsState(Protocol):
    """What is held; see `extproc.quota.holds.Holds`."""

    @property
    def held_in_all(self) -> int:
        """Tokens that are held."""
        ...


class MeterState(Protocol):
    """What the meter says of itself; see `extproc.quota.meter.LocalMeter`."""

    @property
    def pending(self) -> Sized:
        """Calls that have paid and are not settled."""
        ...

    @property
    def buckets(self) -> Sized:
        """Accounts whose buckets are not full."""
        ...

    @property
    def holds(self) -> HoldsState:
        """Balances."""
        ...


class LinkState(Protocol):
    """How the way to Redis is; see `extproc.sharing.link.Link`."""

    up: bool
    round_trips: int


class MembersState(Protocol):
    """Who is alive; see `extproc.sharing.members.Members`."""

    count: int


class ForwarderState(Protocol):
    """What was handed over; see `extproc.sharing.forwarding.Forwarder`."""

    forwarded: int


class SharingState(Protocol):
    """What is shared; see `extproc.sharing.room.Sharing`."""

    @property
    def link(self) -> LinkState:
        """The way to Redis."""
        ...

    @property
    def members(self) -> MembersState:
        """Those that share."""
        ...


class MeterCollector(Collector):
    """The meter at the moment of a scrape."""

    def __init__(self, state: MeterState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges."""
        state = self._state
        yield GaugeMetricFamily(
            "tidegate_holds", "Calls that have paid and are not settled yet.", len(state.pending)
        )
        yield GaugeMetricFamily(
            "tidegate_held_tokens", "Tokens of quotas that they may cost.", state.holds.held_in_all
        )
        yield GaugeMetricFamily(
            "tidegate_rate_accounts", "Accounts whose rates are not at rest.", len(state.buckets)
        )


class SharingCollector(Collector):
    """What is shared through Redis at the moment of a scrape."""

    def __init__(self, state: SharingState, forwarder: ForwarderState) -> None:
        self._state = state
        self._forwarder = forwarder

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges, and the counter that the link keeps itself."""
        link = self._state.link
        yield GaugeMetricFamily("tidegate_redis_up", "1 while Redis answers.", float(link.up))
        yield CounterMetricFamily(
            "tidegate_redis_round_trips", "Answers of Redis.", link.round_trips
        )
        yield CounterMetricFamily(
            "tidegate_ends_forwarded",
            "Ends of exchanges that Envoy logged here and another Tidegate was told.",
            self._forwarder.forwarded,
        )
        yield GaugeMetricFamily(
            "tidegate_replicas",
            "Tidegates that share, this one among them, as last heard.",
            self._state.members.count,
        )
