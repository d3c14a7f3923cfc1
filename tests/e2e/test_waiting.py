"""Calls that find no room wait their turn, come in when there is room, or are told to come again."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from extproc.sim.engine_config import EngineConfig, Policy, StepCost

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

CLASSES = """\
classes:
  P0: {strict: true, max_wait: 10s}
  P1: {concurrency: 0.02, free_watermark: {close: 0.08, open: 0.12}, max_wait: 2s}
  P2: {concurrency: 0.02, free_watermark: {close: 0.15, open: 0.20}}
"""
"""Of 64 calls, P1 and P2 may have one in flight."""
CHAT = {"model": "qwen", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
LONG = {**CHAT, "max_tokens": 700, "ignore_eos": True, "stream": True}
HALF = {**CHAT, "max_tokens": 500, "ignore_eos": True}
"""About half of the engine's 1024 tokens."""
ENGINE = EngineConfig(
    policy=Policy.PRIORITY, num_gpu_blocks=64, block_size=16, cost=StepCost(0.008, 0.0, 0.0)
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(opened: Any) -> Any:
    async with opened(CLASSES, engines=1, engine=ENGINE) as stand:
        yield stand


async def waits(stand: Any, service_class: str, number: int) -> None:
    await stand.until(
        lambda seen: seen.of("queue_depth", pool="*", class_=service_class) == number,
        f"{number} of {service_class} waiting",
    )


async def test_p1_waits_as_long_as_it_may_and_is_then_shed(stand: Any) -> None:
    await stand.show_usage(0.95)

    reply = await stand.post(CHAT, x_tenant_id="service")

    assert reply.status_code == 200
    assert reply.elapsed.total_seconds() >= 1.9
    assert reply.headers["x-tidegate-reason"] == "queue_deadline"
    ticket = reply.headers["x-tidegate-ticket"]
    assert reply.json()["tidegate"] == {"reason": "queue_deadline", "ticket": ticket}
    seen = await stand.metrics()
    waited = {"pool": "*", "class_": "P1", "end": "shed"}
    assert stand.grown(seen, "queue_wait_seconds_count", **waited) == 1
    assert await stand.received() == []


@contextlib.asynccontextmanager
async def long_call(stand: Any) -> AsyncIterator[httpx.Response]:
    """A call of P1 that runs, until it is closed."""
    url, headers = stand.url + "/v1/chat/completions", {"x-tenant-id": "service"}
    async with stand.http.stream("POST", url, json=LONG, headers=headers) as running:
        assert running.headers["x-tidegate-verdict"] == "admit"
        yield running


async def test_p0_waits_and_gets_in_when_there_is_room(stand: Any) -> None:
    await stand.show_usage(1.0)
    async with asyncio.TaskGroup() as tasks:
        pay = tasks.create_task(stand.post(HALF, x_tenant_id="pay"))
        await waits(stand, "P0", 1)
        assert (await stand.metrics()).of("queue_bytes", pool="*") > 0
        await stand.show_usage(0.1)
    reply = pay.result()

    assert reply.headers["x-tidegate-verdict"] == "admit"
    assert reply.json()["usage"]["completion_tokens"] == 500
    seen = await stand.metrics()
    waited = {"pool": "*", "class_": "P0", "end": "admitted"}
    assert stand.grown(seen, "queue_wait_seconds_count", **waited) == 1
    assert seen.of("queue_depth", pool="*", class_="P0") == 0


async def test_a_client_that_leaves_frees_its_place(stand: Any) -> None:
    await stand.show_usage(1.0)
    pay = asyncio.create_task(stand.post(HALF, x_tenant_id="pay"))
    await waits(stand, "P0", 1)

    pay.cancel()
    await asyncio.wait([pay])

    await waits(stand, "P0", 0)
    seen = await stand.metrics()
    assert (seen.of("queue_bytes", pool="*"), seen.of("in_flight", pool="*")) == (0, 0)
    waited = {"pool": "*", "class_": "P0", "end": "left"}
    assert stand.grown(seen, "queue_wait_seconds_count", **waited) == 1
    assert await stand.received() == []


async def test_a_ticket_is_served_before_newer_arrivals_and_counts_once(stand: Any) -> None:
    mine, newer = {**CHAT, "user": "mine"}, {**CHAT, "user": "newer"}
    order: list[str] = []

    async def ask(body: dict[str, Any], **headers: str) -> None:
        reply = await stand.post(body, x_tenant_id="service", **headers)
        assert reply.headers["x-tidegate-verdict"] == "admit"
        order.append(body["user"])

    async with long_call(stand) as running:
        shed = await stand.post(mine, x_tenant_id="service")
        ticket = shed.headers["x-tidegate-ticket"]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask(newer))
            await waits(stand, "P1", 1)
            tasks.create_task(ask(mine, x_tidegate_ticket=ticket))
            await waits(stand, "P1", 2)
            await running.aclose()

    assert order == ["mine", "newer"]
    await ask(mine, x_tidegate_ticket=ticket)
    seen = await stand.metrics()
    for event in ("issued", "redeemed", "reused"):
        assert stand.grown(seen, "tickets_total", pool="*", event=event) == 1
    assert [
        name for each in await stand.received() for name in each.headers if "tidegate" in name
    ] == []


@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
@pytest.mark.parametrize("second", [False, True], ids=["http1", "http2"])
async def test_a_body_over_1_mb_waits_and_reaches_the_engine_once_and_whole(
    stand: Any, second: bool, chunked: bool
) -> None:
    """Envoy is known to tell the end of such a body twice; its reply must not lead past the queue."""
    # Nothing has to be changed in it. What fills it up is no prompt: P1 has no room for one so long.
    call = {**CHAT, "priority": 0, "metadata": {"note": "x" * (3 << 20 >> 1)}}
    body = json.dumps(call).encode()

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 61_007):
            yield body[start : start + 61_007]

    async with (
        httpx.AsyncClient(http1=not second, http2=second, timeout=30) as client,
        long_call(stand) as running,
        asyncio.TaskGroup() as tasks,
    ):
        long = tasks.create_task(
            client.post(
                stand.url + "/v1/chat/completions",
                content=parts() if chunked else body,
                headers={"content-type": "application/json", "x-tenant-id": "service"},
            )
        )
        await waits(stand, "P1", 1)
        assert len(await stand.received()) == 1, (
            "the call that runs, and nothing led past the queue"
        )
        await running.aclose()

    assert long.result().headers["x-tidegate-verdict"] == "admit"
    _, received = await stand.received()
    assert (received.length, received.sha256) == (len(body), hashlib.sha256(body).hexdigest())
    assert received.headers["content-length"] == str(len(body))
    seen = await stand.metrics()
    assert stand.grown(seen, "decisions_total", class_="P1") == 2
    assert seen.of("queue_depth", pool="*", class_="P1") == 0
