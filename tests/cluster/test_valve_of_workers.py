"""The flood valve where a Tidegate has two processes: one of them tells Envoy, both go on deciding."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from extproc.control.pb import modes_pb2
from tests.cluster.stand import Cluster, chat, cluster, eventually

pytestmark = pytest.mark.e2e

VALVE = "envoy: {valve: {through: 10, first: null}}"
BY_ENVOY = b"We are very busy right now: please resend in 15 seconds."
"""The valve's own words; Tidegate's say that a place is kept."""


class Flood:
    """Marketing's calls, as fast as they are answered; who answered, and when Envoy first did."""

    def __init__(self, it: Cluster) -> None:
        self.it = it
        self.answers: Counter[str] = Counter()
        self.first_by_envoy = 0.0

    async def _send(self) -> None:
        while True:
            reply = await self.it.post(1, chat(1), "marketing")
            assert reply.status == 200
            by_envoy = BY_ENVOY in reply.body
            if by_envoy and not self.first_by_envoy:
                self.first_by_envoy = time.monotonic()
            self.answers["envoy" if by_envoy else reply.reason] += 1

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            sending = [tasks.create_task(self._send()) for _ in range(4)]
            yield
            for each in sending:
                each.cancel()

    async def until_mostly_by_envoy(self) -> None:
        async def mostly() -> bool:
            self.answers.clear()
            await asyncio.sleep(0.5)
            mostly = self.answers["envoy"] > 0.8 * self.answers.total() > 20
            # The other worker hears of the mode a moment later.
            return mostly and set(self.answers) <= {"envoy", "mode_protect"}

        await eventually(mostly, "most are refused by Envoy")


async def test_a_flood_is_refused_by_envoy_whichever_worker_tells_it(short: Path) -> None:
    async with cluster(short, VALVE, tidegates=1, envoys=1, workers=2) as it:
        flood = Flood(it)
        async with flood.going_on():
            await it.set_mode(modes_pb2.MODE_PROTECT)
            switched = time.monotonic()
            await flood.until_mostly_by_envoy()
            sys.stdout.write(
                f"Envoy's first refusal after {flood.first_by_envoy - switched:.3f} s\n"
            )
            paid = [await it.post(1, chat(1), "pay") for _ in range(20)]
            assert {each.verdict for each in paid} == {"admit"}

            # The worker that tells Envoy dies, or the other: Envoy hears from one that lives.
            seen = await it.samples()
            telling = [seen.sum("valve_envoys", worker=str(number)) for number in (1, 2)]
            assert sorted(telling) == [0.0, 1.0]
            children = psutil.Process(it.pid("tidegate-1")).children()
            children[telling.index(1.0)].kill()
            await it.until(lambda seen: seen.values("worker_up") == [1.0, 1.0], "two workers again")
            await flood.until_mostly_by_envoy()
