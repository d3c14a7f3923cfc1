"""`balance: pick`: the engine that Tidegate chose is the one that Envoy takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

PICK = """
pools:
  "*": {balance: pick, scheduling_policy: priority, scrape: {interval: 50ms, stale_after: 500ms}}
"""
CHAT = {"model": "qwen", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}


@pytest.mark.parametrize("emptier", [0, 1])
async def test_every_call_goes_to_the_emptier_engine(stand_with: Any, emptier: int) -> None:
    stand = await stand_with(PICK)
    for number, engine in enumerate(stand.engines):
        engine.faults = replace(engine.faults, kv_usage=0.1 if number == emptier else 0.6)
    await stand.until(
        lambda seen: (
            [seen.of("endpoint_kv_usage", pool="*", endpoint=each) for each in stand.plan.engines]
            == [0.1 if number == emptier else 0.6 for number in (0, 1)]
        ),
        "both readings",
    )

    for _ in range(8):
        assert (await stand.post(CHAT, x_tenant_id="service")).status_code == 200

    counts = [len(await stand.requests(each)) for each in stand.plan.engines]
    assert counts[emptier] == 8
    assert counts[1 - emptier] == 0
