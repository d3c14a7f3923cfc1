"""A trace that begins at the client goes through Envoy, is joined by us, and reaches the engine."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = {
    "traceparent": f"00-{TRACE}-{PARENT}-01",
    "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
    "baggage": "user.tier=gold,canary=in-baggage",
}
PROMPT = "a canary in the prompt"
CHAT = {"model": "qwen", "max_tokens": 4, "messages": [{"role": "user", "content": PROMPT}]}


async def test_a_trace_is_joined_and_passed_on_as_it_came(stand_with: Any) -> None:
    stand = await stand_with()
    assert (await stand.post(CHAT, x_tenant_id="pay", **CONTEXT)).status_code == 200
    await stand.settled()
    (received,) = await stand.received()
    await stand.show_usage(0.99)
    shed = await stand.post(CHAT, x_tenant_id="marketing", **CONTEXT)
    assert shed.headers["x-tidegate-verdict"] == "shed"
    stand.signal("tidegate", signal.SIGTERM)
    await stand.children["tidegate"].process.wait()

    assert {name: received.headers[name] for name in CONTEXT} == CONTEXT
    told = (stand.plan.directory / "traces.jsonl").read_text(encoding="utf-8")
    spans = [
        span
        for line in told.splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    assert sorted(span["name"] for span in spans) == [
        *["tidegate decision"] * 2,
        "tidegate exchange",
    ]
    assert {span["traceId"] for span in spans} == {TRACE}
    assert {span["parentSpanId"] for span in spans} == {PARENT}
    assert {span["traceState"] for span in spans} == {CONTEXT["tracestate"]}
    named = {each["key"] for span in spans for each in span["attributes"]}
    assert {name.partition(".")[0] for name in named} == {"tidegate", "gen_ai"}
    assert "canary" not in told
