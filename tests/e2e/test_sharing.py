"""Plans that are shared through Redis, through a real Envoy, also when Redis goes in mid-load."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

SHARED = """\
tenants:
  pay:       {{class: P0, plan: big}}
  service:   {{class: P1}}
  marketing: {{class: P2}}
  anonymous: {{class: P2}}
plans:
  big: {{requests_per_minute: 100000, tokens_per_minute: 100000000, quota: {{tokens: 1000000000}}}}
state: {{redis: "{url}"}}
"""
CHAT = {"model": "qwen", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}


async def test_no_call_fails_when_redis_goes_and_it_is_asked_again_when_it_is_back(
    stand_with: Any, serving: Any
) -> None:
    with serving("valkey") as server:
        stand = await stand_with(SHARED.format(url=server.url))
        await stand.until(lambda seen: seen.of("redis_up") == 1, "redis")

        async def call() -> int:
            reply = await stand.post(CHAT, x_tenant_id="pay")
            assert "x-ratelimit-remaining-requests" in reply.headers
            return int(reply.status_code)

        await asyncio.gather(*(call() for _ in range(40)))
        await stand.settled()
        seen = await stand.metrics()
        asked = seen.of("redis_round_trips_total")
        assert asked >= 3
        load = [asyncio.create_task(call()) for _ in range(20)]
        server.stop()
        load += [asyncio.create_task(call()) for _ in range(40)]
        assert await asyncio.gather(*load) == [200] * 60
        await stand.until(lambda seen: seen.of("redis_up") == 0, "no redis")

        server.start()
        await stand.until(lambda seen: seen.of("redis_up") == 1, "redis again")
        assert await call() == 200
        await stand.settled()
        with server.client as client:
            assert client.exists("{tidegate}:account:pay") == 1
        seen = await stand.metrics()
        assert (seen.of("holds"), seen.of("held_tokens")) == (0, 0)
