"""Engines tell their load beside their answers, and it counts before the next scrape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

NEVER_AGAIN = """
pools:
  "*": {scrape: {interval: 60s, stale_after: 120s, unknown_after: 240s}}
"""
CALL = {"model": "qwen", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


async def test_an_answer_that_tells_of_a_full_engine_closes_a_class(stand_with: Any) -> None:
    stand = await stand_with(NEVER_AGAIN, engines=1)
    (engine,) = stand.engines
    first = await stand.post(CALL, x_tenant_id="marketing")
    engine.faults = replace(engine.faults, kv_usage=0.9)

    telling = await stand.post(CALL, x_tenant_id="pay")
    shed = await stand.post(CALL, x_tenant_id="marketing")

    assert first.headers["x-tidegate-verdict"] == "admit"
    assert "endpoint-load-metrics" not in telling.headers
    assert shed.headers["x-tidegate-reason"] == "kv_watermark"
