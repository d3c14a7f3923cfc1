"""Engines that tell their load themselves, beside scraping or instead of it.

Rules this module keeps:

* A report is a reading like any other: it ages, and it is held against our own books.
* What a pod does not tell is never taken for nothing: sequences that it does not count are those that
  we sent, counters are as they were.
* Endpoints come from discovery; nobody joins a pool by reporting.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

import grpc

from extproc.control.pb import load_reports_pb2, load_reports_pb2_grpc
from extproc.control.services.convert import Context
from extproc.core.capacity import Endpoint, Pool
from extproc.core.readings import Reading

Heard = Callable[[str, str, Reading, float], None]
"""Takes a reading: pool, endpoint, what it says, and when that was so, on the pools' clock."""

_COUNTS = ("running", "waiting", "preemptions", "generated_tokens", "prompt_tokens")
_MOST = 1 << 53
_LONGEST_AGE = 3600.0


class LoadReportService(load_reports_pb2_grpc.LoadReportServiceServicer):
    """Serves ``tidegate.v1.LoadReportService``."""

    def __init__(self, pools: Mapping[str, Pool], heard: Heard, clock: Callable[[], float]) -> None:
        self._pools = pools
        self._heard = heard
        self._clock = clock

    async def ReportLoad(
        self, request: load_reports_pb2.LoadReport, context: Context
    ) -> load_reports_pb2.ReportLoadResponse:
        """Take one report."""
        problem = self._take(request)
        if problem is not None:
            await context.abort(*problem)
        return load_reports_pb2.ReportLoadResponse()

    async def StreamLoad(
        self,
        request_iterator: AsyncIterator[load_reports_pb2.LoadReport],
        context: Context,
    ) -> load_reports_pb2.StreamLoadResponse:
        """Take reports as they come."""
        accepted = refused = 0
        async for report in request_iterator:
            if self._take(report) is None:
                accepted += 1
            else:
                refused += 1
        return load_reports_pb2.StreamLoadResponse(accepted=accepted, refused=refused)

    def _take(self, report: load_reports_pb2.LoadReport) -> tuple[grpc.StatusCode, str] | None:
        """Take a report, or return why it cannot be."""
        pool = self._pools.get(report.pool)
        endpoint = None if pool is None else pool.endpoints.get(report.endpoint)
        if endpoint is None:
            return grpc.StatusCode.NOT_FOUND, "no such endpoint was discovered in such a pool"
        if not _plausible(report):
            return grpc.StatusCode.INVALID_ARGUMENT, "a number is out of its range"
        reading = _reading(report, endpoint)
        self._heard(report.pool, report.endpoint, reading, self._clock() - report.age_seconds)
        return None


def _plausible(report: load_reports_pb2.LoadReport) -> bool:
    return (
        0.0 <= report.free_ratio <= 1.0
        and 0.0 <= report.age_seconds <= _LONGEST_AGE
        and all(0 <= getattr(report, name) <= _MOST for name in _COUNTS)
        and (not report.HasField("blocks") or 0 < report.blocks <= _MOST)
        and (not report.HasField("block_size") or 0 < report.block_size <= _MOST)
    )


def _reading(report: load_reports_pb2.LoadReport, endpoint: Endpoint) -> Reading:
    before = endpoint.reading
    ours = endpoint.promises.sequences
    return Reading(
        kv_usage=1.0 - report.free_ratio,
        blocks=report.blocks if report.HasField("blocks") else None,
        block_size=report.block_size if report.HasField("block_size") else None,
        running=report.running if report.HasField("running") else ours,
        waiting=report.waiting if report.HasField("waiting") else 0,
        preemptions=(
            report.preemptions
            if report.HasField("preemptions")
            else (0 if before is None else before.preemptions)
        ),
        generated=report.generated_tokens if report.HasField("generated_tokens") else None,
        prompted=report.prompt_tokens if report.HasField("prompt_tokens") else None,
    )
