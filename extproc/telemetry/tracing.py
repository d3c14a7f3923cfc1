"""OpenTelemetry spans of decisions and of what became of calls, by callers' own W3C context.

Rules this module keeps:

* Spans are made after the fact and in a thread of their own; a call that is decided about costs nothing
  but keeping its context.
* The context goes on to the engine as the caller sent it: we are beside the call's way, not in it.
* A span carries what a line of the decision log carries, and nothing that a caller said.
* Without the packages of the extra ``tracing`` this module cannot be imported.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.json.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from extproc.core.controller import Action
from extproc.core.records import Decided, Ended, WaitEnd
from extproc.telemetry.handover import Handover
from extproc.telemetry.recorder import Remembered

OPEN = 1 << 16
"""Admitted calls whose end is waited for; of more, the oldest are forgotten."""
EXPORT_SECONDS = 2.0
"""How long a collector may take."""

_PROPAGATOR = TraceContextTextMapPropagator()


class Tracing:
    """Makes spans of decisions and ends; an `extproc.core.records.Observer`.

    Args:
        endpoint: of the collector, OTLP over HTTP.
        ratio: share of calls without a sampled context that are sampled, 0..1.
        version, instance: which Tidegate this is.
        wall_clock: Unix time in seconds.
    """

    def __init__(
        self,
        endpoint: str,
        ratio: float,
        *,
        version: str,
        instance: str,
        wall_clock: Callable[[], float],
    ) -> None:
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(ratio)),
            resource=Resource.create(
                {
                    "service.name": "tidegate",
                    "service.version": version,
                    "service.instance.id": instance,
                }
            ),
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(endpoint, timeout=EXPORT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tidegate", version)
        self._wall_clock = wall_clock
        self._ends: deque[tuple[float, Ended]] = deque(maxlen=OPEN)
        self._open: OrderedDict[str, tuple[Context, float, str]] = OrderedDict()
        self._handover = Handover("tracing", self._make)

    def decided(self, record: Decided) -> None:
        """A verdict was given; it comes again, in a batch."""

    def waited(self, pool: str, service_class: str, end: WaitEnd, seconds: float) -> None:
        """A call has left the queue; its decision tells how long it waited."""

    def ended(self, record: Ended) -> None:
        """An admitted exchange is over."""
        self._ends.append((self._wall_clock(), record))

    def take(self, batch: list[Remembered]) -> None:
        """Take decisions over, and the ends that have come so far; returns at once.

        No end comes before its decision: those are taken in the same breath.
        """
        self._handover.put((batch, self._ended_so_far()))

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Make spans inside the block, and send what is left at its end."""
        try:
            with self._handover.working():
                yield
        finally:
            self._make(([], self._ended_so_far()))
            self._provider.shutdown()

    def _ended_so_far(self) -> list[tuple[float, Ended]]:
        ends = list(self._ends)
        self._ends.clear()
        return ends

    def _make(self, work: tuple[list[Remembered], list[tuple[float, Ended]]]) -> None:
        decisions, ends = work
        for each in decisions:
            self._decision(each)
        for at, record in ends:
            self._end(at, record)

    def _decision(self, each: Remembered) -> None:
        record, verdict = each.record, each.record.verdict
        began = each.at - record.seconds - (record.waited or 0.0)
        carrier = {"traceparent": record.trace[0], "tracestate": record.trace[1]}
        context = _PROPAGATOR.extract(carrier, Context())
        self._span(
            "tidegate decision",
            context,
            began,
            each.at,
            {
                "tidegate.id": record.id,
                "tidegate.pool": record.pool,
                "tidegate.api": record.endpoint,
                "tidegate.tenant": record.tenant,
                "tidegate.class": record.service_class,
                "tidegate.task": record.task or None,
                "tidegate.verdict": verdict.action.value,
                "tidegate.reason": verdict.reason.value,
                "tidegate.threshold": verdict.threshold,
                "tidegate.value": verdict.value,
                "tidegate.free_ratio.observed": verdict.load.free,
                "tidegate.free_ratio.predicted": verdict.load.predicted,
                "tidegate.in_flight": verdict.load.in_flight,
                "tidegate.waited_seconds": record.waited,
                "tidegate.prompt_tokens": record.prompt_tokens,
                "tidegate.shadow": record.shadow or None,
            },
        )
        if verdict.action is Action.ADMIT or record.shadow:
            self._open[record.id] = context, began, record.endpoint
            if len(self._open) > OPEN:
                self._open.popitem(last=False)

    def _end(self, at: float, record: Ended) -> None:
        context, began, api = self._open.pop(record.id, (None, 0.0, ""))
        if context is None:
            return
        self._span(
            "tidegate exchange",
            context,
            began,
            at,
            {
                "tidegate.id": record.id,
                "tidegate.pool": record.pool,
                "tidegate.api": api,
                "tidegate.class": record.service_class,
                "tidegate.outcome": record.outcome.value,
                "gen_ai.usage.input_tokens": record.prompt_tokens,
                "gen_ai.usage.output_tokens": record.completion_tokens,
            },
        )

    def _span(
        self,
        name: str,
        context: Context,
        began: float,
        ended: float,
        attributes: dict[str, AttributeValue | None],
    ) -> None:
        """Make a span of what is over; attributes that are None are not known."""
        known = {key: value for key, value in attributes.items() if value is not None}
        start, end = _nanoseconds(began), _nanoseconds(ended)
        self._tracer.start_span(name, context, attributes=known, start_time=start).end(end)


def _nanoseconds(at: float) -> int:
    return round(at * 1e9)
