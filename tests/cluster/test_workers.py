"""One Tidegate of two processes: each decides, all share, and one that dies is missed by nobody."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psutil
import pytest

from extproc.control.pb import modes_pb2
from tests.cluster.books import FULL, JUDGED, judged
from tests.cluster.calls import load
from tests.cluster.stand import Cluster, Samples, chat, cluster, eventually, ledger

pytestmark = pytest.mark.e2e


def of_workers(seen: Samples, name: str, **labels: str) -> list[float]:
    return [seen.sum(name, worker=str(number), **labels) for number in (1, 2)]


async def charged(it: Cluster) -> dict[str, int]:
    """Return how many calls were charged, by outcome."""
    await it.settled()
    rows = ledger(it, "SELECT outcome, count(*) FROM transactions WHERE kind = 'charge' GROUP BY 1")
    return dict(tuple(row) for row in rows)


async def test_two_workers_are_one_tidegate(short: Path) -> None:
    async with cluster(short, tidegates=1, envoys=1, workers=2) as it:
        await it.show_usage(FULL)
        calls = await load(it, rate=40, seconds=4)
        assert {(call.tenant, call.verdict, call.reason) for call in calls.each} == JUDGED
        assert not calls.failed
        await it.settled()

        # Both have worked, and every end has found its way to who had decided.
        seen = await it.samples()
        assert all(of_workers(seen, "decisions_total", verdict="admit"))
        for number in ("1", "2"):
            let_in = seen.sum("decisions_total", verdict="admit", worker=number)
            completed = seen.sum("exchanges_ended_total", outcome="completed", worker=number)
            assert let_in == completed
        assert seen.sum("ends_forwarded_total") > 0
        assert await charged(it) == {"completed": len(calls.answered)}
        (used,) = ledger(it, "SELECT sum(used) FROM subscriptions")
        assert used[0] == sum(call.tokens for call in calls.answered)

        # A mode is set at one and holds at both.
        await it.set_mode(modes_pb2.MODE_TRANSACTIONS_ONLY)

        async def answered(reason: str) -> bool:
            replies = [await it.post(1, chat(1), "service") for _ in range(8)]
            return {each.reason for each in replies} == {reason}

        only = "mode_transactions_only"
        await eventually(lambda: answered(only), "the mode at both")
        await it.set_mode(modes_pb2.MODE_NORMAL)
        await eventually(lambda: answered("admitted"), "the other mode at both")

        # One dies under load: it is started anew, its calls pass, all others are judged as ever.
        parent = psutil.Process(it.pid("tidegate-1"))
        (_, victim) = parent.children()

        async def dies() -> None:
            await asyncio.sleep(1.0)
            victim.kill()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(dies())
            loaded = tasks.create_task(load(it, rate=40, seconds=5))
        calls = loaded.result()
        assert not calls.failed
        assert judged(calls) == JUDGED
        assert len(calls.unjudged) <= 5  # what it was just deciding
        await it.until(
            lambda seen: (
                seen.sum("worker_restarts_total") == 1 and seen.values("worker_up") == [1.0, 1.0]
            ),
            "two workers again",
        )
        await it.settled()
        pending = ledger(it, "SELECT count(*) FROM holds WHERE state = 'pending'")
        assert next(pending)[0] == 0

        # A stop drains both: a stream that runs is seen to its end.
        async with asyncio.TaskGroup() as tasks:
            streams = [tasks.create_task(it.post(1, chat(60), "pay")) for _ in range(6)]
            await it.until(lambda seen: seen.sum("in_flight") == 6, "six in flight")
            it.signal("tidegate-1", signal.SIGTERM)
        assert {each.result().status for each in streams} == {200}
        async with asyncio.timeout(20):
            assert await it.children["tidegate-1"].process.wait() == 0


async def test_who_outlives_the_parent_stops(short: Path) -> None:
    async with cluster(short, tidegates=1, envoys=0, engines=1, workers=2) as it:
        parent = psutil.Process(it.pid("tidegate-1"))
        workers = parent.children()
        assert len(workers) == 2
        parent.kill()
        _, alive = await asyncio.to_thread(psutil.wait_procs, workers, 10)
        assert alive == []
