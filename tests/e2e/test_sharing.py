"""What Tidegates share through Redis, through real Envoys: plans, also when it goes, and modes."""

from __future__ import annotations

import asyncio
import sys
import time
from statistics import median
from typing import Any

import pytest

from extproc.control.client import Access, connect
from extproc.control.pb import modes_pb2, modes_pb2_grpc

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


async def test_a_mode_is_in_force_at_once_here_and_within_a_second_everywhere(
    stand_with: Any, serving: Any
) -> None:
    """Told by the first call that is answered by the new mode, so its own time is in the figure."""
    normal, only = modes_pb2.MODE_NORMAL, modes_pb2.MODE_TRANSACTIONS_ONLY
    with serving("valkey") as server:
        here, there = [await stand_with(SHARED.format(url=server.url), engines=1) for _ in range(2)]
        for each in (here, there):
            await each.until(lambda seen: seen.of("replicas") == 2, "two that share")

        async def answered(stand: Any, reason: str, since: float) -> float:
            async with asyncio.timeout(10):
                while True:
                    reply = await stand.post(CHAT | {"max_tokens": 1}, x_tenant_id="marketing")
                    if reply.headers["x-tidegate-reason"] == reason:
                        return time.monotonic() - since

        took: list[tuple[float, float]] = []
        access = Access(here.plan.config.listen.control, here.plan.token)
        async with connect(access) as channel:
            modes = modes_pb2_grpc.ModeServiceStub(channel)
            for mode, reason in [(only, "mode_transactions_only"), (normal, "admitted")] * 5:
                began = time.monotonic()
                await modes.SetMode(modes_pb2.SetModeRequest(mode=mode, reason="test"))
                one, other = await asyncio.gather(
                    answered(here, reason, began), answered(there, reason, began)
                )
                took.append((one, other))

    at_home, abroad = zip(*took, strict=True)
    told = (
        f"here {median(at_home):.3f} s, at most {max(at_home):.3f} s; "
        f"at the other {median(abroad):.3f} s, at most {max(abroad):.3f} s"
    )
    sys.stdout.write(f"{told}\n")  # pytest -rP shows it
    assert median(at_home) <= 0.1, told
    assert max(abroad) <= 1.0, told
