"""``python -m bench.flood URL TENANT RATE SECONDS``: a flood from a process of its own.

Who measures beside it must not wait for it. It prints one line of JSON: how many calls were sent and
answered by whom, how late they left (p99, seconds), and the CPU seconds that it took.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time

from bench.measure import BODY_BYTES, chat_body
from bench.stand import TENANT_HEADER
from extproc.sim.loadgen.http_client import Client
from extproc.sim.loadgen.load import Load, Traffic, poisson
from extproc.sim.loadgen.precise_loop import precise_loop

_CONNECTIONS = 128
_PATIENCE = 5.0


async def flood(url: str, tenant: str, rate: float, seconds: float) -> dict[str, object]:
    """Send calls at random moments; return what came of them."""
    rng, body = random.Random(2), chat_body(BODY_BYTES)  # noqa: S311 (when requests are sent)
    traffic = Traffic(tenant, lambda _: body, ((TENANT_HEADER, tenant),))
    async with Client(url, clock=time.monotonic) as client:
        await client.connect(_CONNECTIONS)
        load = Load(client, [traffic], rng)
        await load.run(poisson(rate, seconds, rng), patience=_PATIENCE)
    tally = load.tallies[tenant]
    return {
        "sent": tally.sent,
        "answers": {kind.value: count for kind, count in tally.answers.items()},
        "late": tally.lateness.percentiles(99)[0],
        "cpu": time.process_time(),
    }


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    to, who, each_second, lasting = sys.argv[1:]
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        told = runner.run(flood(to, who, float(each_second), float(lasting)))
    sys.stdout.write(json.dumps(told) + "\n")
