"""Spans of decisions and exchanges, as a collector gets them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from extproc import parts
from extproc.config import ConfigError, parse
from extproc.core.capacity import Load
from extproc.core.controller import Action, Verdict
from extproc.core.outcomes import Outcome
from extproc.core.reasons import Reason
from extproc.core.records import Decided, Ended
from extproc.telemetry import tracing
from extproc.telemetry.recorder import Recorder
from extproc.telemetry.tracing import Tracing
from tests.http_server import answering

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
LOAD = Load(0.4, 1.0, 3, 2, 0.35)
ADMITTED = Verdict(Action.ADMIT, Reason.ADMITTED, LOAD)
SHED = Verdict(Action.SHED, Reason.KV_WATERMARK, LOAD, 0.5, 0.4)


def decided(ident: str, verdict: Verdict = ADMITTED, **more: Any) -> Decided:
    return Decided(ident, "r", "qwen", "chat", "pay", "P0", "order", 9, 64, verdict, 0.001, **more)


class Collector:
    """An OTLP collector that keeps the spans it gets."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        return web.Response()

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    async with answering("POST", "/v1/traces", made.take) as address:
        made.url = f"http://{address}/v1/traces"
        yield made


async def trace(collector: Collector, *records: Decided | Ended, ratio: float = 0.0) -> list[Any]:
    """Have records traced and return the spans."""
    times = iter([1000.0 + number for number in range(1000)])
    made = Tracing(
        collector.url, ratio, version="1", instance="here:1", wall_clock=lambda: next(times)
    )
    recorder = Recorder(lambda: next(times))
    recorder.hand_to(made.take)

    def work() -> None:
        with made.working():
            for record in records:
                if isinstance(record, Ended):
                    made.ended(record)
                else:
                    made.decided(record)
                    recorder.decided(record)
                recorder.turn()

    await asyncio.to_thread(work)
    return collector.spans


def attributes(span: Any) -> dict[str, object]:
    """Return its attributes; JSON has whole numbers as text, so that none is rounded."""
    return {
        each["key"]: int(value) if kind == "intValue" else value
        for each in span["attributes"]
        for kind, value in each["value"].items()
    }


def lasted(span: Any) -> int:
    return int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])


async def test_a_decision_is_a_span_of_its_callers_trace(collector: Collector) -> None:
    (span,) = await trace(collector, decided("x1", SHED, trace=(PARENT, "congo=t61"), waited=2.0))

    assert span["traceId"] == "0af7651916cd43dd8448eb211c80319c"
    assert span["parentSpanId"] == "b7ad6b7169203331"
    assert span["traceState"] == "congo=t61"
    assert span["name"] == "tidegate decision"
    assert lasted(span) == pytest.approx(2.001e9, abs=1e3)
    assert attributes(span) == {
        "tidegate.id": "x1",
        "tidegate.pool": "qwen",
        "tidegate.api": "chat",
        "tidegate.tenant": "pay",
        "tidegate.class": "P0",
        "tidegate.task": "order",
        "tidegate.verdict": "shed",
        "tidegate.reason": "kv_watermark",
        "tidegate.threshold": 0.5,
        "tidegate.value": 0.4,
        "tidegate.free_ratio.observed": 0.4,
        "tidegate.free_ratio.predicted": 0.35,
        "tidegate.in_flight": 3,
        "tidegate.waited_seconds": 2.0,
        "tidegate.prompt_tokens": 9,
    }
    resource = attributes(collector.requests[0]["resourceSpans"][0]["resource"])
    assert (resource["service.name"], resource["service.instance.id"]) == ("tidegate", "here:1")


async def test_what_became_of_an_admitted_call_is_a_span_beside(collector: Collector) -> None:
    end = Ended("x1", "pay", "P0", "qwen", Outcome.COMPLETED, 9, 30, 5.0)

    decision, exchange = await trace(collector, decided("x1", trace=(PARENT, "")), end, end)

    assert (decision["name"], exchange["name"]) == ("tidegate decision", "tidegate exchange")
    for name in ("traceId", "parentSpanId", "startTimeUnixNano"):
        assert exchange[name] == decision[name]
    told = attributes(exchange)
    assert told["tidegate.outcome"] == "completed"
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (9, 30)
    assert int(exchange["endTimeUnixNano"]) > int(decision["endTimeUnixNano"])


@pytest.mark.parametrize(
    ("context", "ratio", "sampled"),
    [
        ((UNSAMPLED, ""), 1.0, 0),
        (("", ""), 1.0, 1),
        (("", ""), 0.0, 0),
        (("nonsense", "also = nonsense ="), 1.0, 1),
    ],
)
async def test_callers_decide_what_is_sampled_and_the_ratio_of_the_rest(
    collector: Collector, context: tuple[str, str], ratio: float, sampled: int
) -> None:
    spans = await trace(collector, decided("x1", trace=context), ratio=ratio)

    assert len(spans) == sampled


async def test_of_ends_that_never_come_only_so_many_are_waited_for(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "OPEN", 1)
    ends = [Ended(each, "pay", "P0", "qwen", Outcome.TIMEOUT, None, None, 1.0) for each in "ab"]

    spans = await trace(collector, decided("a"), decided("b"), *ends, ratio=1.0)

    told = [
        attributes(each)["tidegate.id"] for each in spans if each["name"] == "tidegate exchange"
    ]
    assert told == ["b"]


async def test_a_collector_that_is_gone_holds_up_nothing() -> None:
    nowhere = Collector()
    nowhere.url = "http://127.0.0.1:9/v1/traces"

    assert await trace(nowhere, decided("a"), ratio=1.0) == []


def test_where_the_packages_are_missing_it_is_said_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "extproc.telemetry.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    with pytest.raises(ConfigError, match=r"pip install 'tidegate\[tracing\]'"):
        parts.tracing(parse("tracing: {}"), lambda: 0.0)
