"""An upgrade, as a Deployment rolls it: one Tidegate after the other is stopped and a new one started.

No call notices: none fails, none passes unjudged, none is judged otherwise, each is charged once.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.books import FULL, JUDGED, Books, exact, judged, told
from tests.cluster.calls import Calls, load
from tests.cluster.stand import Cluster, cluster

pytestmark = pytest.mark.e2e

RATE = 45
SECONDS = 16.0


async def rolled(it: Cluster) -> Calls:
    """Send calls, and meanwhile replace each Tidegate by a new one on the same address."""

    async def upgrade() -> None:
        for name in it.pages:
            it.signal(name, signal.SIGTERM)
            assert await it.children[name].process.wait() == 0
            await it.start(name)

    async with asyncio.TaskGroup() as tasks:
        calls = tasks.create_task(load(it, rate=RATE, seconds=SECONDS))
        await asyncio.sleep(1)
        await upgrade()
        assert not calls.done(), "the upgrade took longer than the load"
    return calls.result()


async def test_no_call_notices_an_upgrade(short: Path, postgres: Any) -> None:
    database = postgres.new_database()
    async with cluster(short, tidegates=2, envoys=1, database=database, withdraw=2) as it:
        books = Books(it)
        await it.show_usage(FULL)
        calls = await rolled(it)
        grown = await books.grown()
        told("an upgrade", calls, grown)
        assert (judged(calls), calls.failed, calls.unjudged) == (JUDGED, [], [])
        assert grown == exact(calls)
