"""Pods that report their load: readings like any others, of endpoints that were discovered."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from grpc import aio

from extproc.control.pb.load_reports_pb2 import LoadReport
from extproc.control.pb.load_reports_pb2_grpc import LoadReportServiceStub
from extproc.core.promises import Demand


def report(**more: Any) -> LoadReport:
    told: dict[str, Any] = {
        "pool": "qwen",
        "endpoint": "e",
        "free_ratio": 0.1,
        "blocks": 100,
        "block_size": 16,
    }
    return LoadReport(**(told | more))


async def test_a_report_is_a_reading(served: Any) -> None:
    pool = served.tidegate.pools["qwen"]
    stub = LoadReportServiceStub(await served.as_("pod"))

    await stub.ReportLoad(report(running=3, waiting=1, preemptions=7, generated_tokens=5))

    state = pool.endpoints["e"]
    assert state.reading is not None
    assert state.reading.kv_usage == pytest.approx(0.9)
    assert (state.reading.running, state.reading.waiting, state.reading.preemptions) == (3, 1, 7)
    assert (state.reading.generated, state.reading.prompted) == (5, None)
    assert state.capacity == 1600
    now = served.room._view.clock()
    assert pool.is_closed(pool.classes[2], now)


async def test_what_a_pod_does_not_tell_is_not_taken_for_nothing(served: Any) -> None:
    pool = served.tidegate.pools["qwen"]
    now = served.room._view.clock()
    for number in range(3):
        pool.reserve(f"x{number}", Demand(pool.classes[0], "", 10, 5), "e", now)
    stub = LoadReportServiceStub(await served.as_("pod"))
    await stub.ReportLoad(report(preemptions=4))

    await stub.ReportLoad(report())

    reading = pool.endpoints["e"].reading
    assert (reading.running, reading.preemptions) == (3, 4)
    assert pool.in_flight == 3


async def test_an_old_report_ages_and_replaces_no_newer_one(served: Any) -> None:
    state = served.tidegate.pools["qwen"].endpoints["e"]
    stub = LoadReportServiceStub(await served.as_("pod"))
    await stub.ReportLoad(report(free_ratio=0.5))

    await stub.ReportLoad(report(free_ratio=0.9, age_seconds=60.0))

    assert state.reading.kv_usage == 0.5


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"pool": "other"}, grpc.StatusCode.NOT_FOUND),
        ({"endpoint": "10.0.0.9:8000"}, grpc.StatusCode.NOT_FOUND),
        ({"free_ratio": 1.1}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"free_ratio": -0.1}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"free_ratio": float("nan")}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"age_seconds": -1.0}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"age_seconds": float("inf")}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"running": -1}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"blocks": 0}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"block_size": 1 << 60}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_report_that_makes_no_sense_is_refused(
    served: Any, more: dict[str, Any], code: grpc.StatusCode
) -> None:
    stub = LoadReportServiceStub(await served.as_("pod"))

    with pytest.raises(aio.AioRpcError) as refused:
        await stub.ReportLoad(report(**more))

    assert refused.value.code() is code
    assert served.tidegate.pools["qwen"].endpoints["e"].reading is None


async def test_a_stream_of_reports_goes_on_over_those_that_make_no_sense(served: Any) -> None:
    stub = LoadReportServiceStub(await served.as_("pod"))

    told = await stub.StreamLoad(iter([report(), report(pool="x"), report(free_ratio=0.4)]))

    assert (told.accepted, told.refused) == (2, 1)
    assert served.tidegate.pools["qwen"].endpoints["e"].reading.kv_usage == 0.6
