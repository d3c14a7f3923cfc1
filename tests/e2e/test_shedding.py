"""The main job: P2 is turned away first, P1 next, P0 never, and what is shed is well-formed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from extproc.sim.engine_config import EngineConfig, Policy, StepCost

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

CHAT = {"model": "qwen", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
ENDLESS = {**CHAT, "max_tokens": 2000, "ignore_eos": True, "stream": True}

ADMITTED = ("admit", "length")
SHED = ("shed", "load_shedding_fallback")


async def verdicts(stand: Any) -> dict[str, tuple[str, str]]:
    found = {}
    for tenant in ("pay", "service", "marketing"):
        reply = await stand.post({**CHAT, "ignore_eos": True}, x_tenant_id=tenant)
        assert reply.status_code == 200
        finish = reply.json()["choices"][0]["finish_reason"]
        found[tenant] = (reply.headers["x-tidegate-verdict"], finish)
    return found


async def test_classes_close_one_by_one_and_open_again(stand: Any) -> None:
    assert await verdicts(stand) == {"pay": ADMITTED, "service": ADMITTED, "marketing": ADMITTED}

    await stand.show_usage(0.86)
    assert await verdicts(stand) == {"pay": ADMITTED, "service": ADMITTED, "marketing": SHED}

    await stand.show_usage(0.93)
    assert await verdicts(stand) == {"pay": ADMITTED, "service": SHED, "marketing": SHED}

    await stand.show_usage(0.97)
    assert await verdicts(stand) == {"pay": ADMITTED, "service": SHED, "marketing": SHED}

    await stand.show_usage(0.83)  # over P1's upper mark, between P2's marks
    assert await verdicts(stand) == {"pay": ADMITTED, "service": ADMITTED, "marketing": SHED}

    await stand.show_usage(0.10)
    assert await verdicts(stand) == {"pay": ADMITTED, "service": ADMITTED, "marketing": ADMITTED}


async def stream(stand: Any, body: dict[str, Any], tenant: str) -> int:
    """Read a stream to its end and return its length."""
    url, headers = stand.url + "/v1/chat/completions", {"x-tenant-id": tenant}
    async with stand.http.stream("POST", url, json=body, headers=headers) as reply:
        return sum([len(chunk) async for chunk in reply.aiter_raw()])


async def test_real_load_of_p2_has_p2_shed_and_p0_is_still_served(stand_with: Any) -> None:
    small = EngineConfig(
        policy=Policy.PRIORITY, num_gpu_blocks=64, block_size=16, cost=StepCost(0.02, 0.0, 0.0)
    )
    stand = await stand_with(engines=1, engine=small)
    long = {**ENDLESS, "messages": [{"role": "user", "content": "x " * 150}], "max_tokens": 600}

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(stream(stand, long, "marketing")) for _ in range(6)]
        await stand.until(
            lambda seen: seen.sum("decisions_total", class_="P2", reason="kv_demand") >= 1,
            "P2 shed for want of room",
        )
        shed = await stand.post({**long, "stream": False}, x_tenant_id="marketing")
        assert shed.json()["id"].startswith("chatcmpl-promo-shedded-")
        assert shed.headers["x-tidegate-reason"] in ("kv_demand", "kv_watermark")
        served = await stand.post({**CHAT, "ignore_eos": True}, x_tenant_id="pay")
        assert served.json()["usage"]["completion_tokens"] == 4
        for each in running:
            each.cancel()
    await stand.idle()


async def test_p2_is_shed_at_its_share_of_the_concurrency(stand_with: Any) -> None:
    slow = EngineConfig(policy=Policy.PRIORITY, cost=StepCost(0.05, 0.0, 0.0))
    stand = await stand_with(engines=1, engine=slow)

    async with asyncio.TaskGroup() as tasks:
        # 80 % of 64, rounded down.
        running = [tasks.create_task(stream(stand, ENDLESS, "service")) for _ in range(51)]
        await stand.until(lambda seen: seen.of("in_flight", pool="*") == 51, "51 in flight")
        shed = await stand.post(CHAT, x_tenant_id="marketing")
        assert shed.headers["x-tidegate-reason"] == "concurrency"
        for tenant in ("service", "pay"):
            reply = await stand.post(CHAT, x_tenant_id=tenant)
            assert reply.headers["x-tidegate-verdict"] == "admit"
        for each in running:
            each.cancel()
    await stand.idle()


async def test_a_shed_call_never_reaches_an_engine(stand: Any) -> None:
    await stand.show_usage(0.99)

    reply = await stand.post(CHAT, x_tenant_id="marketing")

    assert reply.headers["x-tidegate-verdict"] == "shed"
    assert await stand.received() == []
    assert (await stand.metrics()).of("in_flight", pool="*") == 0


async def test_limits_reach_the_engine_by_class(stand: Any) -> None:
    expected = {"pay": (512, 0), "service": (2048, 10), "marketing": (2048, 20)}
    for number, tenant in enumerate(expected):
        await stand.post(
            {**CHAT, "max_tokens": 9999, "priority": -5, "seed": number}, x_tenant_id=tenant
        )

    bodies = [json.loads(each.body) for each in await stand.received()]

    assert {each["seed"]: (each["max_tokens"], each["priority"]) for each in bodies} == dict(
        enumerate(expected.values())
    )


async def test_a_prompt_too_long_for_p0_is_an_error(stand: Any) -> None:
    long = {"model": "qwen", "messages": [{"role": "user", "content": "word " * 20_000}]}

    reply = await stand.post(long, x_tenant_id="pay", accept_language="en")

    assert (reply.status_code, reply.headers["x-tidegate-reason"]) == (400, "prompt_too_long")
    assert reply.json()["error"]["code"] == "prompt_too_long"


async def test_how_exchanges_end_and_what_they_used_is_counted(stand: Any) -> None:
    for body in (
        {**CHAT, "ignore_eos": True},
        {**CHAT, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}},
    ):
        await stand.post(body, x_tenant_id="pay")

    await stand.settled()
    seen = await stand.metrics()
    assert stand.grown(seen, "exchanges_ended_total", class_="P0", outcome="completed") == 2
    assert stand.grown(seen, "output_tokens_sum", class_="P0") == 8
    admitted = {"class_": "P0", "verdict": "admit", "reason": "admitted"}
    assert stand.grown(seen, "decisions_total", **admitted) == 2
