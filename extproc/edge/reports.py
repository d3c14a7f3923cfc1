"""What is told of a verdict: the record for telemetry, and how much more a payer may send."""

from __future__ import annotations

from extproc import contract
from extproc.core.controller import Verdict
from extproc.core.limits import Level
from extproc.core.records import Decided
from extproc.edge.exchange import Request
from extproc.edge.responder import Case
from extproc.openai.rate_headers import Headers, rate_headers

_TRACEPARENT, _TRACESTATE = 128, 512
"""Characters of a trace context that are kept."""


def decided(case: Case, verdict: Verdict, seconds: float, *, shadow: bool) -> Decided:
    """Return the record of a verdict; ``seconds``: what it took, ``shadow``: it is not carried out."""
    candidate, member = case.candidate, case.member
    classification = candidate.classification
    return Decided(
        id=candidate.id,
        request_id=case.request_id,
        pool=case.pool,
        endpoint=case.endpoint.value,
        tenant=classification.tenant,
        service_class=classification.service_class.name,
        task=classification.task,
        prompt_tokens=candidate.prompt_tokens,
        max_output=classification.max_output,
        verdict=verdict,
        seconds=seconds,
        shadow=shadow,
        call=None if candidate.notes is None else candidate,
        waited=case.waited,
        trace=case.trace,
        run="" if member is None else member.run,
        run_task="" if member is None else member.task,
        run_parent="" if member is None else member.parent,
    )


def level_headers(kind: str, level: Level | None) -> Headers:
    """Return the headers that tell a level of ``requests`` or ``tokens``; none where there is none."""
    if level is None:
        return ()
    return rate_headers(kind, limit=level.limit, remaining=level.remaining, reset=level.reset)


def trace_of(request: Request) -> tuple[str, str]:
    """Return the caller's trace context; what is too long for one is none (W3C: 55 and 512)."""
    parent, state = (request.headers.get(name, "") for name in contract.TRACE_HEADERS)
    return (
        parent if len(parent) <= _TRACEPARENT else "",
        state if len(state) <= _TRACESTATE else "",
    )
