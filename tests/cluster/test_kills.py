"""Three Tidegates, two Envoys, one Redis, a PostgreSQL, two engines: one of each dies in turn under load.

What must hold each time: no class is judged otherwise than it should be, everything that was answered
is charged once and nothing else, and in the end nothing is in flight or held.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.books import FULL, JUDGED, Books, exact, judged, told
from tests.cluster.calls import Calls, load
from tests.cluster.stand import Cluster, cluster

pytestmark = pytest.mark.e2e

RATE, SECONDS = 45, 6.0
"""Calls a second."""


async def loaded(it: Cluster, *, kill: str = "") -> Calls:
    """Send calls; let something die after a third of the time, and come back after two thirds."""

    async def disturb() -> None:
        await asyncio.sleep(SECONDS / 3)
        await it.kill(kill)
        await asyncio.sleep(SECONDS / 3)
        await it.start(kill)

    async with asyncio.TaskGroup() as tasks:
        if kill:
            tasks.create_task(disturb())
        calls = tasks.create_task(load(it, rate=RATE, seconds=SECONDS))
    return calls.result()


async def test_one_of_each_dies_in_turn(short: Path, postgres: Any) -> None:
    async with cluster(short, database=postgres.new_database()) as it:
        books = Books(it)
        await it.show_usage(FULL)

        # Nothing dies.
        calls = await loaded(it)
        grown = await books.grown()
        told("nothing dies", calls, grown)
        assert (judged(calls), calls.failed, calls.unjudged) == (JUDGED, [], [])
        assert grown == exact(calls)
        seen = [await it.samples(name) for name in it.pages]
        assert all(each.sum("decisions_total", verdict="admit") for each in seen)

        # Redis dies: nobody notices.
        calls = await loaded(it, kill="redis")
        await it.until(lambda seen: set(seen.values("redis_up")) == {1.0}, "redis again")
        grown = await books.grown()
        told("redis dies", calls, grown)
        assert (judged(calls), calls.failed, calls.unjudged) == (JUDGED, [], [])
        assert grown == exact(calls)

        # A Tidegate dies: what it was just deciding passes unjudged, what it had let in is answered
        # and costs nothing. Ends that it was to hand on are lost: such calls are told as left by their
        # clients, at an estimate. All else is as ever.
        calls = await loaded(it, kill="tidegate-2")
        grown = await books.grown()
        told("a Tidegate dies", calls, grown)
        assert (judged(calls), calls.failed) == (JUDGED, [])
        assert len(calls.unjudged) <= 0.03 * len(calls.each)
        count = sum(number for number, _ in grown.values())
        assert 0.95 * len(calls.answered) <= count <= len(calls.answered)
        each = {call.tokens for call in calls.answered}
        assert len(each) == 1, "all answers cost the same"
        completed = grown["completed", False]
        assert completed[1] == completed[0] * each.pop(), "what is no estimate is exact"
        assert count - completed[0] <= 0.03 * len(calls.each), (
            "only what was on its way is estimated"
        )

        # An Envoy dies: its clients see it, the other's do not; who was cut pays for what he got.
        calls = await loaded(it, kill="envoy-2")
        grown = await books.grown()
        told("an Envoy dies", calls, grown)
        assert judged(calls) == JUDGED
        assert calls.unjudged == []
        assert {call.problem for call in calls.failed} <= {
            "ClientConnectorError", "ClientPayloadError", "ServerDisconnectedError",
            "ClientOSError", "ClientConnectionResetError",
        }  # fmt: skip
        assert grown["completed", False][0] <= len(calls.answered)
        cut = sum(number for (outcome, _), (number, _) in grown.items() if outcome == "client_gone")
        assert len(calls.answered) <= grown["completed", False][0] + cut

        # An engine dies: its calls become the fallback, or break off if they had begun, for free.
        it.commands["engine-2"] += ["--faults", json.dumps({"kv_usage": FULL})]
        calls = await loaded(it, kill="engine-2")
        grown = await books.grown()
        told("an engine dies", calls, grown)
        broken = {(tenant, "shed", "engine_error") for tenant in ("pay", "service")}
        assert JUDGED <= judged(calls) <= JUDGED | broken
        assert calls.unjudged == []
        assert grown == exact(calls)
