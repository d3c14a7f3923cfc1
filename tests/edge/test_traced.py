"""The trace context that a decision is remembered with, where calls are traced."""

from __future__ import annotations

import pytest

from extproc.edge import reports
from extproc.edge.exchange import Request

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        ({}, ("", "")),
        ({"traceparent": PARENT, "baggage": "a=b"}, (PARENT, "")),
        ({"traceparent": PARENT, "tracestate": "congo=t61"}, (PARENT, "congo=t61")),
        ({"traceparent": PARENT + "x" * 100, "tracestate": "congo=t61"}, ("", "congo=t61")),
        ({"traceparent": PARENT, "tracestate": "x" * 513}, (PARENT, "")),
    ],
)
def test_what_is_too_long_for_a_context_is_none(
    headers: dict[str, str], kept: tuple[str, str]
) -> None:
    assert reports.trace_of(Request("/v1/completions", "r", headers, {}, b"")) == kept
