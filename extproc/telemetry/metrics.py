"""Prometheus metrics.

Rules this module keeps:

* Names and labels are an interface: dashboards and alert rules are built on them.
* Every label takes its values from the configuration or a closed set, so the number of series is
  bounded whatever callers send; of tenants, only the busiest are named (`tenants`).
* Gauges are computed when a scrape comes; only events cost anything between scrapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from extproc.core.capacity import Freshness, Pool
from extproc.core.classes import ServiceClass
from extproc.core.controller import Action, Line
from extproc.core.reasons import REASONS, Reason
from extproc.core.records import Decided, Ended, WaitEnd
from extproc.core.tickets import TicketEvent
from extproc.telemetry.tenants import TenantCollector

_DECISION_BUCKETS = (25e-6, 50e-6, 100e-6, 150e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3)
_WAIT_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 30)
_TOKEN_BUCKETS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)
_DURATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)


class Registry(CollectorRegistry):
    """Leaves out when counters were born: a fifth of all series, which no rule or dashboard asks for."""

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        for metric in super().collect():
            metric.samples = [each for each in metric.samples if not each.name.endswith("_created")]
            yield metric


class Metrics:
    """Counts decisions and ends; an `extproc.core.records.Observer`.

    Args:
        pools: names of the pools.
        classes: names of the classes.
    """

    def __init__(self, pools: Collection[str], classes: Collection[str]) -> None:
        self.registry = Registry()
        self._decisions = Counter(
            "tidegate_decisions",
            "Verdicts by pool, class, verdict and reason.",
            ("pool", "class", "verdict", "reason"),
            registry=self.registry,
        )
        self._decision_seconds = Histogram(
            "tidegate_decision_seconds",
            "Time from a request's arrival in the processor to its verdict and reply.",
            buckets=_DECISION_BUCKETS,
            registry=self.registry,
        )
        self._ended = Counter(
            "tidegate_exchanges_ended",
            "Admitted exchanges that are over, by how they ended.",
            ("pool", "class", "outcome"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "tidegate_exchange_seconds",
            "Duration of admitted exchanges.",
            ("pool", "class"),
            buckets=_DURATION_BUCKETS,
            registry=self.registry,
        )
        self._prompt = Histogram(
            "tidegate_prompt_tokens",
            "Prompt tokens of admitted exchanges, as the engine reported them.",
            ("pool", "class"),
            buckets=_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self._output = Histogram(
            "tidegate_output_tokens",
            "Output tokens of admitted exchanges, as the engine reported them.",
            ("pool", "class"),
            buckets=_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self._waits = Histogram(
            "tidegate_queue_wait_seconds",
            "Time that calls waited in the queue, by how that ended.",
            ("pool", "class", "end"),
            buckets=_WAIT_BUCKETS,
            registry=self.registry,
        )
        self._reloads = Counter(
            "tidegate_config_reloads",
            "Times that the configuration file was to be taken over, by what came of it.",
            ("result",),
            registry=self.registry,
        )
        self._as_written = Gauge(
            "tidegate_config_as_written",
            "1 where the file was taken over when that was last asked for, or at the start; else 0.",
            registry=self.registry,
        )
        self._as_written.set(1)
        self._tenants = TenantCollector()
        self.registry.register(self._tenants)
        # A child is found by its labels under a lock; the hot path keeps those it has found.
        keep = lru_cache(maxsize=1024)
        self._decision_child = keep(self._decisions.labels)
        self._ended_child = keep(self._ended.labels)
        self._seconds_child = keep(self._seconds.labels)
        self._prompt_child = keep(self._prompt.labels)
        self._output_child = keep(self._output.labels)
        self._wait_child = keep(self._waits.labels)
        for pool, service_class in itertools.product(pools, classes):
            # Born at 0: `increase()` does not see the first event of a series that is born at 1.
            for reason, entry in REASONS.items():
                if entry.gate in ("capacity", "queue") and entry.reply is not None:
                    self._decision_child(pool, service_class, Action.SHED.value, reason.value)
            self._decision_child(pool, service_class, Action.ADMIT.value, Reason.ADMITTED.value)

    def decided(self, record: Decided) -> None:
        """Count a verdict."""
        verdict = record.verdict
        self._decision_child(
            record.pool, record.service_class, verdict.action.value, verdict.reason.value
        ).inc()
        self._decision_seconds.observe(record.seconds)
        self._tenants.decided(record)

    def counted(self, pool: str, service_class: str, reason: Reason, count: int) -> None:
        """Count verdicts that Envoy gave in our stead."""
        labels = (pool, service_class, Action.SHED.value, reason.value)
        self._decision_child(*labels).inc(count)

    def waited(self, pool: str, service_class: str, end: WaitEnd, seconds: float) -> None:
        """Count the end of a wait."""
        self._wait_child(pool, service_class, end.value).observe(seconds)

    def ended(self, record: Ended) -> None:
        """Count an end, and the tokens where the engine told them."""
        labels = (record.pool, record.service_class)
        self._ended_child(*labels, record.outcome.value).inc()
        self._seconds_child(*labels).observe(record.seconds)
        if record.prompt_tokens is not None:
            self._prompt_child(*labels).observe(record.prompt_tokens)
        if record.completion_tokens is not None:
            self._output_child(*labels).observe(record.completion_tokens)
        self._tenants.ended(record)

    def reloaded(self, taken_over: bool) -> None:
        """Count that the configuration file was to be taken over; say whether it was."""
        self._reloads.labels("taken_over" if taken_over else "refused").inc()
        self._as_written.set(taken_over)

    def render(self) -> bytes:
        """Return the page that Prometheus scrapes, in the text format."""
        return generate_latest(self.registry)


class LineCollector(Collector):
    """The queues and tickets at the moment of a scrape."""

    def __init__(self, lines: Mapping[str, Line], classes: Sequence[ServiceClass]) -> None:
        self._lines = lines
        self._classes = tuple(classes)

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges, and the counters that tickets keep themselves."""
        depth = GaugeMetricFamily(
            "tidegate_queue_depth", "Calls that wait.", labels=["pool", "class"]
        )
        size = GaugeMetricFamily(
            "tidegate_queue_bytes", "Bytes of the bodies of calls that wait.", labels=["pool"]
        )
        tickets = CounterMetricFamily(
            "tidegate_tickets", "What became of tickets, by event.", labels=["pool", "event"]
        )
        for name, line in self._lines.items():
            size.add_metric([name], line.queue.bytes)
            for service_class in self._classes:
                depth.add_metric([name, service_class.name], line.queue.depth(service_class))
            for event in TicketEvent:
                tickets.add_metric([name, event.value], line.tickets.events[event])
        yield from (depth, size, tickets)


class PoolCollector(Collector):
    """The state of the pools at the moment of a scrape."""

    def __init__(self, pools: Mapping[str, Pool], clock: Callable[[], float]) -> None:
        self._pools = pools
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges."""
        now = self._clock()
        yield from self._pool_gauges(now)
        yield from self._endpoint_gauges(now)

    def _pool_gauges(self, now: float) -> Iterable[Metric]:
        in_flight = GaugeMetricFamily(
            "tidegate_in_flight", "Exchanges that hold capacity.", labels=["pool"]
        )
        limit = GaugeMetricFamily(
            "tidegate_concurrency_limit",
            "Exchanges at which a class closes.",
            labels=["pool", "class"],
        )
        free = GaugeMetricFamily(
            "tidegate_free_ratio_observed",
            "Free KV blocks of the pool by its readings, 0..1; absent where nothing is known.",
            labels=["pool"],
        )
        predicted = GaugeMetricFamily(
            "tidegate_free_ratio_predicted",
            "Free KV blocks after everything promised, as classes are judged by it; under 0 where "
            "more is promised than fits; absent where nothing is known.",
            labels=["pool"],
        )
        quantile = GaugeMetricFamily(
            "tidegate_length_quantile",
            "Share of the outputs that a prediction of lengths covers, 0..1.",
            labels=["pool"],
        )
        closed = GaugeMetricFamily(
            "tidegate_class_closed",
            "1 where the watermark has closed the class.",
            labels=["pool", "class"],
        )
        for name, pool in self._pools.items():
            load = pool.load(now)
            in_flight.add_metric([name], load.in_flight)
            if load.free is not None:
                free.add_metric([name], load.free)
            if load.predicted is not None:
                predicted.add_metric([name], load.predicted)
            quantile.add_metric([name], pool.quantile.value)
            for service_class in pool.classes:
                labels = [name, service_class.name]
                closed.add_metric(labels, float(pool.is_closed(service_class, now)))
                limit.add_metric(labels, pool.concurrency_limit(service_class))
        yield from (in_flight, limit, free, predicted, quantile, closed)

    def _endpoint_gauges(self, now: float) -> Iterable[Metric]:
        names = ["pool", "endpoint"]
        state = GaugeMetricFamily(
            "tidegate_endpoint_state",
            "1 for the state of the endpoint's reading: fresh, stale or unknown.",
            labels=[*names, "state"],
        )
        age = GaugeMetricFamily(
            "tidegate_scrape_age_seconds",
            "Age of the endpoint's last good reading; absent where there is none.",
            labels=names,
        )
        usage = GaugeMetricFamily(
            "tidegate_endpoint_kv_usage", "KV-cache usage as last read, 0..1.", labels=names
        )
        running = GaugeMetricFamily(
            "tidegate_endpoint_running", "Sequences that the engine computes.", labels=names
        )
        waiting = GaugeMetricFamily(
            "tidegate_endpoint_waiting", "Sequences in the engine's own queue.", labels=names
        )
        promised = GaugeMetricFamily(
            "tidegate_promised_tokens",
            "KV-cache tokens at the worst moment that the exchanges in flight lead to.",
            labels=names,
        )
        bias = GaugeMetricFamily(
            "tidegate_kv_bias_tokens",
            "Tokens in the KV cache beyond what we know of, smoothed; under 0 where there are fewer.",
            labels=names,
        )
        for pool_name, pool in self._pools.items():
            for endpoint, known in pool.endpoints.items():
                labels = [pool_name, endpoint]
                freshness = pool.freshness(endpoint, now)
                for each in Freshness:
                    state.add_metric([*labels, each.value], float(each is freshness))
                promised.add_metric(labels, known.promises.peak)
                bias.add_metric(labels, known.bias)
                if known.reading is not None:
                    age.add_metric(labels, known.age(now))
                    usage.add_metric(labels, known.reading.kv_usage)
                    running.add_metric(labels, known.reading.running)
                    waiting.add_metric(labels, known.reading.waiting)
        yield from (state, age, usage, running, waiting, promised, bias)
