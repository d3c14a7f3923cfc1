"""Two Tidegates that know of each other only through a Redis, each behind an Envoy of its own.

What one has let in, the other knows: rates, holds, promises, tickets, modes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from extproc.control.pb import modes_pb2
from tests.cluster.stand import Cluster, Reply, chat, cluster, eventually

pytestmark = pytest.mark.e2e

PLANS = """\
plans:
  slow:  {requests_per_minute: 60}
  small: {quota: {tokens: 1000}}
tenants:
  pay:       {class: P0, plan: small}
  service:   {class: P1, plan: slow}
  marketing: {class: P2}
  anonymous: {class: P2}
"""
LONG = chat(200)
"""Some 5 s long; it may cost 200 tokens and its prompt."""


@pytest.fixture
async def two(short: Path) -> AsyncIterator[Cluster]:
    async with cluster(
        short, PLANS, tidegates=2, engines=1, apart=True, engine_options=["--blocks", "256"]
    ) as it:
        yield it


async def from_both(it: Cluster, count: int, tokens: int, tenant: str) -> Counter[tuple[int, str]]:
    """Send so many calls at once, half of them through each; return what they got and why."""
    calls = (it.post(1 + number % 2, chat(tokens), tenant) for number in range(count))
    replies: list[Reply] = await asyncio.gather(*calls)
    return Counter((each.status, each.reason) for each in replies)


async def test_what_one_has_let_in_the_other_knows(two: Cluster) -> None:
    it = two

    # Rates: 60 at once, and what drips in meanwhile, whichever way they come.
    got = await from_both(it, 100, 1, "service")
    assert set(got) == {(200, "admitted"), (429, "rate_limited")}
    assert 60 <= got[200, "admitted"] <= 65

    # Holds: four calls may cost 1,000 tokens at most, eight may not.
    got = await from_both(it, 8, 200, "pay")
    assert got == {(200, "admitted"): 4, (429, "quota_exhausted"): 4}
    await it.settled()

    # Promises: the engine claims to be idle, and both expect what one has let in.
    await it.show_usage(0.0)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(it.post(1, LONG, "marketing")) for _ in range(8)]

        await it.until(
            lambda seen: max(seen.values("free_ratio_predicted")) < 0.7, "both expect them"
        )
        assert (await it.samples("tidegate-2")).sum("in_flight") == 0
        for each in running:
            each.cancel()
    await it.settled()

    # Tickets: given here, good there.
    await it.show_usage(0.99)
    shed = await it.post(1, chat(1), "marketing")
    assert shed.reason == "kv_watermark"
    await it.show_usage(0.0)
    await it.until(lambda seen: seen.sum("class_closed") == 0, "all classes open")
    ticket = shed.headers["x-tidegate-ticket"]
    again = await it.post(2, chat(1), "marketing", x_tidegate_ticket=ticket)
    assert again.verdict == "admit"
    there = await it.samples("tidegate-2")
    assert there.sum("tickets_total", event="redeemed") == 1

    # Modes: set here, in force there.
    await it.set_mode(modes_pb2.MODE_TRANSACTIONS_ONLY)

    async def in_force() -> bool:
        return (await it.post(2, chat(1), "marketing")).reason == "mode_transactions_only"

    await eventually(in_force, "the mode at the other")

    # A new one of them has it from the start.
    await it.kill("tidegate-2")
    await it.start("tidegate-2")
    await eventually(in_force, "the mode at the one that has started")
