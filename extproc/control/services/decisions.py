"""What was decided, and why.

Rules this module keeps:

* What takes long is done in a thread, on lines that were copied before: the loop decides meanwhile.
* A watcher that is slow gets a sample, and is told how many it did not get.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import islice

import grpc

from extproc.control.pb import decisions_pb2, decisions_pb2_grpc
from extproc.control.services.convert import Context, limit_of, timestamp, unix_time
from extproc.telemetry import explanation, summary
from extproc.telemetry.lines import Line, line_of
from extproc.telemetry.recorder import Recorder, Remembered

_LONGEST_ID = 256
_SECOND = 1.0


class DecisionService(decisions_pb2_grpc.DecisionServiceServicer):
    """Serves ``tidegate.v1.DecisionService``."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    async def ListDecisions(
        self, request: decisions_pb2.ListDecisionsRequest, context: Context
    ) -> decisions_pb2.ListDecisionsResponse:
        """Tell of past decisions."""
        limit = await limit_of(request, context)
        wanted = _filter(request.filter)
        remembered = self._recorder.newest()
        if request.before_id:
            for each in remembered:
                if each.record.id == request.before_id:
                    break
        found = islice((each for each in remembered if wanted(each)), limit)
        oldest = self._recorder.oldest()
        return decisions_pb2.ListDecisionsResponse(
            decisions=[decision(line_of(each.record, each.at)) for each in found],
            remembered_since=None if oldest is None else timestamp(oldest),
        )

    async def WatchDecisions(
        self, request: decisions_pb2.WatchDecisionsRequest, context: Context
    ) -> AsyncIterator[decisions_pb2.WatchDecisionsResponse]:
        """Send decisions as they are made."""
        limit = await limit_of(request, context, usual=50, most=200)
        wanted = _filter(request.filter)
        seen = self._recorder.last_number
        yield decisions_pb2.WatchDecisionsResponse()
        while True:
            await self._recorder.news()
            fresh = [each for each in self._recorder.since(seen) if wanted(each)]
            seen = self._recorder.last_number
            if not fresh:
                continue
            # So many that a sender of full messages sends `limit` a second.
            shown = fresh[:: max(1, -(-len(fresh) // limit))]
            yield decisions_pb2.WatchDecisionsResponse(
                decisions=[decision(line_of(each.record, each.at)) for each in shown],
                left_out=len(fresh) - len(shown),
            )
            await asyncio.sleep(_SECOND * len(shown) / limit)

    async def ExplainDecision(
        self, request: decisions_pb2.ExplainDecisionRequest, context: Context
    ) -> decisions_pb2.ExplainDecisionResponse:
        """Tell why one call was decided so."""
        wanted = request.id.strip()
        for each in self._recorder.newest():
            if wanted and len(wanted) <= _LONGEST_ID and names(each.record, wanted):
                return explained(line_of(each.record, each.at))
        await context.abort(
            grpc.StatusCode.NOT_FOUND,
            "no such decision is remembered here; `tidegate explain ID --log FILE` looks in a log",
        )
        raise AssertionError  # abort raises

    async def SummarizeDecisions(
        self, request: decisions_pb2.SummarizeDecisionsRequest, context: Context
    ) -> decisions_pb2.SummarizeDecisionsResponse:
        """Tell what was shed and why."""
        wanted = _filter(request.filter)
        found = [each for each in self._recorder.newest() if wanted(each)]
        found.reverse()
        tried = [_what_if(each) for each in request.what_if]
        return await asyncio.to_thread(_summarize, found, tried)


def _summarize(
    found: Iterable[Remembered], tried: list[summary.WhatIf]
) -> decisions_pb2.SummarizeDecisionsResponse:
    lines = (line_of(each.record, each.at) for each in found)
    return summarized(summary.summarize(lines, tried))


def names(record: object, wanted: str) -> bool:
    """Say whether an id is a call's: its own, its fallback's, or Envoy's request id."""
    ident, request_id = getattr(record, "id", ""), getattr(record, "request_id", "")
    return wanted in (ident, request_id) or (bool(ident) and wanted.endswith(f"-{ident}"))


def decision(line: Line) -> decisions_pb2.Decision:
    """Return a decision as the API tells it."""
    return decisions_pb2.Decision(
        id=line.id,
        request_id=line.request_id,
        at=timestamp(line.at),
        pool=line.pool,
        api=line.api,
        tenant=line.tenant,
        service_class=line.service_class,
        task=line.task,
        verdict=line.verdict.value,
        reason=line.reason.value,
        shadow=line.shadow,
        prompt_tokens=line.prompt,
        max_output_tokens=line.max_output,
        choices=line.choices,
        body_bytes=line.body,
        value=line.value,
        threshold=line.threshold,
        free_observed=line.free,
        free_predicted=line.predicted,
        tightening=line.tightening,
        in_flight=line.in_flight,
        endpoints=line.endpoints,
        free_after=line.free_after,
        endpoint=line.endpoint or "",
        waited_seconds=line.waited or 0.0,
        decision_seconds=line.seconds,
        ticket=line.ticket,
        run=line.run,
        run_task=line.run_task,
        run_parent=line.run_parent,
    )


def explained(line: Line) -> decisions_pb2.ExplainDecisionResponse:
    """Return an explanation as the API tells it."""
    told = explanation.explain(line)
    return decisions_pb2.ExplainDecisionResponse(
        decision=decision(line),
        steps=[
            decisions_pb2.Step(
                gate=each.gate,
                passed=each.passed is True,
                skipped=each.passed is None,
                text_en=each.en,
                text_zh=each.zh,
            )
            for each in told.steps
        ],
        text_en=told.en,
        text_zh=told.zh,
    )


def summarized(told: summary.Summary) -> decisions_pb2.SummarizeDecisionsResponse:
    """Return a summary as the API tells it."""
    return decisions_pb2.SummarizeDecisionsResponse(
        since=timestamp(told.since) if told.decisions else None,
        until=timestamp(told.until) if told.decisions else None,
        decisions=told.decisions,
        admitted=told.admitted,
        refused=told.refused,
        by_reason=_shares(told.by_reason),
        by_class=_shares(told.by_class),
        by_tenant=_shares(told.by_tenant),
        by_task=_shares(told.by_task),
        bottlenecks=_shares(told.bottlenecks),
        long_context_share=told.long_context_share,
        long_prompt_tokens=summary.LONG_PROMPT,
        what_if=[
            decisions_pb2.WhatIfResult(
                what_if=decisions_pb2.WhatIf(
                    service_class=each.what_if.service_class,
                    close=each.what_if.close,
                    concurrency=each.what_if.concurrency,
                ),
                admitted_instead=each.admitted_instead,
                refused_instead=each.refused_instead,
                same=each.same,
            )
            for each in told.what_if
        ],
        text_en=summary.in_english(told),
        text_zh=summary.in_chinese(told),
    )


_MOST_ROWS = 100


def _shares(shares: tuple[summary.Share, ...]) -> list[decisions_pb2.Share]:
    return [
        decisions_pb2.Share(
            name=each.name, count=each.count, share=each.share, prompt_tokens=each.prompt_tokens
        )
        for each in shares[:_MOST_ROWS]
    ]


def _what_if(given: decisions_pb2.WhatIf) -> summary.WhatIf:
    return summary.WhatIf(
        given.service_class,
        given.close if given.HasField("close") else None,
        given.concurrency if given.HasField("concurrency") else None,
    )


def _filter(given: decisions_pb2.DecisionFilter) -> Callable[[Remembered], bool]:
    """Return what says whether a decision is wanted."""
    since = unix_time(given.since) if given.HasField("since") else None
    until = unix_time(given.until) if given.HasField("until") else None
    fields = [
        (field, frozenset(values))
        for field, values in (
            ("pool", given.pools),
            ("service_class", given.service_classes),
            ("tenant", given.tenants),
            ("task", given.tasks),
            ("run", given.runs),
        )
        if values
    ]
    verdicts, reasons = frozenset(given.verdicts), frozenset(given.reasons)

    def wanted(each: Remembered) -> bool:
        record = each.record
        return (
            (since is None or each.at >= since)
            and (until is None or each.at <= until)
            and (not verdicts or record.verdict.action.value in verdicts)
            and (not reasons or record.verdict.reason.value in reasons)
            and all(getattr(record, field) in values for field, values in fields)
        )

    return wanted
