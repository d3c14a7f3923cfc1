"""Clients that send or read slowly hold up nobody, and not for ever."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

PATH = "/v1/chat/completions"
CHAT = {
    "model": "qwen", "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 4, "ignore_eos": True,
}  # fmt: skip
IMPATIENT = """\
envoy: {upload_timeout: 500ms, message_timeout: 1s}
classes:
  P0: {strict: true, max_wait: 500ms}
  P1: {max_wait: 500ms}
  P2: {max_wait: 0s}
tenants: {pay: {class: P0}, anonymous: {class: P2}, marketing: {class: P2}}
"""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
ACTIVE = "http.tidegate.downstream_rq_active"
"""Envoy's count of the requests that it has."""


async def begun(stand: Any, tenant: str, body: bytes, length: int) -> Connection:
    """Begin a call that says how long its body is."""
    reader, writer = await asyncio.open_connection(*stand.plan.envoy.split(":"))
    head = f"POST {PATH} HTTP/1.1\r\nhost: e\r\nx-tenant-id: {tenant}\r\n"
    writer.write(f"{head}content-length: {length}\r\n\r\n".encode() + body)
    await writer.drain()
    return reader, writer


async def test_a_body_that_does_not_end_is_given_up(stand_with: Any) -> None:
    stand = await stand_with(IMPATIENT)
    slow = [await begun(stand, "marketing", b'{"model": "q', 900) for _ in range(100)]
    await stand.until_envoy(ACTIVE, lambda active: active == len(slow))

    async def trickle(writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b" ")  # never idle
            await asyncio.sleep(0.1)

    trickling = [asyncio.create_task(trickle(writer)) for _, writer in slow]
    try:
        reply = await stand.post(CHAT, x_tenant_id="pay")
        answers = await asyncio.gather(*(reader.readline() for reader, _ in slow))
    finally:
        for task in trickling:
            task.cancel()
        await asyncio.gather(*trickling, return_exceptions=True)
        for _, writer in slow:
            writer.close()

    assert reply.headers["x-tidegate-verdict"] == "admit"
    assert set(answers) == {b"HTTP/1.1 408 Request Timeout\r\n"}
    await stand.settled()
    assert len(await stand.received()) == 1, "no engine has seen the slow ones"


async def test_a_client_that_does_not_read_holds_up_nobody(stand: Any) -> None:
    endless = json.dumps({**CHAT, "max_tokens": 2000, "stream": True}).encode()
    connections = [await begun(stand, "service", endless, len(endless)) for _ in range(20)]
    for _, writer in connections:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
    await stand.until(lambda seen: seen.of("in_flight", pool="*") == 20, "all in flight")

    reply = await stand.post(CHAT, x_tenant_id="pay")
    for _, writer in connections:
        writer.transport.abort()

    assert reply.headers["x-tidegate-verdict"] == "admit"
    await stand.settled()
    ended = stand.grown(await stand.metrics(), "exchanges_ended_total", outcome="client_gone")
    assert ended == 20, "what they did not read is not served to its end"
