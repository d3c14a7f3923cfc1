"""A trace that begins at the client goes through Envoy, is joined by us, and reaches the engine."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
CHAT = {"model": "qwen", "max_tokens": 4, "messages": [{"role": "user", "content": "canary"}]}


async def test_a_trace_is_joined_and_passed_on_as_it_came(stand_with: Any) -> None:
    got: list[bytes] = []

    async def take(request: web.Request) -> web.Response:
        got.append(await request.read())
        return web.Response()

    application = web.Application()
    application.router.add_post("/v1/traces", take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        stand = await stand_with(
            f'tracing: {{endpoint: "http://127.0.0.1:{port}/v1/traces", ratio: 0}}'
        )
        headers = {"traceparent": PARENT, "tracestate": "congo=t61", "x_tenant_id": "pay"}
        assert (await stand.post(CHAT, **headers)).status_code == 200
        (received,) = await stand.received()
        await stand.settled()
        stand.signal("tidegate", signal.SIGTERM)
        await stand.children["tidegate"].process.wait()
        spans = [
            span
            for each in got
            for resource in ExportTraceServiceRequest.FromString(each).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
    finally:
        await runner.cleanup()

    assert received.headers["traceparent"] == PARENT
    assert received.headers["tracestate"] == "congo=t61"
    assert [span.name for span in spans] == ["tidegate decision", "tidegate exchange"]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert not any(b"canary" in each for each in got)
