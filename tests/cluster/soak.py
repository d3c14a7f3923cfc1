"""A day's troubles in little time, over and over, under a steady load: does anything stay behind?

A real Envoy, Tidegate with a ledger, two emulated engines; calls of three classes, open loop, some of
whose clients leave. Meanwhile engines fail calls, fill up, and die; the configuration is taken over,
now and then a wrong one; modes are switched. Run as::

    python -m tests.cluster.soak --seconds 1200 --rate 200

It prints what it saw and judged, and exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGHUP

import psutil
import yaml

from extproc.control.pb import modes_pb2
from extproc.sim.loadgen.http_client import Client
from extproc.sim.loadgen.load import Load, Traffic
from extproc.telemetry.recorder import REMEMBERED
from tests.cluster.calls import Calls, load
from tests.cluster.stand import Cluster, chat, cluster, ledger
from tests.cluster.steady import SETTLING, trend

TIDEGATE = "tidegate-1"
ABORTS = 0.05
"""Of all clients leave before the end."""
MOST_GROWTH = 3.0
"""MiB that the processor may be larger at the end than when it had settled; its own noise is 1 to 2."""
LEAKED = 150.0
"""Bytes that may stay behind for each call besides: grpc.aio keeps some 100 of a stream that its client
resets (https://github.com/grpc/grpc/issues/43360), as ``bench.noop`` shows, which does nothing."""
RECORD = 2500.0
"""Bytes of a decision that is remembered, at most: what a short run keeps of each call, while those that
`fill_memory` has left, which are shorter, are forgotten for them."""
CUT = frozenset(("ClientPayloadError", "ServerDisconnectedError", "ClientOSError"))
"""What a client sees whose stream's engine dies."""
CHARGED = "SELECT outcome, estimated, count(*), sum(used) FROM transactions WHERE kind = 'charge' GROUP BY 1, 2"
UNBALANCED = "SELECT count(*) FROM (SELECT 1 FROM entries GROUP BY transaction_id HAVING sum(amount) <> 0) AS t"
MODES = (modes_pb2.MODE_PROTECT, modes_pb2.MODE_TRANSACTIONS_ONLY, modes_pb2.MODE_SHADOW)


@dataclass
class Seen:
    """What was seen of the processor, and what was done to it."""

    memory: list[tuple[float, float]] = field(default_factory=list)
    files: list[tuple[float, float]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)


@asynccontextmanager
async def troubled(it: Cluster, seen: Seen) -> AsyncIterator[None]:
    """Trouble the cluster while the block runs, then leave it in peace."""
    rng = random.Random(11)

    async def again_and_again(what: str, pause: float, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(pause * rng.uniform(0.5, 1.5))
            await act()
            seen.done[what] += 1

    async def fail() -> None:
        """One of two engines for a fiftieth of the time: 1 % of calls."""
        await it.fault(1, status=500)
        await asyncio.sleep(0.1)
        await it.fault(1, status=None)

    async def fill() -> None:
        await it.fault(1, kv_usage=rng.choice((0.5, 0.88, 0.95, 0.99)))
        await asyncio.sleep(1)
        await it.fault(1, kv_usage=None)

    async def flap() -> None:
        await it.kill("engine-2")
        await asyncio.sleep(1)
        await it.start("engine-2")

    async def reload() -> None:
        rewrite(it, spare=rng.randrange(100), wrong=rng.random() < 0.2)
        it.signal(TIDEGATE, SIGHUP)

    async def switch() -> None:
        await it.set_mode(rng.choice(MODES))
        await asyncio.sleep(1)
        await it.set_mode(modes_pb2.MODE_NORMAL)

    troubles = {
        "engine errors": (5.0, fail),
        "full engines": (7.0, fill),
        "engine deaths": (15.0, flap),
        "reloads": (6.0, reload),
        "mode switches": (9.0, switch),
    }
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(again_and_again(what, pause, act))
            for what, (pause, act) in troubles.items()
        ]
        running.append(tasks.create_task(sample(it, seen)))
        yield
        for each in running:
            each.cancel()
    await in_peace(it)


async def fill_memory(it: Cluster) -> None:
    """Have it remember as many decisions as it ever will; until then it grows."""
    body = json.dumps(chat()).encode()
    await it.set_mode(modes_pb2.MODE_TRANSACTIONS_ONLY)
    async with Client(it.urls[0], clock=time.monotonic) as client:
        refused = Traffic("refused", lambda _: body, (("x-tenant-id", "marketing"),))
        flood = Load(client, [refused], random.Random(11))
        while (await it.samples(TIDEGATE)).sum("decisions_total") < 1.1 * REMEMBERED:
            await flood.saturate(32, 2.0)
    await it.set_mode(modes_pb2.MODE_NORMAL)


async def in_peace(it: Cluster) -> None:
    """Undo whatever the trouble that was broken off has left."""
    if it.children["engine-2"].process.returncode is not None:
        await it.start("engine-2")
    for engine in (1, 2):
        await it.fault(engine, status=None, kv_usage=None)
    await it.set_mode(modes_pb2.MODE_NORMAL)


async def sample(it: Cluster, seen: Seen) -> None:
    process, began = psutil.Process(it.pid(TIDEGATE)), time.monotonic()
    while True:
        at = time.monotonic() - began
        seen.memory.append((at, process.memory_info().rss / (1 << 20)))
        seen.files.append((at, float(process.num_fds())))
        await asyncio.sleep(1)


def rewrite(it: Cluster, *, spare: int, wrong: bool) -> None:
    """Write a configuration that differs in its tenants, or that cannot be used."""
    file = it.directory / f"{TIDEGATE}.yaml"
    settings = yaml.safe_load(file.read_text())
    settings["tenants"]["spare"] = {"class": "P9" if wrong else "P1", "plan": "big"}
    settings["fallback"]["message"] = {"en": f"Later, please ({spare})."}
    file.write_text(yaml.safe_dump(settings, sort_keys=False))


def faults_in_log(directory: Path) -> list[str]:
    """Return lines of Tidegate's log that tell of a fault of its own."""
    found = []
    for file in directory.glob(f"{TIDEGATE}*.log"):
        for line in file.read_text().splitlines():
            told = json.loads(line) if line.startswith("{") else {}
            if "traceback" in told or line.startswith("Traceback"):
                found.append(line[:300])
    return found


async def judged(it: Cluster, seen: Seen, calls: Calls) -> dict[str, tuple[str, bool]]:
    """Return each bar: what was seen, and whether that is as it must be."""
    await it.settled(30)
    page = await it.samples(TIDEGATE)
    memory, files = trend(seen.memory), trend(seen.files)
    charges = {(row[0], bool(row[1])): (row[2], row[3]) for row in ledger(it, CHARGED)}
    each = {call.tokens for call in calls.answered}
    completed = charges.get(("completed", False), (0, 0))
    left = sum(call.problem == "left" for call in calls.each)
    odd = Counter(
        (call.status, call.problem)
        for call in calls.each
        # In shadow mode what engines, or Envoy in their stead, say passes as it is.
        if call.status not in (0, 200, 500, *(() if call.verdict else (502, 503)))
        or call.problem not in {"", "left", *CUT}
    )
    (unbalanced,) = next(ledger(it, UNBALANCED))
    log = faults_in_log(it.directory)
    zero = {
        name: page.sum(name) for name in ("in_flight", "queue_depth", "holds", "outbox_records")
    }
    paid = len(calls.answered)
    counted = len(calls.each) * (1 - SETTLING) * 2 / 3  # between the middles of two thirds
    most = LEAKED if len(calls.each) > 4 * REMEMBERED else RECORD
    kept = memory.growth * (1 << 20) / counted
    return {
        "memory": (
            f"{memory.first:.1f} → {memory.last:.1f} MiB, {memory.per_hour:+.1f} MiB/h, {kept:.0f} B a call",
            memory.growth <= MOST_GROWTH + most * counted / (1 << 20),
        ),
        "open files": (f"{files.first:.0f} → {files.last:.0f}", files.growth <= 8),
        "left behind": (str(zero), not any(zero.values())),
        "odd answers": (str(dict(odd)), not odd),
        "charged as completed": (
            f"{completed[0]} calls for {paid} answers and {left} clients that left",
            paid <= completed[0] <= paid + left,
        ),
        "charged exactly": (
            f"{completed[1]} tokens, {sorted(each)} a call",
            len(each) == 1 and completed[1] == completed[0] * min(each, default=0),
        ),
        "other charges": (
            str(
                {
                    f"{o}{' (estimated)' * e}": n
                    for (o, e), (n, _) in charges.items()
                    if o != "completed"
                }
            ),
            all(used == 0 for (o, _), (_, used) in charges.items() if o == "engine_error"),
        ),
        "ledger": (f"{unbalanced} transactions do not add up to 0", unbalanced == 0),
        "faults in the log": ("; ".join(log) or "none", not log),
    }


async def soak(directory: Path, *, seconds: float, rate: float) -> bool:
    """Run, print, and say whether all bars are kept."""
    seen, calls = Seen(), Calls()
    async with cluster(directory, tidegates=1, envoys=1, redis=False) as it:
        await fill_memory(it)
        async with troubled(it, seen):
            await load(it, rate=rate, seconds=seconds, aborts=ABORTS, calls=calls)
        bars = await judged(it, seen, calls)
    verdicts = Counter((call.verdict or "none", call.reason) for call in calls.each)
    say(f"{len(calls.each)} calls in {seconds:.0f} s; troubles: {dict(seen.done)}")
    say(f"verdicts: { ({' '.join(key): number for key, number in verdicts.most_common()}) }")
    for name, (what, kept) in bars.items():
        say(f"{'ok    ' if kept else 'MISSED'} {name}: {what}")
    return all(kept for _, kept in bars.values())


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--rate", type=float, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-") as directory:
        kept = asyncio.run(soak(Path(directory), seconds=options.seconds, rate=options.rate))
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
