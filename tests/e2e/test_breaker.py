"""The output-length breaker through Envoy: learned, clamped, shed, and back again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from extproc.sim.engine_config import EngineConfig, Policy, StepCost

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

BREAKER = "breaker: {sustain: 0s, clamp_for: 0s, open_for: 500ms, longest: 1s, probes: 2}"
ENGINE = EngineConfig(policy=Policy.PRIORITY, cost=StepCost(0.0005, 0.0, 0.0))
CHAT = {"model": "qwen", "messages": [{"role": "user", "content": "hello"}], "ignore_eos": True}


async def ask(stand: Any, tokens: int) -> Any:
    return await stand.post({**CHAT, "max_tokens": tokens}, x_tenant_id="service")


async def several(stand: Any, calls: int, tokens: int) -> list[Any]:
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(ask(stand, tokens)) for _ in range(calls)]
    await stand.settled()
    return [each.result() for each in asked]


async def test_a_runaway_task_is_clamped_then_shed_then_served_again(stand_with: Any) -> None:
    stand = await stand_with(BREAKER, engines=1, engine=ENGINE)
    for _ in range(6):
        await several(stand, 10, 40)
    assert (await stand.metrics()).of("breaker_tasks", state="closed") == 1

    await several(stand, 20, 600)
    seen = await stand.metrics()
    assert seen.of("breaker_transitions_total", to="clamped") == 1
    assert seen.of("breaker_tripped", pool="*", tenant="service", task="", state="clamped") == 1

    [clamped, *_] = await several(stand, 5, 600)
    assert clamped.json()["usage"]["completion_tokens"] < 100
    shed = await ask(stand, 600)
    assert shed.headers["x-tidegate-reason"] == "breaker_output_length"
    assert shed.json()["choices"][0]["finish_reason"] == "load_shedding_fallback"

    async def recovers() -> bool:
        await ask(stand, 40)
        return bool((await stand.metrics()).of("breaker_tasks", state="closed") == 1)

    await stand.eventually(recovers, "a closed breaker")
    assert (await ask(stand, 40)).headers["x-tidegate-verdict"] == "admit"
